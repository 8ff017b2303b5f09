"""Outputs into files: a folder of JSON files, and a file of JSON lines that is rotated.

Rule: a reader never meets half a record: files appear whole under their name, and a line that was cut by a crash or a
full disk is taken away before the next one is written.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from edge_agent.outputs.delivery import DeliveryError, OutputMessage
from edge_agent.outputs.settings import OutputSection
from edge_agent.question.records import AnswerKind

_TAIL_BYTES = 1 << 20  # how far back the end of the last whole line is looked for


class FolderOutput:
    """Writes each record as `ANSWER_ID.json`, a correction as `ANSWER_ID.correction.json`.

    The folder is its reader's to empty: while `max_files` lie in it nothing is written, and nothing is lost either.
    """

    def __init__(self, section: OutputSection) -> None:
        self.trouble = ""
        self._folder = Path(section.path)
        self._max_files = section.max_files

    async def run(self) -> None:
        """Nothing to keep."""

    async def send(self, batch: Sequence[OutputMessage]) -> Mapping[str, int]:
        """Write the records in a thread. DeliveryError if the folder is full, or the disk refuses."""
        try:
            await asyncio.to_thread(self._write_all, batch)
        except OSError as error:
            raise DeliveryError(f"{self._folder}: {error.strerror}") from None
        return {}

    def _write_all(self, batch: Sequence[OutputMessage]) -> None:
        self._folder.mkdir(exist_ok=True)
        with os.scandir(self._folder) as entries:
            room = self._max_files - sum(1 for each in entries if each.name.endswith(".json"))
        for message in batch:
            path = self._folder / _file_name(message)
            if room <= 0 and not path.exists():
                raise DeliveryError(f"{self._folder}: {self._max_files} files lie there; take some away")
            temporary = path.with_name(f".{path.name}")
            temporary.write_bytes(message.body + b"\n")
            temporary.replace(path)
            room -= 1


def _file_name(message: OutputMessage) -> str:
    correction = ".correction" if message.record.kind is AnswerKind.CORRECTION else ""
    return f"{message.record.id}{correction}.json"


class LinesOutput:
    """Appends each record as one line; a file of `max_bytes` becomes `PATH.1`, and `keep` former ones are kept."""

    def __init__(self, section: OutputSection) -> None:
        self.trouble = ""
        self._path = Path(section.path)
        self._max_bytes = section.max_bytes
        self._keep = section.keep

    async def run(self) -> None:
        """Nothing to keep."""

    async def send(self, batch: Sequence[OutputMessage]) -> Mapping[str, int]:
        """Append the records in a thread. DeliveryError if the disk refuses."""
        try:
            await asyncio.to_thread(self._append, b"".join(message.body + b"\n" for message in batch))
        except OSError as error:
            raise DeliveryError(f"{self._path}: {error.strerror}") from None
        return {}

    def _append(self, lines: bytes) -> None:
        with self._path.open("ab") as file:
            whole = _cut_to_whole_lines(file.fileno(), self._path)
            try:
                file.write(lines)
                file.flush()
            except OSError:
                os.ftruncate(file.fileno(), whole)
                raise
            size = whole + len(lines)
        if size >= self._max_bytes:
            self._rotate()

    def _rotate(self) -> None:
        """Rename the file, and those before it; the oldest goes."""
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._keep + 1))]
        for older, newer in reversed(list(zip(names[1:], names, strict=False))):
            if newer.exists():
                newer.replace(older)
        if not self._keep:
            self._path.unlink()


def _cut_to_whole_lines(fd: int, path: Path) -> int:
    """Take away the piece of a line at the end of a file; returns its size then."""
    size = os.fstat(fd).st_size
    if not size:
        return 0
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
    if not tail.endswith(b"\n"):
        size -= len(tail) - (tail.rfind(b"\n") + 1)
        os.ftruncate(fd, size)
    return size
