"""Sample sources beside the HTTP API: a watched folder of files, and JSON lines on a stream.

Rule: every file ends in `done/` or `failed/`, every line gets a line back, each with the answer or a one-line reason. A
crash between answer and move answers a file again, under a new id: at least once.
"""

import asyncio
import math
import os
import stat
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.api.image_files import SAMPLE_SUFFIXES, limit_file_bytes, parse_sample_file
from edge_agent.api.service import AnswerService, make_answer_json
from edge_agent.core.records import DisabledError, NoModelError, Sample
from models.bundle.manifest import InputSpec, Manifest
from models.runtime.runner import Sample as SampleArray
from models.runtime.runner import SampleError, check_values
from wire.http.tensors import OipError, TensorHead, parse_json_tensor
from wire.process.logging import JsonLog, describe_error

MAX_LINE_BYTES = 1 << 20
MAX_OPEN_LINES = 32
MAX_FILES_PER_SCAN = 64  # in one scan of the folder
_CHUNK_BYTES = 65536
_MAX_NAME_BYTES = 255  # of one file name, on every file system that counts bytes
_NUMBER_BYTES = 8  # for the number that a second file of one name gets
_RESULT_SUFFIX = ".json"


class SampleFeed(msgspec.Struct, frozen=True):
    """The agent that answers the samples, and the data class of samples that name none."""

    service: AnswerService
    data_class: str

    @property
    def manifest(self) -> Manifest:
        """Manifest of the model that answers now. NoModelError if there is none."""
        if self.service.manifest is None:
            raise NoModelError
        return self.service.manifest

    def parse_sample(self, parse: Callable[[InputSpec], SampleArray]) -> SampleArray:
        """Read a sample for the input of the model that answers. SampleError, of which the agent hears, if unfit."""
        try:
            return parse(self.manifest.input)
        except SampleError:
            self.service.on_sample_refused(parse)
            raise


class FolderWatcher:
    """Watches one folder by scanning it: this works on every file system, and costs one `scandir` a scan.

    Give files their final name when they are complete (write elsewhere or under a dot name, then rename). A file that
    is written in place is taken when its size and time did not change between two scans.
    """

    def __init__(self, path: Path, feed: SampleFeed, every_s: float, log: JsonLog) -> None:
        self._path = path
        self._feed = feed
        self._every_s = every_s
        self._log = log
        self._seen: dict[str, tuple[int, int]] = {}
        self._told: dict[str, tuple[str, dict[str, Any]]] = {}

    async def run(self) -> None:
        """Scan, answer and move files until cancelled.

        A folder that is missing for a while (a removed disk) is waited for.
        """
        while True:
            try:
                await self.scan_once()
            except OSError:
                self._log.warning("folder_unusable")
            await asyncio.sleep(self._every_s)

    async def scan_once(self) -> int:
        """Answer the files that are complete, oldest first, at most 64. Returns how many.

        OSError, after the last of them, if one could not be moved: it stays, and keeps no other from its turn.
        """
        for name in ("done", "failed"):
            (self._path / name).mkdir(exist_ok=True)
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
                if entry.name.startswith(".") or not entry.name.lower().endswith(SAMPLE_SUFFIXES):
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

    async def _answer_file(self, file: Path) -> tuple[str, dict[str, Any]] | None:
        """The folder that the file goes to, and its result; None while nothing is answered.

        Rule: whatever a file holds, it ends in `failed/` and never the process, which would meet it again at its start.
        """
        name = os.fsencode(file.name).decode(errors="replace")
        try:
            x = self._feed.parse_sample(partial(_read_sample_file, file))
            record = await self._feed.service.infer(Sample(x, self._feed.data_class))
        except DisabledError:
            return None
        except SampleError as error:
            return "failed", {"file": name, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - a defect of ours: told, and the next file has its turn
            self._log.error("sample_defect", error=describe_error(error))
            return "failed", {"file": name, "error": f"defect: {type(error).__name__}"}
        return "done", {"file": name, **make_answer_json(record, self._feed.service.manifest)}

    def _move_file(self, file: Path, where: str, result: dict[str, Any]) -> None:
        """Write the result first: a file in `done/` always has its answer beside it.

        An older file of that name is kept.
        """
        target = _find_free_path(file.parent / where / _shorten_name(file))
        target.with_name(target.name + _RESULT_SUFFIX).write_bytes(msgspec.json.encode(result) + b"\n")
        file.rename(target)
        self._seen.pop(file.name, None)


def _read_sample_file(file: Path, spec: InputSpec) -> SampleArray:
    """The sample in a file, for this input. SampleError if it does not fit it."""
    x = parse_sample_file(file.name, _read_plain_file(file, limit_file_bytes(spec)), spec)
    check_values(x, spec)
    return x


def _shorten_name(file: Path) -> str:
    """The name of a file, its stem cut where a number and the result's suffix behind it would be too long a name."""
    stem, suffix = os.fsencode(file.stem), os.fsencode(file.suffix)
    return os.fsdecode(stem[: _MAX_NAME_BYTES - len(suffix) - len(_RESULT_SUFFIX) - _NUMBER_BYTES] + suffix)


def _find_free_path(path: Path) -> Path:
    """A path that does not exist yet: this one, or one with a number before its suffix."""
    count, free = 1, path
    while free.exists():
        count += 1
        free = path.with_name(f"{path.stem}.{count}{path.suffix}")
    return free


def _read_plain_file(file: Path, max_bytes: int) -> bytes:
    """Read a plain file. SampleError for links, pipes, devices, and for what is too large for any sample."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SampleError(f"cannot be read: {error.strerror}") from None
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise SampleError("is not a plain file")
    with os.fdopen(handle, "rb") as opened:
        if facts.st_size > max_bytes:
            raise SampleError(f"{facts.st_size} bytes, more than any sample of this model")
        return opened.read(max_bytes)


class _SampleLine(msgspec.Struct, forbid_unknown_fields=True):
    """One JSON line. `x`: the sample, nested or flat; `id`: the caller's own, given back with the answer."""

    x: msgspec.Raw
    data_class: str | None = None
    id: str | int | None = None


_line_decoder = msgspec.json.Decoder(_SampleLine)


class JsonLines:
    """Answers JSON lines, each with one JSON line: `{"x": [...], "data_class": "open", "id": "mine"}`.

    Up to 32 are answered at once, so answers come back as they are ready; `line` counts from 1.
    """

    def __init__(self, feed: SampleFeed, write: Callable[[bytes], None]) -> None:
        self._feed = feed
        self._write = write

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Answer all lines until they end and every one is answered."""
        room = asyncio.Semaphore(MAX_OPEN_LINES)
        number = 0
        async with asyncio.TaskGroup() as tasks:
            async for line in lines:
                number += 1
                if line.strip():
                    await room.acquire()
                    tasks.create_task(self._answer_one(line, number, room), name=f"line {number}")

    async def _answer_one(self, line: bytes, number: int, room: asyncio.Semaphore) -> None:
        """Answer one line and write the result. `room` is given back whatever happens."""
        try:
            try:
                told = await self._answer_line(line)
            except Exception as error:  # noqa: BLE001 - a defect of ours: told, and the next line has its turn
                told = {"error": f"defect: {type(error).__name__}"}
            self._write(msgspec.json.encode({"line": number, **told}) + b"\n")
        finally:
            room.release()

    async def _answer_line(self, line: bytes) -> dict[str, Any]:
        """The JSON object that answers a line; a failure is its `error`, beside the caller's `id` if there was one."""
        try:
            asked = _parse_line(line)
        except SampleError as error:
            return {"error": str(error)}
        own = {} if asked.id is None else {"id": asked.id}
        try:
            record = await self._feed.service.infer(self._parse_sample(asked))
        except SampleError as error:
            return {**own, "error": str(error)}
        except NoModelError:
            return {**own, "error": "no_model: there is no model to answer with yet, or it was revoked"}
        except DisabledError:
            return {**own, "error": "disabled: the policy's mode answers nothing"}
        return {**own, **make_answer_json(record, self._feed.service.manifest)}

    def _parse_sample(self, asked: _SampleLine) -> Sample:
        """The line's sample in the model's shape and type. SampleError if it does not fit."""
        x = self._feed.parse_sample(partial(_parse_values, asked.x))
        return Sample(x, self._feed.data_class if asked.data_class is None else asked.data_class)


def _parse_values(values: msgspec.Raw, spec: InputSpec) -> SampleArray:
    """The JSON numbers of a sample in this input's shape and type. SampleError if they do not fit it."""
    head = TensorHead("x", spec.dtype.value, list(spec.shape), {}, values)
    try:
        x = parse_json_tensor(head, math.prod(spec.shape))
    except OipError as error:
        raise SampleError(str(error)) from None
    check_values(x, spec)
    return x


def _parse_line(line: bytes) -> _SampleLine:
    """Decode one line. SampleError says why it is not of the form `{"x": [...]}`."""
    if len(line) > MAX_LINE_BYTES:
        raise SampleError(f"a line of more than {MAX_LINE_BYTES} bytes")
    try:
        return _line_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SampleError(f'not a line of the form {{"x": [...]}}: {error}') from None
    except RecursionError:
        raise SampleError("the JSON is nested too deeply") from None


async def read_lines(fd: int) -> AsyncIterator[bytes]:
    """Lines of a pipe, terminal or file. An over-long one is cut to one byte too many, and refused by its parser."""
    rest = b""
    async for chunk in _read_chunks(fd):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
        rest = rest[: MAX_LINE_BYTES + 1]
    if rest:
        yield rest


async def _read_chunks(fd: int) -> AsyncIterator[bytes]:
    """Bytes as they come, without a thread: a thread that waits in `read` could not be stopped."""
    while True:
        await _wait_readable(fd)
        chunk = os.read(fd, _CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def _wait_readable(fd: int) -> None:
    """Wait until a read would not block.

    One registration for each read: a wake-up left over from an earlier one would block the whole loop in `read`.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:
        await asyncio.sleep(0)  # a plain file cannot be polled, and never lets its reader wait
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
