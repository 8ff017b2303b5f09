"""Audit log of the web API: who changed what, and who was refused; JSON lines in two bounded files.

Rule: no token and no body is ever logged. Refusals are written at most twice a second in the long run and otherwise
counted into the next line, so that a flood of wrong tokens does not fill the disk.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from policies.serving.admission import TokenBucket, take_token

MAX_BYTES = 4 << 20  # of each of the two files
BURST, PER_S = 50.0, 2.0


class AuditEntry(msgspec.Struct, frozen=True):
    """One request in the audit log.

    `subject`: the names in its path; `missed`: refusals before it that were only counted.
    """

    at_ms: int
    caller: str
    tenant: str
    method: str
    route: str
    subject: str
    status: int
    address: str
    missed: int = 0


class AuditLog:
    """Writer and reader of the audit log. `path` None = discarded, for tests.

    A full disk stops nothing; `lost` counts.
    """

    def __init__(self, path: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.lost = 0
        self._path = path
        self._max_bytes = max_bytes
        self._bucket = TokenBucket(BURST, 0.0)
        self._missed = 0

    def write(self, entry: AuditEntry) -> None:
        """Append an entry; refusals (status from 400) beyond the rate limit are only counted."""
        if entry.status >= 400:
            after = take_token(self._bucket, PER_S, BURST, entry.at_ms / 1000)
            if after is None:
                self._missed += 1
                return
            self._bucket = after
        missed, self._missed = self._missed, 0
        self._append_line(msgspec.json.encode(msgspec.structs.replace(entry, missed=missed)) + b"\n")

    def last_entries(self, count: int) -> list[AuditEntry]:
        """The newest entries, oldest first; a line cut short by a crash is skipped."""
        lines = [line for path in self._list_files() for line in _read_lines(path)]
        return list(_parse_entries(lines[-count:]))

    def _list_files(self) -> tuple[Path, ...]:
        return (self._older_path(self._path), self._path) if self._path else ()

    def _older_path(self, path: Path) -> Path:
        return path.with_suffix(".1.jsonl")

    def _append_line(self, line: bytes) -> None:
        if self._path is None:
            return
        try:
            if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
                self._path.replace(self._older_path(self._path))
            if not self._path.exists():
                self._path.touch(mode=0o600)
            with self._path.open("ab") as file:
                file.write(line)
        except OSError:
            self.lost += 1


def _read_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError:
        return []


def _parse_entries(lines: list[bytes]) -> Iterator[AuditEntry]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=AuditEntry)
        except (msgspec.DecodeError, RecursionError):
            continue
