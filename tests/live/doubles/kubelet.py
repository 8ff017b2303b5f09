"""Runs the containers of rendered pods as processes of this machine: a kubelet without a container engine.

Each container has the volumes, user, environment and command of its manifest, a root file system that it cannot write,
and, in place of an image, this checkout with its `.venv`. Not played: addresses of its own (the ports of hubs differ by
a variable), cgroups, seccomp, network policies. `tini` is a stand-in where it is not installed.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from tests import ROOT

POD_IP = "127.0.0.1"
UNTIL_S = 240.0  # for what takes seconds on a quiet machine
# What an image would have, one by one: the folder of a checkout may be closed to everybody but its owner.
_PACKAGES = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations", "skerry.py", ".venv")
_PROGRAM = tuple(ROOT / name for name in _PACKAGES)
_TINI = '#!/bin/sh\n[ "$1" != -- ] || shift\nexec "$@"\n'
# $1: the new root; then SOURCE TARGET MODE for each mount, --, and what runs in it.
_ENTER = """
root=$1; shift
mount -t tmpfs -o mode=755,size=1m none "$root"
while [ "$1" != -- ]; do
    mkdir -p "$root$(dirname "$2")"
    if [ -d "$1" ]; then mkdir -p "$root$2"; else : >"$root$2"; fi
    mount --rbind "$1" "$root$2"
    [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"
    shift 3
done
shift
for each in bin lib lib64 sbin; do ln -s "usr/$each" "$root/$each"; done
mount -o remount,ro "$root"
exec "$@"
"""


def can_isolate() -> bool:
    """Whether this user may give processes mounts and users of their own."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "setpriv", "chroot"))):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


def find_pod_specs(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The pods that workloads are made of, wherever in a document they stand."""
    found: list[dict[str, Any]] = []
    waiting: list[Any] = [*documents]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if "containers" in value:
                found.append(dict(value))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


class Container:
    """One container of a pod: started, asked by its probes, ended."""

    def __init__(self, pod: "Pod", spec: Mapping[str, Any]) -> None:
        self.pod, self.spec = pod, spec
        self.name = str(spec["name"])
        self.log = pod.folder / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        security = {**self.pod.spec["securityContext"], **self.spec["securityContext"]}
        assert security["runAsNonRoot"] is True
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        root = self.pod.folder / f"{self.name}.root"
        root.mkdir(exist_ok=True)
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _ENTER, "enter", str(root)]
        for source, target, mode in self._mounts():
            words += [str(source), str(target), mode]
        words += ["--", "chroot", str(root), *self._as_user(), *self.spec["command"]]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                words, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _as_user(self) -> list[str]:
        user, group = (self.pod.spec["securityContext"][key] for key in ("runAsUser", "runAsGroup"))
        groups = f"{group},{self.pod.spec['securityContext']['fsGroup']}"
        limits = ("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--pdeathsig=KILL")
        return ["setpriv", f"--reuid={user}", f"--regid={group}", f"--groups={groups}", *limits, "--"]

    def _mounts(self) -> list[tuple[Path, Path, str]]:
        shown = (Path("/usr"), Path(sys.base_prefix), *_PROGRAM, Path("/etc/ld.so.cache"), Path("/etc/nsswitch.conf"))
        image = [(path, path, "ro") for path in shown if path.exists() and Path("/usr") not in path.parents]
        image += [(Path("/proc"), Path("/proc"), "rw"), (Path("/dev"), Path("/dev"), "rw")]
        image += [(self.pod.kubelet.folder / name, Path(where), "ro") for name, where in _OWN.items()]
        mounts = self.spec.get("volumeMounts", [])
        return image + [
            (self.pod.volumes[each["name"]], Path(each["mountPath"]), "ro" if each.get("readOnly") else "rw")
            for each in mounts
        ]

    def _environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in self.spec.get("env", []):
            value = each["value"] if "value" in each else self.pod.resolve(each["valueFrom"])
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found.get(match[1], match[0]), value)
        more = self.pod.more if self.name == "hub" else {}
        return {"PATH": f"{ROOT}/.venv/bin:/opt/bin:/usr/sbin:/usr/bin", **found, **more}

    def run(self) -> None:
        """Run an init container to its end."""
        self.start()
        assert self.process is not None
        code = self.process.wait(UNTIL_S)
        assert code == 0, f"{self.pod.name} {self.name}: {code}: {self.tail()}"

    def execute(self, command: list[str], check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as `kubectl exec` does."""
        assert self.process is not None
        inside = ["nsenter", "--target", str(self.process.pid), "--mount", "--root", "--wdns=/"]
        done = subprocess.run(
            [*inside, *self._as_user(), *command], env=self._environment(), capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=UNTIL_S,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def answers(self, probe: str) -> bool:
        """Whether a probe succeeds now; one that is not there does."""
        found = self.spec.get(probe)
        if found is None:
            return True
        if "exec" in found:
            return self.execute(found["exec"]["command"], check=False).returncode == 0
        port = self.port(found.get("httpGet", found.get("tcpSocket"))["port"])
        if "tcpSocket" in found:
            with contextlib.suppress(OSError), socket.create_connection((POD_IP, port), timeout=10):
                return True
            return False
        assert found["httpGet"]["scheme"] == "HTTPS"
        unverified = ssl._create_unverified_context()  # as a kubelet's
        url = f"https://{POD_IP}:{port}{found['httpGet']['path']}"
        with contextlib.suppress(OSError, urllib.error.URLError):
            return bool(urllib.request.urlopen(url, timeout=10, context=unverified).status == 200)
        return False

    def port(self, name: str) -> int:
        """Number of a named port; the hubs of this machine have one each."""
        (port,) = [each["containerPort"] for each in self.spec["ports"] if each["name"] == name]
        return int(self.pod.more.get("SKERRY_HUB_API__PORT", port)) if name == "api" else int(port)

    def until(self, probe: str) -> None:
        end = time.monotonic() + UNTIL_S
        while not self.answers(probe):
            assert self.is_alive(), f"{self.pod.name} {self.name} ended: {self.tail()}"
            assert time.monotonic() < end, f"{self.pod.name} {self.name}: no {probe}: {self.tail()}"
            time.sleep(0.2)

    def stop(self, grace_s: float) -> int:
        """The container's preStop command, SIGTERM, and SIGKILL after the rest of its time; its exit code."""
        assert self.process is not None
        end = time.monotonic() + grace_s
        before = self.spec.get("lifecycle", {}).get("preStop")
        if before is not None:
            self.execute(before["exec"]["command"])
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(max(0.0, end - time.monotonic()))
        self.kill()
        return -signal.SIGKILL

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]


class Pod:
    """One pod of a workload. `index`: its ordinal; `more`: variables that stand in for an address of its own."""

    def __init__(
        self, kubelet: "Kubelet", name: str, workload: Mapping[str, Any], index: int, more: Mapping[str, str]
    ) -> None:
        self.kubelet, self.name, self.index, self.more = kubelet, name, index, dict(more)
        self.spec: Mapping[str, Any] = workload["spec"]["template"]["spec"]
        self._claims = workload["spec"].get("volumeClaimTemplates", [])
        self.folder = kubelet.folder / name
        self.volumes: dict[str, Path] = {}
        self.containers: dict[str, Container] = {}

    def start(self) -> None:
        """Volumes, then the init containers one after the other, then the containers."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._make_volumes()
        for spec in self.spec.get("initContainers", []):
            one = Container(self, spec)
            if spec.get("restartPolicy") == "Always":
                self.containers[one.name] = one
                one.start()
                one.until("startupProbe")
            else:
                one.run()
        for spec in self.spec["containers"]:
            self.containers[spec["name"]] = one = Container(self, spec)
            one.start()

    def until_ready(self) -> None:
        for one in self.containers.values():
            one.until("startupProbe")
            assert one.answers("livenessProbe"), one.tail()
            one.until("readinessProbe")

    def stop(self) -> dict[str, int]:
        """End the pod as its deletion does; the exit code of each container."""
        grace_s = float(self.spec["terminationGracePeriodSeconds"])
        return {name: one.stop(grace_s) for name, one in reversed(self.containers.items())}

    def resolve(self, source: Mapping[str, Any]) -> str:
        if "secretKeyRef" in source:
            wanted = source["secretKeyRef"]
            return self.kubelet.secrets[wanted["name"]][wanted["key"]].decode()
        fields = {
            "metadata.name": self.name,
            "status.podIP": POD_IP,
            "metadata.labels['apps.kubernetes.io/pod-index']": str(self.index),
        }
        return fields[source["fieldRef"]["fieldPath"]]

    def _make_volumes(self) -> None:
        group = int(self.spec["securityContext"]["fsGroup"])
        for claim in self._claims:
            folder = self.kubelet.folder / "claims" / f"{claim['metadata']['name']}-{self.name}"
            _make_shared(folder, group, 0o2775)
            for path in folder.rglob("*"):  # some volumes are given to the group anew at each start
                if not path.is_symlink():
                    os.chown(path, -1, group)
                    path.chmod(path.stat().st_mode | (0o2070 if path.is_dir() else 0o060))
            self.volumes[claim["metadata"]["name"]] = folder
        for volume in self.spec["volumes"]:
            self.volumes[volume["name"]] = self._make_volume(volume, group)

    def _make_volume(self, volume: Mapping[str, Any], group: int) -> Path:
        folder = self.folder / "volumes" / str(volume["name"])
        if "persistentVolumeClaim" in volume:
            return self.kubelet.claims[volume["persistentVolumeClaim"]["claimName"]]
        _make_shared(folder, group, 0o2777)
        if "configMap" in volume:
            for name, text in self.kubelet.config_maps[volume["configMap"]["name"]].items():
                (folder / name).write_text(text)
        if "secret" in volume:
            for item in volume["secret"]["items"]:
                file = folder / item["path"]
                file.write_bytes(self.kubelet.secrets[volume["secret"]["secretName"]][item["key"]])
                os.chown(file, 0, group)
                file.chmod(volume["secret"]["defaultMode"])
        return folder


class Kubelet:
    """Pods of this machine, in one folder. A context: at its end every process is gone.

    `secrets`: by name and key; `claims`: folders of volume claims that the chart does not make; `names`: host names
    that lead to this machine.
    """

    def __init__(
        self, folder: Path, documents: list[dict[str, Any]], secrets: Mapping[str, Mapping[str, bytes]],
        claims: Mapping[str, Path], names: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.folder, self.secrets, self.claims = folder, secrets, claims
        self.config_maps = {each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"}
        self._pods: list[Pod] = []
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "hosts").write_text(f"{POD_IP} localhost {' '.join(names)}\n")
        (folder / "passwd").write_text("root:x:0:0::/:/bin/sh\n")
        (folder / "resolv.conf").write_text("")
        if shutil.which("tini") is None:
            (folder / "bin" / "tini").write_text(_TINI)
            (folder / "bin" / "tini").chmod(0o755)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self._pods:
            for one in pod.containers.values():
                one.kill()

    def add(self, name: str, workload: Mapping[str, Any], index: int = 0, **more: str) -> Pod:
        pod = Pod(self, name, workload, index, more)
        self._pods.append(pod)
        return pod


_OWN = {"bin": "/opt/bin", "hosts": "/etc/hosts", "passwd": "/etc/passwd", "resolv.conf": "/etc/resolv.conf"}


def _make_shared(folder: Path, group: int, mode: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, 0, group)
    folder.chmod(mode)
