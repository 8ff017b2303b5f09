"""What a program and its children connect to and write, as the kernel sees it: `strace`, of a run of theirs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

_CALLS = (
    "connect,sendto,sendmsg,sendmmsg,open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,chdir,fchdir"
)
_WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT")
_LINE = re.compile(r"(\d+)\s+(.*)")
_UNFINISHED, _RESUMED = " <unfinished ...>", re.compile(r"<\.\.\. (\w+) resumed>")
_PLACE = re.compile(r'(?:\w+<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_CHANGED = re.compile(r'chdir\("((?:[^"\\]|\\.)*)"\)|fchdir\(\d+<([^>]*)>\)')
_ADDRESS = re.compile(
    r'sin_port=htons\((?P<port>\d+)\), sin_addr=inet_addr\("(?P<four>[^"]+)"\)'
    r'|sin6_port=htons\((?P<port6>\d+)\).*?inet_pton\(AF_INET6, "(?P<six>[^"]+)"'
    r'|sun_path=@?"(?P<unix>[^"]*)"'
)
_DNS_PORT = "53"


@dataclass(frozen=True)
class Behaviour:
    """`connections`: hosts, or paths of Unix sockets; `queries`: name servers that were asked; `files`: written.

    `calls`: how many were looked at, those that only read a file among them.
    """

    calls: int
    connections: frozenset[str]
    queries: tuple[str, ...]
    files: frozenset[str]


class Tracer:
    """Runs programs with an empty home and a temporary folder of their own, where nothing says that this is CI."""

    def __init__(self, folder: Path) -> None:
        self._traces = folder / "traces"
        self.home, self.temporary, self.work = folder / "home", folder / "tmp", folder / "work"
        for each in (self._traces, self.home, self.temporary, self.work):
            each.mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "SKERRY_DATA") if name in os.environ}
        return {**kept, "HOME": str(self.home), "TMPDIR": str(self.temporary), "PYTHONPATH": str(Path.cwd())}

    def run(self, *words: str | Path, timeout_s: float = 300.0) -> str:
        """Run a command to its end; its standard output."""
        done = subprocess.run(
            [*self._prefix("command"), *map(str, words)], cwd=self.work, env=self.environment, timeout=timeout_s,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def make_interpreter(self, name: str) -> Path:
        """A program to be started instead of Python, which it traces; its parent sees Python itself as its child."""
        path = self._traces / f"python-{name}"
        words = ["env", "-i", *(f"{key}={value}" for key, value in self.environment.items()), *self._prefix(name, "-D")]
        path.write_text(f'#!/bin/sh\nexec {shlex.join([*words, sys.executable])} "$@"\n')
        path.chmod(0o755)
        return path

    def _prefix(self, name: str, *more: str) -> list[str]:
        program = shutil.which("strace")
        assert program, "strace is missing: ./setup.sh dev installs it"
        out = str(self._traces / f"{name}.trace")
        return [program, "-f", "--seccomp-bpf", "-y", "-qq", "-s", "4096", "-e", f"trace={_CALLS}", "-e", "signal=none",
                *more, "-o", out]  # fmt: skip

    def read(self, name: str = "command") -> Behaviour:
        """What the program did until now."""
        connections: set[str] = set()
        queries: list[str] = []
        files: set[str] = set()
        folders: dict[str, str] = {}  # the working folder of each process that changed it
        calls = 0
        for process, call in _join_calls((self._traces / f"{name}.trace").read_text(errors="replace")):
            calls += 1
            found = _ADDRESS.search(call)
            folder = folders.get(process, str(self.work))
            if (changed := _CHANGED.match(call)) and call.endswith("= 0"):
                folders[process] = os.path.join(folder, changed[1] or changed[2])  # noqa: PTH118 - of another process
            elif found and (found["port"] or found["port6"]) == _DNS_PORT:
                queries.append(found["four"] or found["six"])
            elif found:
                connections.add(found["four"] or found["six"] or f"unix:{found['unix']}")
            elif path := _find_written(call):
                files.add(os.path.normpath(os.path.join(folder, path)))  # noqa: PTH118 - of another process
        return Behaviour(calls, frozenset(connections), tuple(queries), frozenset(files))

    def expand(self, pattern: str, state: Path) -> str:
        """A pattern of the page as it is here."""
        places = {"~/": f"{self.home}/", "TMPDIR/": f"{self.temporary}/", "STATE/": f"{state}/", "./": f"{self.work}/"}
        mark = next((mark for mark in places if pattern.startswith(mark)), "")
        return places.get(mark, "") + pattern.removeprefix(mark)


def find_unlisted(found: frozenset[str], patterns: list[str]) -> list[str]:
    return sorted(each for each in found if not any(fnmatchcase(each, pattern) for pattern in patterns))


def _join_calls(text: str) -> Iterator[tuple[str, str]]:
    """Each system call as one line, with its process, without those that failed to open a file."""
    open_calls: dict[str, str] = {}
    for line in text.splitlines():
        found = _LINE.match(line)
        if not found:
            continue
        pid, call = found.groups()
        if call.endswith(_UNFINISHED):
            open_calls[pid] = call.removesuffix(_UNFINISHED)
            continue
        if resumed := _RESUMED.match(call):
            call = open_calls.pop(pid, "") + call[resumed.end() :]
        yield pid, call
    yield from open_calls.items()


def _find_written(call: str) -> str:
    """The file that a call made, opened for writing or renamed to; "" for none."""
    name = call.partition("(")[0]
    failed = re.search(r"\) += -1 ", call)
    if failed or name in ("connect", "sendto", "sendmsg", "sendmmsg"):
        return ""
    if name.startswith("open") and not _WRITES.search(call):
        return ""
    places = _PLACE.findall(call)
    if not places:
        return ""
    folder: str
    path: str
    folder, path = places[-1] if name.startswith("rename") else places[0]
    return os.path.join(folder, path)  # noqa: PTH118 - paths of another process
