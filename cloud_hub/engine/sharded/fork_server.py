"""Where ranks come from: one child process that has imported everything already, and forks a rank when it is told to.

Rule: the nursery has one thread, no graphics card and no weights, so that a fork of it is sound and takes milliseconds
where a new interpreter takes seconds. When its socket ends, it ends; a rank that is killed is buried by the kernel.
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
_BEAR = b"b"
_PID_BYTES = 8


class NurseryError(OSError):
    """It died, or said nothing in time."""


class Child:
    """A rank as its supervisor sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)  # names this process for ever, a number may be given again

    @property
    def alive(self) -> bool:
        return not select.select([self._handle], [], [], 0)[0]

    def kill(self, patience_s: float) -> None:
        """Gone when this returns, unless the kernel itself holds it."""
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except ProcessLookupError:
            return
        select.select([self._handle], [], [], patience_s)

    def close(self) -> None:
        os.close(self._handle)


class Nursery:
    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        words = [sys.executable, "-m", "cloud_hub.engine.sharded.fork_server", str(theirs.fileno())]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            words, cwd=PACKAGES_FOLDER, env=_environment(), stdin=quiet, stdout=quiet, pass_fds=[theirs.fileno()]
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def bear(self, theirs: socket.socket, files: Sequence[int], until: float) -> Child:
        """A rank that speaks through `theirs` and has `files` open, by `until` (monotonic), or NurseryError."""
        try:
            self._link.settimeout(max(0.001, until - time.monotonic()))
            socket.send_fds(self._link, [_BEAR], [theirs.fileno(), *files])
            return Child(int.from_bytes(self._told(_PID_BYTES), "little"))
        except OSError as error:
            raise NurseryError(f"no rank was born ({error.strerror or error})") from None

    def close(self) -> None:
        self._link.close()
        self._process.kill()
        self._process.wait()

    def _told(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._link.recv(size - len(data))
            if not piece:
                raise NurseryError("the nursery died")
            data += piece
        return data


def main(descriptor: int) -> None:
    """The child's side."""
    from cloud_hub.engine.sharded.rank import main as live  # noqa: PLC0415 - the supervisor's side does without torch
    from cloud_hub.engine.sharded.rank import preheat  # noqa: PLC0415

    preheat()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # what is here now is never looked at again: its pages stay shared
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


def _environment() -> dict[str, str]:
    """Loopback alone: a gang of one machine has no business on any network."""
    loop = "lo" if sys.platform == "linux" else "lo0"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SKERRY_")}
    return kept | {"GLOO_SOCKET_IFNAME": loop, "NCCL_SOCKET_IFNAME": loop, "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    main(int(sys.argv[1]))
