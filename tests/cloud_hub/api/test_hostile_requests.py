"""Hostile bodies and connections end with a 4xx or a close, soon and in little memory."""

import asyncio
import contextlib
import gzip
import io
import time
import tracemalloc
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest

from tests.cloud_hub.doubles.api_site import Site, infer_body
from tests.examples import further

DEEP = 1_000_000
INFER = "/v2/models/digits/infer"
CODINGS = ("gzip", "br", "deflate", "zstd", "gzip, identity")
TAKING = (INFER, "/v1/enrol", "/v1/admin/invites", "/v1/admin/keys", "/v1/admin/ca", "/v2/repository/index")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path).open()
    yield opened
    await opened.close()


async def raw(
    site: Site, *pieces: bytes, pause_s: float = 0.0, within_s: float = 60.0, first_line: bool = False
) -> tuple[bytes, float]:
    """What a plain socket reads, and after how many seconds the server ended the connection (inf = it did not).

    `first_line`: only until the server has said that.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    began, read = time.perf_counter(), bytearray()

    async def listen() -> None:
        while chunk := await reader.read(65536):
            read.extend(chunk)
            if first_line and b"\n" in read:
                return

    async def speak() -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    ended = asyncio.create_task(listen())
    spoken = asyncio.create_task(speak())
    _, waiting = await asyncio.wait({ended} if first_line else {ended, spoken}, timeout=within_s)
    took = float("inf") if ended in waiting else time.perf_counter() - began
    for task in (ended, spoken):
        task.cancel()
    await asyncio.gather(ended, spoken, return_exceptions=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return bytes(read), took


def head(site: Site, *lines: str, path: str = INFER) -> bytes:
    port = site.url.rpartition(":")[2]
    token = site.admin["Authorization"]
    return "\r\n".join(
        (f"POST {path} HTTP/1.1", f"Host: localhost:{port}", f"Authorization: {token}", *lines, "", "")
    ).encode()


@cache
def made_bomb() -> bytes:
    """Ten megabytes in ten kilobytes."""
    return gzip.compress(bytes(10_000_000))


@pytest.mark.parametrize(
    ("path", "coding"),
    [
        (path, coding) if path == INFER or coding == "gzip" else further(path, coding)
        for path in TAKING
        for coding in CODINGS
    ],
)
async def test_a_bomb_is_never_unpacked(site, path, coding):
    bomb = made_bomb()
    headers = {**site.admin, "Content-Encoding": coding}
    tracemalloc.start()
    began = time.process_time()
    status, _ = await site.ask("POST", path, data=bomb[:4000], headers=headers)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert status == 415
    assert peak < 2_000_000
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b'{"inputs":' * (DEEP // 10),
        b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,2,2],"data":' + b"[" * DEEP,
        b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,2,2],"data":' + b"[" * DEEP + b"]" * DEEP + b"}]}",
        b'{"parameters":' + b'{"a":' * (DEEP // 5),
        b'{"inputs":[],"more":' + b"[" * DEEP + b"]" * DEEP + b"}",
    ],
)
async def test_json_a_million_deep_is_refused_in_bounded_time(tmp_path, body):
    site = await Site(tmp_path, max_body_bytes=16 << 20).open()
    began = time.process_time()
    status, said = await site.ask("POST", INFER, data=io.BytesIO(body))
    assert status == 400
    assert len(said["error"]) < 200
    assert time.process_time() - began < 2
    assert (await site.ask("POST", INFER, json=infer_body()))[0] == 200
    await site.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"a","id":"b","inputs":[%s]}',
        b'{"inputs":[],"inputs":[%s]}',
        b'{"inputs":[%s],"inp\\u0075ts":[%s]}',
        b'{"inputs":[{"name":"other","name":"image","datatype":"FP32","shape":[1,2,2],"data":[0,0,0,0]}]}',
        b'{"inputs":[%s],"parameters":{"priority":1,"priority":2}}',
        b'{"inputs":[%s],"outputs":[{"name":"label","parameters":{"binary_data":true,"binary_data":false}}]}',
    ],
)
async def test_a_key_that_stands_twice_is_refused(site, body):
    one = b'{"name":"image","datatype":"FP32","shape":[1,2,2],"data":[0,0,0,0]}'
    status, said = await site.ask("POST", INFER, data=body.replace(b"%s", one))
    assert (status, "twice" in said["error"]) == (400, True)
    assert site.hub.wishes == []


@pytest.mark.parametrize("path", TAKING)
async def test_a_gigabyte_in_chunks_ends_at_the_limit(site, path):
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    answer, _ = await raw(site, head(site, "Transfer-Encoding: chunked", path=path), *[chunk] * 40, first_line=True)
    assert b" 413 " in answer.splitlines()[0]


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"5;" + b"x" * 20_000 + b"\r\nhello\r\n0\r\n\r\n",
        b"ffffffffffffffffffffffffffffffff\r\nhello\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
    ],
)
async def test_chunks_of_a_bad_length_are_refused(site, body):
    answer, _ = await raw(site, head(site, "Transfer-Encoding: chunked") + body, within_s=1.0)
    assert b" 400 " in answer.splitlines()[0] or b" 408 " in answer.splitlines()[0]
    assert site.hub.wishes == []


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 4", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 4"),
        ("Content-Length: 4", "Content-Length: 5"),
        ("Content-Length: +4",),
        ("Content-Length: 4, 5",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding : chunked", "Content-Length: 4"),
        ("Transfer-Encoding: xchunked",),
    ],
)
async def test_a_pair_that_two_readers_split_differently_is_refused(site, lines):
    smuggled = b"0\r\n\r\nGET /v1/admin/devices HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer, _ = await raw(site, head(site, *lines) + smuggled, within_s=1.0)
    assert answer.count(b"HTTP/1.") == 1
    assert b" 400 " in answer.splitlines()[0]


@pytest.mark.further
async def test_a_head_that_drips_is_cut_off(site):
    """Slowloris: one header line after the other, never the last."""
    answer, ended_s = await raw(site, head(site)[:-2], *[b"X-A: b\r\n"] * 40, pause_s=0.1)
    assert answer == b""
    assert ended_s < 5


async def test_the_second_head_of_a_connection_may_not_drip_either(site):
    first = f"GET /healthz HTTP/1.1\r\nHost: localhost:{site.url.rpartition(':')[2]}\r\n\r\n".encode()
    answer, ended_s = await raw(site, first, head(site)[:-2], *[b"X-A: b\r\n"] * 40, pause_s=0.1)
    assert answer.count(b"HTTP/1.") == 1
    assert ended_s < 5


async def test_a_body_that_drips_is_408(site):
    answer, _ = await raw(site, head(site, "Content-Length: 1000"), *[b"x"] * 100, pause_s=0.1, first_line=True)
    assert b" 408 " in answer.splitlines()[0]


@pytest.mark.further
async def test_two_hundred_slow_connections_keep_nobody_out(site):
    port = int(site.url.rpartition(":")[2])
    slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
    for _, writer in slow:
        writer.write(b"POST / HTTP/1.1\r\nX-A: ")
    assert (await site.ask("POST", INFER, json=infer_body()))[0] == 200
    async with asyncio.timeout(60):
        await asyncio.gather(*(reader.read() for reader, _ in slow))
    for _, writer in slow:
        writer.close()


async def test_a_caller_that_hangs_up_is_counted_as_gone(site):
    site.hub.slow_s = 30.0
    _, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,2,2],"data":[0,0,0,0]}]}'
    writer.write(head(site, f"Content-Length: {len(body)}") + body)
    async with asyncio.timeout(60):
        while not site.hub.wishes:
            await asyncio.sleep(0.01)
        writer.close()
        while not site.hub.gone:
            await asyncio.sleep(0.01)
