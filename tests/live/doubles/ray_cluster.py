"""A real Ray `Cluster` of several nodes on this machine: loopback, a scratch HOME and folder, killed by process ids.

It runs in a process of its own, for Ray reads its settings when it is imported: `RayCluster` is the handle of it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from tests import ROOT

LOOP = "127.0.0.1"
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: 127.0.0.1 is not replaced by another address
}


class RayCluster:
    """Head and nodes, each a raylet of its own; while it is open this process has its token, in a scratch HOME.

    Nodes are known by numbers; 0 is the head, which has no processors for ranks.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp"))  # short: sockets lie below it
        self._before = dict(os.environ)
        self.address = ""

    def __enter__(self) -> Self:
        token = self.folder / "home" / ".ray" / "auth_token"
        token.parent.mkdir(parents=True)
        token.write_text(os.urandom(32).hex())
        token.chmod(0o600)
        os.environ.update(_SETTINGS, HOME=str(self.folder / "home"), RAY_TMPDIR=str(self.folder))
        words = [sys.executable, "-m", "tests.live.doubles.ray_cluster"]
        self._log = (self.folder / "cluster.log").open("w")
        self._process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.start_head()
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.communicate()
        self._log.close()
        os.environ.clear()
        os.environ.update(self._before)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_head(self, port: int = 0) -> None:
        """Start a head; after it was killed a new one, of a new cluster."""
        self.address = self._tell("head", port)

    def add(self, bundles: Path, cpus: int = 1, **variables: str) -> int:
        """Add a node that has its bundles in a folder of its own."""
        return int(self._tell("node", cpus, {"SKERRY_BUNDLES": str(bundles), **variables}))

    def kill(self, node: int) -> None:
        """Kill a node with all that it started, as a machine without power."""
        self._tell("kill", node)

    def list_processes(self, node: int) -> list[int]:
        """Processes of a node, those that it started included."""
        return list(self._tell("list", node))

    def _tell(self, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self.folder / "cluster.log").read_text()[-2000:]
        return json.loads(line)


class _ClusterProcess:
    """The process itself: obeys one line after the other."""

    def __init__(self) -> None:
        self._cluster: Any = None
        self._nodes: list[Any] = []

    def head(self, port: int) -> str:
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - after the environment is set

        told = {"num_cpus": 0, "node_ip_address": LOOP, "include_dashboard": False}
        told |= {"gcs_server_port": port} if port else {}
        self._cluster = Cluster(initialize_head=True, head_node_args=told, shutdown_at_exit=False)
        self._nodes[:1] = [self._cluster.head_node]
        return str(self._cluster.address)

    def node(self, cpus: int, variables: dict[str, str]) -> int:
        self._nodes.append(self._cluster.add_node(num_cpus=cpus, node_ip_address=LOOP, env_vars=variables))
        return len(self._nodes) - 1

    def list(self, number: int) -> list[int]:
        own = [each.process.pid for kind in self._nodes[number].all_processes.values() for each in kind]
        return [*own, *_descendants(own)]

    def kill(self, number: int) -> None:
        for pid in self.list(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for kind in self._nodes[number].all_processes.values():
            for each in kind:
                each.process.wait()

    def end(self) -> None:
        for number in reversed(range(len(self._nodes))):
            self.kill(number)


def _descendants(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{pid}/task").iterdir()
            children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
            yield from children
            yield from _descendants(children)


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    cluster = _ClusterProcess()
    try:
        for order in sys.stdin:
            word, *arguments = json.loads(order)
            print(json.dumps(getattr(cluster, word)(*arguments)), file=answers, flush=True)
    finally:
        cluster.end()  # also where the process that it serves is gone
