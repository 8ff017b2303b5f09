"""Readers that are fed in pieces, and the support archive's redaction, take time in proportion to their input.

The limit is loose (a quadratic reader has a ratio of 4), and the processor's time is measured: other work on the
machine fails no test.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from cloud_hub.jobs.batches import split_lines
from cloud_hub.jobs.decisions import BatchLimits
from cloud_hub.llm.events import EventSplitter
from skerry_client.exchange.events import EventDecoder
from tests.growth import measure_growth
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
