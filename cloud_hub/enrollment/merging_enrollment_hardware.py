"""Which machines may enrol at all: a text file with one serial number per line, written by whoever buys the machines.

Rule: closed. A file that cannot be read allows nobody; it is read again when it changes.
"""

from pathlib import Path

from wire.process.exit_codes import Exit, ExitError

MAX_FILE_BYTES = 8 << 20


class HardwareList:
    """`path` None: every machine may enrol. Empty lines and lines that begin with # say nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._serials: frozenset[str] = frozenset()

    def check(self) -> None:
        """ExitError(CONFIG) if the file cannot be read now."""
        if self._path is not None and not self._fresh():
            raise ExitError(Exit.CONFIG, f"enrol.hardware_file: {self._path} cannot be read, or is too long")

    def allows(self, serial: str) -> bool:
        return self._path is None or (self._fresh() and serial in self._serials)

    def _fresh(self) -> bool:
        """Read what changed. False if it cannot be read."""
        if self._path is None:
            return True
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp != self._seen:
                self._serials = _read(self._path)
        except (OSError, UnicodeDecodeError):
            self._seen = None
            return False
        self._seen = stamp
        return True


def _read(path: Path) -> frozenset[str]:
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise OSError(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    lines = (line.strip() for line in raw.decode().splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))
