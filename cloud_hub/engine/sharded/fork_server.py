"""Fork server of rank processes: one child process with all imports done, which forks a rank on request.

A fork takes milliseconds where a new interpreter takes seconds. Rule: the fork server has one thread, no CUDA context
and no weights, so that forking is safe. It ends when its socket closes; killed ranks are reaped by the kernel.
"""

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from wire.process.files import PACKAGES_FOLDER

_MOST_FILES = 200
_SPAWN = b"b"
_PID_BYTES = 8


class ForkServerError(OSError):
    """The fork server died, or did not answer in time."""


class RankProcess:
    """Handle of a rank process (a pidfd, so that a reused pid is never killed)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)  # stays bound to this process, while a pid may be reused

    @property
    def alive(self) -> bool:
        return not select.select([self._handle], [], [], 0)[0]

    def kill(self, patience_s: float) -> None:
        """Kill the process and wait up to `patience_s` until it is gone."""
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except ProcessLookupError:
            return
        select.select([self._handle], [], [], patience_s)

    def close(self) -> None:
        os.close(self._handle)

    def fileno(self) -> int:
        """Descriptor that becomes readable when the process is dead."""
        return self._handle


def wait_for_death(ranks: Sequence[RankProcess], patience_s: float) -> None:
    """Wait up to `patience_s` seconds until one of these processes is dead."""
    select.select(ranks, [], [], patience_s)


class ForkServer:
    """Starts the fork server process and requests ranks from it.

    `interface`: of the network that ranks talk to each other over; "" = this machine alone.
    """

    def __init__(self, interface: str = "") -> None:
        self._link, theirs = socket.socketpair()
        words = [sys.executable, "-P", "-m", "cloud_hub.engine.sharded.fork_server", str(theirs.fileno())]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            words,
            cwd=PACKAGES_FOLDER,
            env=_child_environment(interface),
            stdin=quiet,
            stdout=quiet,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, theirs: socket.socket, files: Sequence[int], until: float) -> RankProcess:
        """Fork a rank that talks over `theirs` and inherits `files`, by `until` (monotonic).

        ForkServerError otherwise.
        """
        try:
            self._link.settimeout(max(0.001, until - time.monotonic()))
            socket.send_fds(self._link, [_SPAWN], [theirs.fileno(), *files])
            return RankProcess(int.from_bytes(self._read_reply(_PID_BYTES), "little"))
        except OSError as error:
            raise ForkServerError(f"no rank could be started ({error.strerror or error})") from None

    def close(self) -> None:
        self._link.close()
        self._process.kill()
        self._process.wait()

    def _read_reply(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._link.recv(size - len(data))
            if not piece:
                raise ForkServerError("the fork server died")
            data += piece
        return data


def main(descriptor: int) -> None:
    """Main loop of the fork server process: forks a rank for each request on the socket `descriptor`."""
    from cloud_hub.engine.sharded.rank import main as live  # noqa: PLC0415 - the supervisor must not import torch
    from cloud_hub.engine.sharded.rank import preheat_torch  # noqa: PLC0415

    preheat_torch()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # the collector never touches these objects again, so that their pages stay shared
    link = socket.socket(fileno=descriptor)
    while True:
        word, files, _, _ = socket.recv_fds(link, 1, _MOST_FILES)
        if not word:
            return
        pid = os.fork()
        if not pid:
            link.close()
            os._exit(live(files[0], files[1:]))
        for file in files:
            os.close(file)
        link.sendall(pid.to_bytes(_PID_BYTES, "little"))


# glibc: buffers below 32 MiB (its largest threshold) come from a heap that is not given back after every operation and
# faulted in again. Beside ranks without it, steps took 0.94 to 0.96 of the time, and a rank kept up to 20 MiB more.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def _child_environment(interface: str) -> dict[str, str]:
    """Environment of the child: without SKERRY_ secrets, with gloo and NCCL bound to one interface, else loopback."""
    loop = interface or ("lo" if sys.platform == "linux" else "lo0")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SKERRY_")}
    return kept | {"GLOO_SOCKET_IFNAME": loop, "NCCL_SOCKET_IFNAME": loop, "OMP_NUM_THREADS": "1"} | _ALLOCATOR


if __name__ == "__main__":
    main(int(sys.argv[1]))
