"""Helpers of a long-running process: folder lock, systemd notification and watchdog, CPU limits, no core dumps.

Each talks to the operating system (fcntl, resource limits, sd_notify(3)); none keeps a thread or a task.
"""

import fcntl
import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from wire.process.exit_codes import ExitCode, ExitError


def disable_core_dumps() -> None:
    """Disable core dumps of this process and its children: a dump would contain samples and keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


MOST_DESCRIPTORS = 65_536  # nothing here needs more, and some programs reserve memory for each


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as this process and its children may have; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else MOST_DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


CPU_GRACE_S = 5.0


class CpuTimeError(Exception):
    """Work that was given a limit of CPU time took more."""


@contextmanager
def limit_cpu_time(seconds: float) -> Iterator[None]:
    """Limit the CPU time of the block: CpuTimeError when the process has used `seconds` more.

    Signals reach the main thread alone: in any other one the block runs without a limit. The product's checks run on
    the main thread of a process of their own. Code in C that does not return to Python ends the process (SIGPROF) by
    twice that time and `CPU_GRACE_S`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise CpuTimeError(f"it took more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, 2 * seconds + CPU_GRACE_S)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)  # again, if code that swallows errors had the first one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGVTALRM, before)


# What systemd says to the one process of a service (sd_notify(3), sd_listen_fds(3)). A child that had it could speak
# for the service: Mosquitto, for one, reports itself ready.
_SERVICE_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_service: dict[str, str] = {}


def take_service_variables() -> None:
    """Take what systemd says to this process out of the environment, so that no child inherits it."""
    for name in _SERVICE_VARIABLES:
        if name in os.environ:
            _service[name] = os.environ.pop(name)


def _read_service_variable(name: str, default: str = "") -> str:
    return _service.get(name) or os.environ.get(name, default)


def notify_systemd(state: str) -> bool:
    """Send "READY=1", "WATCHDOG=1" or "STOPPING=1" to systemd (sd_notify(3)).

    False where no service manager listens.
    """
    address = _read_service_variable("NOTIFY_SOCKET")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.connect("\0" + address[1:] if address.startswith("@") else address)
            channel.sendall(state.encode())
    except OSError:
        return False
    return True


def read_watchdog_interval() -> float | None:
    """Seconds between two WATCHDOG=1 messages: half of what systemd allows.

    None if systemd watches no process, or another one (WATCHDOG_USEC, WATCHDOG_PID).
    """
    limit_us = _read_service_variable("WATCHDOG_USEC")
    if not limit_us.isdigit() or _read_service_variable("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(limit_us) / 2_000_000 or None


RESTORING_MARK = "restoring"  # stands in a state folder while a restore renames files into it


class FolderLock:
    """File lock that keeps a folder to one process: `with FolderLock(folder):`.

    A second process gets ExitError(LOCKED) with the owner's id; a dead owner's lock is free. Raises ExitError(DISK) if
    the lock file cannot be created, and for a folder in which a restore was cut off half way, unless `restoring`.
    """

    def __init__(self, folder: Path, *, restoring: bool = False) -> None:
        self._path = folder / "lock"
        self._restoring = restoring
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ExitError(
                ExitCode.DISK, f"{self._path}: {error.strerror}; make the folder writable for this user"
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._fd, 20).decode(errors="replace").strip()
            os.close(self._fd)
            raise ExitError(
                ExitCode.LOCKED, f"{self._path.parent} is in use by process {owner}; stop it first"
            ) from None
        if not self._restoring and self._path.with_name(RESTORING_MARK).exists():
            os.close(self._fd)
            raise ExitError(
                ExitCode.DISK, f"a restore of {self._path.parent} was cut off half way: run it again, with --force"
            )
        with suppress(OSError):  # a full disk: the lock holds all the same, it only does not say by whom
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)


def read_lock_owner(folder: Path) -> int | None:
    """Process that holds the lock of a folder; None if none does, or it does not say."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(fd, 20).decode(errors="replace").strip()
        return int(owner) if owner.isdigit() else None
    finally:
        os.close(fd)
    return None
