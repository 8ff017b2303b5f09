"""A watched folder of sample files.

Rule: every file ends in `done/` or `failed/`, with the answer or a one-line reason; a correction follows as
NAME.correction.json. A crash between answer and move answers a file again, under a new id: at least once.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from edge_agent.api.service import make_answer_json
from edge_agent.question.records import AnswerRecord, AnswerSource, DisabledError, Sample
from edge_agent.sources.corrections import MAX_OWED, OwedCorrections
from edge_agent.sources.counts import DropReason, SourceCounts, SourceState
from edge_agent.sources.feed import PreparationError, SampleFeed
from edge_agent.sources.files.readers import FILE_SUFFIXES, read_sample_file
from models.bundle.manifest import InputSpec
from models.runtime.runner import Sample as SampleArray
from models.runtime.runner import SampleError
from wire.process.logging import JsonLog, describe_error
from wire.process.tracing import begin_trace

MAX_FILES_PER_SCAN = 64  # in one scan of the folder
MAX_NAMES = 1024  # whose last numbers are remembered
PRUNE_EVERY_S = 60.0
_MAX_NAME_BYTES = 255  # of one file name, on every file system that counts bytes
_NUMBER_BYTES = 14  # for the numbers that a second file of one name gets, and each of its samples
_RESULT_SUFFIX = ".json"
_CORRECTION_SUFFIX = ".correction.json"
_OWED_S = 8 * 86_400.0  # longer than any question stays open; corrections of older answers are not looked for


class KeptFiles(NamedTuple):
    """How many files a folder keeps, results among them, and how many bytes of them; 0 = no limit."""

    max_files: int = 0
    max_bytes: int = 0


KEEP_ALL = KeptFiles()


class _FileAnswer(NamedTuple):
    """The folder that a file goes to, a result for each of its samples, and the answers if it has any."""

    where: str
    results: list[dict[str, Any]]
    answers: list[AnswerRecord]


class FolderWatcher:
    """Watches one folder by scanning it: this works on every file system, and costs one `scandir` a scan.

    Give files their final name when they are complete (write elsewhere or under a dot name, then rename). A file that
    is written in place is taken when its size and time did not change between two scans. `done`: what `done/` keeps.
    """

    def __init__(self, path: Path, feed: SampleFeed, every_s: float, log: JsonLog, done: KeptFiles = KEEP_ALL) -> None:
        self._path = path
        self._done = done
        self._names = FreeNames()
        self._feed = feed
        self._every_s = every_s
        self._log = log
        self._counts = SourceCounts()
        self._usable = True
        self._seen: dict[str, tuple[int, int]] = {}
        self._told: dict[str, _FileAnswer] = {}
        self._owed = OwedCorrections(feed.service)
        self._corrections: list[tuple[Path, dict[str, Any]]] = []  # to be written by the next scan

    async def run(self) -> None:
        """Scan, answer and move files until cancelled, and write the corrections of answers, earlier starts' too.

        A folder that is missing for a while (a removed disk) is waited for.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._owed.follow(await self._feed.service.last_event()), name="folder corrections")
            tasks.create_task(self._scan_forever(), name="folder scans")
            if self._done != KEEP_ALL:
                tasks.create_task(self._prune_forever(), name="folder pruning")

    async def _scan_forever(self) -> None:
        restored = False
        while True:
            try:
                if not restored:
                    await self.restore_owed()
                restored = True
                await self.scan_once()
                self._usable = True
            except OSError:
                self._usable = False
                self._log.warning("folder_unusable")
            await asyncio.sleep(self._every_s)

    async def _prune_forever(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # the folder is away: the scans say so
                await asyncio.to_thread(prune_folder, self._path / "done", self._done)
            await asyncio.sleep(PRUNE_EVERY_S)

    def to_json(self) -> dict[str, Any]:
        """The folder's entry in the status."""
        state = SourceState.UP if self._usable else SourceState.AWAY
        return {"state": state.value, "error": "" if self._usable else "folder_unusable", **self._counts.to_json()}

    def _count(self, reason: DropReason | None) -> None:
        """Count a file that was answered (None), or that was not, and why."""
        self._counts.received += 1
        if reason is None:
            self._counts.answered += 1
        else:
            self._counts.drop(reason)

    async def restore_owed(self) -> None:
        """Expect the corrections of answers in `done/` that have none yet, and take those that came meanwhile."""
        for target, answer_id in await asyncio.to_thread(_find_uncorrected, self._path / "done"):
            records = await self._feed.service.wait(answer_id, 0.0)
            for record in records[:1]:
                self._expect_correction(record, target)
            for record in records:
                self._owed.offer(record)

    async def scan_once(self) -> int:
        """Write the corrections that came, then answer complete files, oldest first, at most 64. Returns how many.

        OSError, after the last of them, if one could not be moved: it stays, and keeps no other from its turn.
        """
        for name in ("done", "failed"):
            (self._path / name).mkdir(exist_ok=True)
        while self._corrections:
            target, correction = self._corrections[0]
            _write_json(target.with_name(target.name + _CORRECTION_SUFFIX), correction)
            self._corrections.pop(0)
        ripe, refused = self._find_complete(), None
        for file in ripe:
            try:
                await self._process_file(file)
            except OSError as error:
                refused = error
        if refused is not None:
            raise refused
        return len(ripe)

    def _find_complete(self) -> list[Path]:
        """Sample files that did not change since the last scan, oldest first.

        Names that begin with a dot are left alone.
        """
        found: dict[str, tuple[int, int]] = {}
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.name.lower().endswith(FILE_SUFFIXES):
                    continue
                facts = entry.stat(follow_symlinks=False)
                found[entry.name] = (facts.st_mtime_ns, facts.st_size)
        ripe = [name for name, facts in found.items() if self._seen.get(name) == facts]
        self._told = {name: told for name, told in self._told.items() if name in ripe}  # another file: another answer
        self._seen = found
        return [
            self._path / name for name in sorted(ripe, key=lambda name: (found[name][0], name))[:MAX_FILES_PER_SCAN]
        ]

    async def _process_file(self, file: Path) -> None:
        """Answer a file and move it.

        If the disk refuses the result, the answer is kept so that it is not given again.
        """
        told = self._told.get(file.name) or await self._answer_file(file)
        if told is None:
            return
        self._told[file.name] = told
        self._move_file(file, *told)
        del self._told[file.name]

    async def _answer_file(self, file: Path) -> _FileAnswer | None:
        """The folder that the file goes to, its results, and its answers if any; None while nothing is answered.

        Rule: whatever a file holds, it ends in `failed/` and never the process, which would meet it again at its start.
        """
        name = _printable_name(file)
        try:
            records = [await self._answer_sample(parse) for parse in await read_sample_file(file, self._feed)]
        except DisabledError:
            return None
        except SampleError as error:
            self._count(DropReason.UNPREPARED if isinstance(error, PreparationError) else DropReason.UNFIT)
            return _FileAnswer("failed", [{"file": name, "error": str(error)}], [])
        except Exception as error:  # noqa: BLE001 - a defect of ours: told, and the next file has its turn
            self._count(DropReason.DEFECT)
            self._log.defect("sample_defect", error)
            return _FileAnswer("failed", [{"file": name, "error": f"defect: {describe_error(error)}"}], [])
        for _ in records:
            self._count(None)
        manifest = self._feed.service.manifest
        return _FileAnswer(
            "done", [{"file": name, **make_answer_json(record, manifest)} for record in records], records
        )

    async def _answer_sample(self, parse: Callable[[InputSpec], SampleArray]) -> AnswerRecord:
        x = self._feed.parse_sample(parse)
        trace = begin_trace(secrets.token_hex(16))
        return await self._feed.service.infer(Sample(x, self._feed.data_class, trace))

    def _move_file(self, file: Path, where: str, results: list[dict[str, Any]], answers: list[AnswerRecord]) -> None:
        """Write the results first: a file in `done/` always has its answers beside it.

        Those of a file of several samples are numbered: NAME.1.json. An older file of that name is kept.
        """
        target = self._names.find_free(file.parent / where / _shorten_name(file))
        count = len(results)
        names = [
            target.with_name(f"{target.name}.{place}" if count > 1 else target.name) for place in range(1, count + 1)
        ]
        for name, result in zip(names, results, strict=True):
            _write_json(name.with_name(name.name + _RESULT_SUFFIX), result)
        file.rename(target)
        self._seen.pop(file.name, None)
        for name, answer in zip(names, answers, strict=False):
            self._expect_correction(answer, name)

    def _expect_correction(self, answer: AnswerRecord, target: Path) -> None:
        """Have the correction of the answer to `target`, a file in `done/`, written by the scan after it came."""

        def note(record: AnswerRecord) -> None:
            correction = make_answer_json(record, self._feed.service.manifest)
            self._corrections.append((target, {"file": _printable_name(target), **correction}))

        self._owed.expect(answer, note)


def _printable_name(file: Path) -> str:
    return os.fsencode(file.name).decode(errors="replace")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.encode(content) + b"\n")


class _KeptAnswer(msgspec.Struct):
    """The fields of an answer in `done/` that say whether a correction may come."""

    answer_id: str
    escalation_id: str = ""
    source: str = ""


def _find_uncorrected(done: Path) -> list[tuple[Path, str]]:
    """The answered files in `done/`, newest first, whose correction may still come, each with its answer's id."""
    if not done.is_dir():
        return []
    with os.scandir(done) as entries:
        times = {entry.name: entry.stat(follow_symlinks=False).st_mtime for entry in entries if entry.is_file()}
    oldest = time.time() - _OWED_S
    results = [
        name
        for name, at in times.items()
        if at >= oldest and name.endswith(_RESULT_SUFFIX) and not name.endswith(_CORRECTION_SUFFIX)
    ]
    found: list[tuple[Path, str]] = []
    for name in sorted(results, key=lambda name: times[name], reverse=True)[:MAX_OWED]:
        target = done / name.removesuffix(_RESULT_SUFFIX)
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            kept = msgspec.json.decode((done / name).read_bytes(), type=_KeptAnswer)
            if (
                kept.escalation_id
                and kept.source == AnswerSource.LOCAL
                and target.name + _CORRECTION_SUFFIX not in times
            ):
                found.append((target, kept.answer_id))
    return found


def _shorten_name(file: Path) -> str:
    """The name of a file, its stem cut where a number and the longest suffix of ours would make it too long a name."""
    stem, suffix = os.fsencode(file.stem), os.fsencode(file.suffix)
    return os.fsdecode(stem[: _MAX_NAME_BYTES - len(suffix) - len(_CORRECTION_SUFFIX) - _NUMBER_BYTES] + suffix)


class FreeNames:
    """Finds names that are not taken, in a few looks however many files of one name there are."""

    def __init__(self) -> None:
        self._last: dict[Path, int] = {}  # number that the last file of a name got

    def find_free(self, path: Path) -> Path:
        """A path that does not exist yet: this one, or one with a number before its suffix."""
        number = self._last.pop(path, 1)  # it may have been found and not used
        if _number_path(path, number).exists():
            number = _search_free(path, number)
        if len(self._last) >= MAX_NAMES:
            self._last.pop(next(iter(self._last)))
        self._last[path] = number
        return _number_path(path, number)


def _search_free(path: Path, taken: int) -> int:
    """A free number above one that is taken whose predecessor is taken: twice as far each time, then by halves."""
    step = 1
    while _number_path(path, taken + step).exists():
        taken, step = taken + step, 2 * step
    free = taken + step
    while free - taken > 1:
        middle = (taken + free) // 2
        if _number_path(path, middle).exists():
            taken = middle
        else:
            free = middle
    return free


def _number_path(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")


def prune_folder(folder: Path, kept: KeptFiles) -> int:
    """Delete the oldest files of a folder beyond what it keeps; returns how many. OSError if it cannot be read."""
    with os.scandir(folder) as entries:
        listed = [(entry.stat(follow_symlinks=False), entry.name) for entry in entries]
    found = sorted((each.st_mtime_ns, name, each.st_size) for each, name in listed)
    files, size_bytes, deleted = len(found), sum(size for _, _, size in found), 0
    for _, name, size in found:
        if not (0 < kept.max_files < files or 0 < kept.max_bytes < size_bytes):
            break
        with contextlib.suppress(OSError):  # a newer one goes in its place
            (folder / name).unlink()
            files, size_bytes, deleted = files - 1, size_bytes - size, deleted + 1
    return deleted
