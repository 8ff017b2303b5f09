"""JSON lines as a sample source: each line is a sample, and gets a line back with its answer or a one-line reason.

Rule: a correction is a line of its own after its answer.
"""

import asyncio
import math
import os
import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec

from edge_agent.api.service import make_answer_json
from edge_agent.question.records import AnswerRecord, DisabledError, NoModelError, Sample
from edge_agent.sources.corrections import OwedCorrections
from edge_agent.sources.feed import SampleFeed
from models.bundle.manifest import InputSpec, is_text_input
from models.runtime.runner import Sample as SampleArray
from models.runtime.runner import SampleError, check_values
from models.runtime.text import encode_text
from wire.http.tensors import OipError, TensorHead, parse_json_tensor
from wire.process.logging import JsonLog, describe_error
from wire.process.tracing import begin_trace
from wire.text import strip_mark

MAX_LINE_BYTES = 1 << 20
MAX_OPEN_LINES = 32
_CHUNK_BYTES = 65536


class _SampleLine(msgspec.Struct, forbid_unknown_fields=True):
    """One JSON line. `x`: the sample, nested or flat, or a text; `id`: the caller's own, given back with the answer."""

    x: msgspec.Raw
    data_class: str | None = None
    id: str | int | None = None


_line_decoder = msgspec.json.Decoder(_SampleLine)


class LinesResult(msgspec.Struct):
    """What became of all lines. `owed`: answers whose correction had not come when the waiting was over."""

    answered: int = 0
    failed: int = 0
    corrected: int = 0
    owed: int = 0


class JsonLines:
    """Answers JSON lines, each with one JSON line: `{"x": [...], "data_class": "open", "id": "mine"}`.

    Up to 32 are answered at once, so answers come back as they are ready; `line` counts from 1. A correction is a line
    of its own after its answer, with the same `line`, `id` and `answer_id`, and `"kind": "correction"`.
    """

    def __init__(self, feed: SampleFeed, write: Callable[[bytes], None]) -> None:
        self._feed = feed
        self._write = write
        self._owed = OwedCorrections(feed.service)
        self._result = LinesResult()

    async def run(self, lines: AsyncIterator[bytes], wait_s: float = 0.0) -> LinesResult:
        """Answer all lines until they end, then wait up to `wait_s` seconds for corrections that are owed."""
        after = await self._feed.service.last_event()
        following = asyncio.create_task(self._owed.follow(after), name="line corrections")
        try:
            await self._answer_all(lines)
            self._result.owed = await self._owed.settle(wait_s)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        return self._result

    async def _answer_all(self, lines: AsyncIterator[bytes]) -> None:
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
        named: dict[str, Any] = {"line": number}
        try:
            asked = _parse_line(line)
            named |= {} if asked.id is None else {"id": asked.id}
            record = await self._feed.service.infer(self._parse_sample(asked))
        except SampleError as error:
            self._write_failure(named, str(error))
        except NoModelError:
            self._write_failure(named, "no_model: there is no model to answer with yet, or it was revoked")
        except DisabledError:
            self._write_failure(named, "disabled: the policy's mode answers nothing")
        except Exception as error:  # noqa: BLE001 - a defect of ours: told, and the next line has its turn
            JsonLog().defect("sample_defect", error)
            self._write_failure(named, f"defect: {describe_error(error)}")
        else:
            self._result.answered += 1
            self._write_line(named, make_answer_json(record, self._feed.service.manifest))
            self._owed.expect(record, partial(self._write_correction, named))
        finally:
            room.release()

    def _write_line(self, named: dict[str, Any], content: dict[str, Any]) -> None:
        self._write(msgspec.json.encode({**named, **content}) + b"\n")

    def _write_failure(self, named: dict[str, Any], error: str) -> None:
        self._result.failed += 1
        self._write_line(named, {"error": error})

    def _write_correction(self, named: dict[str, Any], record: AnswerRecord) -> None:
        self._result.corrected += 1
        self._write_line(named, make_answer_json(record, self._feed.service.manifest))

    def _parse_sample(self, asked: _SampleLine) -> Sample:
        """The line's sample in the model's shape and type. SampleError if it does not fit."""
        x = self._feed.parse_sample(partial(_parse_values, asked.x))
        data_class = self._feed.data_class if asked.data_class is None else asked.data_class
        return Sample(x, data_class, begin_trace(secrets.token_hex(16)))


def _parse_values(values: msgspec.Raw, spec: InputSpec) -> SampleArray:
    """The JSON numbers of a sample in this input's shape and type, or its text. SampleError if they do not fit it."""
    if is_text_input(spec):
        return _parse_text(values, spec)
    head = TensorHead("x", spec.dtype.value, list(spec.shape), {}, values)
    try:
        x = parse_json_tensor(head, math.prod(spec.shape))
    except OipError as error:
        raise SampleError(str(error)) from None
    check_values(x, spec)
    return x


def _parse_text(value: msgspec.Raw, spec: InputSpec) -> SampleArray:
    try:
        return encode_text(msgspec.json.decode(value, type=str), spec)
    except msgspec.DecodeError:
        raise SampleError(f"{spec.name}: a text is wanted") from None


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
    rest, first = bytearray(), True
    async for chunk in _read_chunks(fd):
        at = 0
        while (end := chunk.find(b"\n", at)) >= 0:
            rest += chunk[at:end]
            yield strip_mark(bytes(rest)) if first else bytes(rest)
            rest, first, at = bytearray(), False, end + 1
        rest += chunk[at:]
        del rest[MAX_LINE_BYTES + 1 :]
    if rest:
        yield strip_mark(bytes(rest)) if first else bytes(rest)


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
