"""Connections that hold a place and ask nothing are closed by the device, as they are by the hub; streams are not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api

IDLE_S = 0.1
LONG_S = 20.0  # for what ends after IDLE_S, on a busy machine
ASKED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def drip() -> AsyncIterator[bytes]:
    """One header line after another, never the last."""
    yield b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\n"
    while True:
        await asyncio.sleep(IDLE_S / 4)
        yield b"X-A: b\r\n"


async def send(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


CALLERS = {
    "says nothing": (send, 0),
    "half a head": (lambda: send(b"POST /v2/models/echo/infer HTTP/1.1\r\nX-A: "), 0),
    "a head that drips": (drip, 0),
    "nothing after its first request": (lambda: send(ASKED), 1),
    "half a head after its first request": (lambda: send(ASKED, b"GET /hea"), 1),
}


@pytest.mark.parametrize("name", CALLERS)
async def test_a_connection_without_a_whole_request_is_closed(name):
    pieces, answers = CALLERS[name]
    async with serve_api(MemoryAgent(), idle_s=IDLE_S) as session:
        port = session._base_url.port if session._base_url else 0
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def speak() -> None:
            with contextlib.suppress(ConnectionError):
                async for piece in pieces():
                    writer.write(piece)
                    await writer.drain()

        speaking = asyncio.create_task(speak())
        async with asyncio.timeout(LONG_S):
            try:
                read = await reader.read()
            except ConnectionResetError:  # closed while a piece was on its way
                read = b""
        speaking.cancel()
        writer.close()
        assert read.count(b"HTTP/1.1 ") == read.count(b"HTTP/1.1 200 ") == answers


@pytest.mark.further
async def test_a_stream_of_events_is_no_idle_connection():
    async with (
        serve_api(MemoryAgent(), idle_s=IDLE_S, heartbeat_s=IDLE_S) as session,
        session.get("/v1/events") as stream,
    ):
        beats = 0
        while beats < 5:
            line = await stream.content.readline()
            assert line, "the stream was closed"
            beats += line == b": beat\n"
