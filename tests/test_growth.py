"""Whatever reads outside input takes time and memory in proportion to it, and every such reader is tried.

`tests/growth` finds the readers and the regular expressions in the source and holds the hostile inputs. The processor's
time is measured, and again before a test fails: other work on the machine fails none. `python -m tests.growth` prints
the figures.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cloud_hub.jobs.batches import split_lines
from cloud_hub.jobs.decisions import BatchLimits
from cloud_hub.llm.events import EventSplitter
from skerry_client.exchange.events import EventDecoder
from tests import ROOT
from tests.growth import measure_growth
from tests.growth.cases import Case, list_cases
from tests.growth.exempt import EXEMPT
from tests.growth.readers import Reader, find_in, find_readers
from tests.growth.regexes import EXEMPT as EXEMPT_REGEXES
from tests.growth.regexes import Regex, find_regexes, has_long_repeat, measure_slowness
from tests.growth.shapes import Shape, repeat
from tests.growth.sweep import find_unread, measure_cases
from wire.process.support import redact
from wire.transport.packets import SessionOptions
from wire.transport.session import MqttSession
from wire.transport.websocket import FrameReader

MOST_RATIO = 3.0
TRIES = 3
SIZE = 100_000
PIECE = 16


def cut(data: bytes) -> Iterator[bytes]:
    return (data[at : at + PIECE] for at in range(0, len(data), PIECE))


def assert_not_quadratic(read: Callable[[bytes], object], make: Callable[[int], bytes]) -> None:
    ratios = []
    for _ in range(TRIES):
        ratios.append(measure_growth(read, make, SIZE, runs=3).ratio)
        if ratios[-1] <= MOST_RATIO:
            return
    raise AssertionError(f"twice the input took {ratios} times as long")


def feed_events(data: bytes) -> None:
    decoder = EventDecoder()
    for piece in cut(data):
        decoder.feed(piece)


def feed_engine_events(data: bytes) -> None:
    splitter = EventSplitter()
    for piece in cut(data):
        splitter.split(piece)


def feed_broker(data: bytes) -> None:
    session = MqttSession(SessionOptions("a"), 0.0)
    session.receive_data(b"\x20\x03\x00\x00\x00")
    for piece in cut(data):
        session.receive_data(piece)


def feed_batch(data: bytes) -> None:
    async def send() -> AsyncIterator[bytes]:
        for piece in cut(data):
            yield piece

    async def count() -> int:
        limits = BatchLimits(max_bytes=1 << 30, max_line_bytes=1 << 30)
        return sum([1 async for _ in split_lines(send(), limits)])

    asyncio.run(count())


PIECEMEAL: dict[str, tuple[Callable[[bytes], None], Callable[[int], bytes]]] = {
    "a client's event of one long line": (feed_events, lambda size: b"data: " + b"a" * size),
    "a client's event of many lines": (feed_events, lambda size: b"data: a\n" * (size // 8)),
    "an engine's event of one long line": (feed_engine_events, lambda size: b"data: " + b"a" * size),
    "a broker's message of one packet": (feed_broker, lambda size: b"\x30\xff\xff\x7f\x00\x01a\x00" + b"a" * size),
    "a batch of one long line": (feed_batch, lambda size: b"a" * size),
    "a batch of empty lines": (feed_batch, lambda size: b"\n" * size),
}
SECRETS = {
    "letters": "a", "blank lines": "\n", "blanks": " ", "beginnings of keys": "-----BEGIN PRIVATE KEY-----",
    "ends of keys": "-----END ", "names of secrets": "token", "secrets": "token=\n", "addresses": "a://b@",
    "bearers": "bearer  ", "quotes": '"url', "invites": "skerry1:",
}  # fmt: skip


@pytest.mark.further
@pytest.mark.parametrize("stream", PIECEMEAL)
def test_a_stream_in_small_pieces_is_read_in_time_linear_in_its_length(stream: str) -> None:
    assert_not_quadratic(*PIECEMEAL[stream])


@pytest.mark.further
def test_many_small_frames_in_one_read_take_time_linear_in_their_number() -> None:
    assert_not_quadratic(lambda data: FrameReader().feed(data), lambda size: b"\x82\x01a" * (size * 10 // 3))


@pytest.mark.further
@pytest.mark.parametrize("unit", SECRETS)
def test_secrets_are_taken_out_in_time_linear_in_the_text(unit: str) -> None:
    text = SECRETS[unit]
    assert_not_quadratic(lambda data: redact(data.decode()), lambda size: (text * (size // 4 // len(text))).encode())


def test_a_private_key_that_was_cut_off_is_redacted_to_the_end() -> None:
    assert redact("a\n-----BEGIN PRIVATE KEY-----\nMIGHAgEA\nbcde") == "a\n[redacted]"


def test_every_reader_of_outside_input_is_tried_or_exempt_with_a_reason() -> None:
    exempt = {name for names in EXEMPT.values() for name in names}
    unread = set(find_unread(list_cases(), find_readers()))
    assert sorted(unread - exempt) == [], "add a case to tests/growth/cases.py, or a reason to tests/growth/exempt.py"
    assert sorted(exempt - unread) == [], "these are tried or gone: take them out of tests/growth/exempt.py"


def test_memory_above_eight_bytes_a_byte_has_a_limit_of_the_input_and_a_reason() -> None:
    loose = [case for case in list_cases() if case.bytes_per_byte > 8]
    assert [case.name for case in loose if not case.why or case.limit > 1 << 30] == []


def test_every_reader_takes_time_and_memory_linear_in_its_input() -> None:
    assert [line for found in measure_cases(list_cases()) for line in found.faults] == []


@pytest.mark.heavy
@pytest.mark.timeout(3000)
def test_every_reader_takes_time_and_memory_linear_in_every_hostile_input() -> None:
    assert [line for found in measure_cases(list_cases(), full=True) for line in found.faults] == []


def test_every_regular_expression_takes_time_linear_in_its_text() -> None:
    tried = [each for each in find_regexes() if each.key not in EXEMPT_REGEXES and has_long_repeat(each)]
    assert [str(found.regex) for found in map(measure_slowness, tried) if found.ratio > 2.2] == []


@pytest.mark.further
@pytest.mark.timeout(600)
def test_every_regular_expression_takes_time_linear_in_every_text_of_its_parts() -> None:
    found = [measure_slowness(each, full=True) for each in find_regexes() if each.key not in EXEMPT_REGEXES]
    assert [str(each.regex) for each in found if each.ratio > 2.2] == []


def split_lines_slowly(data: bytes) -> None:
    buffer = data
    while b"\n" in buffer:
        _, buffer = buffer.split(b"\n", 1)


def keep_each_sign(data: bytes) -> list[list[int]]:
    return [[each] for each in data]


def test_a_quadratic_reader_and_one_that_keeps_too_much_are_found() -> None:
    newlines = (Shape("new lines", repeat(b"\n")),)
    slow, large = measure_cases(
        [
            Case("slow", split_lines_slowly, text=False, extra=newlines),
            Case("large", keep_each_sign, text=False, extra=newlines, limit=1 << 13),
        ]
    )
    assert slow.ratio.value > 2.2, slow
    assert "bytes a byte" in "".join(large.faults), large


@pytest.mark.parametrize("pattern", [r"\s*=\s*$", r'"(?:[^"\\]|\\.)*"', r"<!--.*-->", r"(a|a)*c"])
def test_a_regular_expression_that_backtracks_is_found(pattern: str) -> None:
    assert measure_slowness(Regex("planted", pattern, 0, "search"), full=True).ratio > 2.2


def test_the_rule_finds_a_reader_by_its_name_and_by_what_it_calls(tmp_path: Path) -> None:
    source = ROOT / "wire/text.py"
    assert [each.name for each in find_in(source)] == ["wire.text:decode_text"]
    planted = (
        "def parse_thing(data: bytes) -> int: ...\n"
        "def look(data: bytes) -> object:\n    return json.loads(data)\n"
        "def read_row(row: sa.Row[Any]) -> int: ...\n"
        "def add(one: int) -> int: ...\n"
    )
    file = tmp_path / "planted.py"
    file.write_text(planted)
    assert [each.name.rpartition(":")[2] for each in find_in(file)] == ["parse_thing", "look"]
    assert find_unread([], [Reader("a:b", file, 1)]) == ["a:b"]
