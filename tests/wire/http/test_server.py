"""A server takes a new connection however many idle ones it holds; refusals below routing are one line of JSON."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from aiohttp import web

from tests.wire.http.test_guards import certificate
from wire.http import server
from wire.http.access import ServerAccess
from wire.http.guards import open_site, security_middlewares
from wire.http.server import BoundedRunner, ConnectionLimits, choose_limits

READY = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CANARY = "canary-in-the-request"
MALFORMED = {
    "no HTTP": f"{CANARY}\r\n\r\n",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
    "a method of other signs": f"G@T{CANARY} / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an unknown version": f"GET /{CANARY} HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "a header line too long": f"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: {CANARY * 1000}\r\n\r\n",
    "a head too long": "GET / HTTP/1.1\r\nHost: localhost\r\n" + f"X-A: {CANARY * 300}\r\n" * 6,
    "a request line too long": f"GET /{CANARY * 1000} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header without a colon": f"GET / HTTP/1.1\r\nHost: localhost\r\n{CANARY}\r\n\r\n",
    "a header name with a space": f"GET / HTTP/1.1\r\nHost: localhost\r\nX {CANARY}: 1\r\n\r\n",
    "a zero byte": f"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: {CANARY}\0\r\n\r\n",
    "a signed length": f"POST /{CANARY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{{}}",
    "two lengths": f"POST /{CANARY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}",
    "a length and chunks": f"POST /{CANARY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown transfer encoding": f"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {CANARY}\r\n\r\n",
    "a target that is none": f"GET http://[{CANARY} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a foreign host in absolute form": f"GET http://{CANARY}.example/readyz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a foreign host for all of the server": f"OPTIONS http://{CANARY}.example HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "the whole server": "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tunnel": f"CONNECT {CANARY}.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a foreign host": f"GET /readyz HTTP/1.1\r\nHost: {CANARY}.example\r\n\r\n",
    "a route that fails": "GET /fails HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "no route": f"GET /{CANARY} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
}


class Contexts(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """A server's certificate for localhost, and a client that takes it."""
    chain, key = certificate(tmp_path_factory.mktemp("tls"))
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(chain, key)
    return Contexts(made, ssl.create_default_context(cafile=chain))


async def is_ready(_request: web.Request) -> web.Response:
    return web.Response(text="ready")


async def is_late(_request: web.Request) -> web.Response:
    await asyncio.sleep(0.3)
    return web.Response(text="ready")


async def fail(_request: web.Request) -> web.Response:
    raise RuntimeError(CANARY)


@contextlib.asynccontextmanager
async def serve(limits: ConnectionLimits | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server of one route that answers and one that fails; its port."""
    app = web.Application(middlewares=security_middlewares(ServerAccess(), None, frozenset()))
    app.add_routes([web.get("/readyz", is_ready), web.get("/slow", is_late), web.get("/fails", fail)])
    runner = BoundedRunner(app, access_log=None, keepalive_timeout=30)
    measure, server.measure_limits = server.measure_limits, lambda: limits or measure()
    try:
        await runner.setup()
    finally:
        server.measure_limits = measure
    url = await open_site(runner, ServerAccess(), tls)
    try:
        yield int(url.rpartition(":")[2])
    finally:
        await runner.cleanup()


async def exchange(port: int, sent: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    try:
        writer.write(sent)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            return head + await reader.readexactly(length)
    finally:
        writer.close()


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_refusal_is_one_line_of_json_that_names_neither_the_input_nor_the_program(name: str):
    async with serve() as port:
        answer = await exchange(port, MALFORMED[name].encode("latin-1"))
        assert (await exchange(port, READY)).endswith(b"ready")
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert int(head.split()[1]) >= 400
    assert "content-type: application/json" in head.lower()
    assert json.loads(body).keys() == {"error"}
    assert "\\n" not in body
    for leak in (CANARY, "aiohttp", "Python", "Server:"):
        assert leak not in answer.decode()


async def test_an_own_host_in_absolute_form_is_served_and_no_answer_names_the_program():
    async with serve() as port:
        answer = await exchange(port, READY.replace(b"/readyz", b"http://localhost/readyz"))
    assert answer.endswith(b"ready")
    assert b"server:" not in answer.lower()


async def open_many(
    count: int, port: int, begun: bytes, opened: contextlib.AsyncExitStack
) -> list[asyncio.StreamReader]:
    """Connections of callers that send `begun` and nothing more."""
    readers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.callback(writer.close)
        writer.write(begun)
        readers.append(reader)
    return readers


async def count_held(readers: list[asyncio.StreamReader]) -> int:
    """Number of connections that the server has not closed."""
    held = 0
    for reader in readers:
        with contextlib.suppress(ConnectionError):
            try:
                await asyncio.wait_for(reader.read(), 0.01)
            except TimeoutError:
                held += 1
    return held


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HT", b"POST /readyz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1"]
)
async def test_ten_times_more_idle_connections_than_it_may_hold_keep_no_caller_out(begun: bytes):
    limits = ConnectionLimits(total=20, per_network=15)
    async with serve(limits) as port, contextlib.AsyncExitStack() as opened:
        readers = await open_many(10 * limits.total, port, begun, opened)
        for _ in range(3):
            assert (await exchange(port, READY)).endswith(b"ready")
        assert await count_held(readers) <= limits.total


async def test_a_closed_connection_leaves_no_task_that_reads_the_rest_of_a_body_that_was_answered_without_it():
    begun = b"POST /readyz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1"
    async with serve() as port:
        before = len(asyncio.all_tasks())
        async with contextlib.AsyncExitStack() as opened:
            for reader in await open_many(20, port, begun, opened):
                assert (await reader.readline()).startswith(b"HTTP/1.1 405")
            assert len(asyncio.all_tasks()) == before + 20
        async with asyncio.timeout(5):  # aiohttp itself reads on for 10 s
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)


BEFORE_A_HEAD = {
    "nothing": b"",
    "a request": b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a body": b"POST /readyz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 600000\r\n\r\n" + b"x" * 600_000,
    "a request that is computed": b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("before", BEFORE_A_HEAD.values(), ids=BEFORE_A_HEAD)
async def test_all_lines_of_a_head_together_are_limited(before: bytes):
    line = b"X: " + b"a" * 1000 + b"\r\n"
    most = server.HEAD_BYTES // len(line)
    statuses = []
    async with serve() as port:
        for lines, end in ((line * (most - 1), b"\r\n"), (line * (most + 1), b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(before)
            await asyncio.sleep(0.02)
            writer.write(READY[:-2] + lines + end)
            async with asyncio.timeout(10):
                answered = await reader.read()
            statuses.append(re.findall(rb"HTTP/1[.]\d (\d+)", answered))
            writer.close()
            await writer.wait_closed()
    assert [found[-1] for found in statuses] == [b"200", b"431"]
    assert [len(found) for found in statuses] == [1 + bool(before)] * 2


HANDSHAKES = {"nothing": b"", "the head of a record": b"\x16\x03\x01\x02\x00", "no TLS at all": b"GET / HTTP/1.1\r\n"}


@pytest.mark.parametrize("begun", HANDSHAKES.values(), ids=HANDSHAKES)
async def test_ten_times_more_handshakes_that_never_end_keep_no_caller_out(certified: Contexts, begun: bytes):
    limits = ConnectionLimits(total=20, per_network=15)
    async with serve(limits, certified.server) as port, contextlib.AsyncExitStack() as opened:
        readers = await open_many(10 * limits.total, port, begun, opened)
        for _ in range(3):
            assert (await exchange(port, READY, certified.client)).endswith(b"ready")
        assert await count_held(readers) <= limits.total


async def test_a_handshake_that_takes_too_long_is_ended(certified: Contexts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT_S", 0.1)
    async with serve(tls=certified.server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


def shake_hands(port: int, tls: ssl.SSLContext) -> tuple[socket.socket, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A connection that has the server's part of the handshake, and has not sent its own last message yet."""
    sock = socket.create_connection(("127.0.0.1", port), 10)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = tls.wrap_bio(received, sent, server_hostname="localhost")
    while True:
        try:
            made.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(sent.read())
            received.write(sock.recv(65536))
        else:
            return sock, made, received, sent


async def test_a_request_in_one_segment_with_the_end_of_the_handshake_is_answered(certified: Contexts):
    async with serve(tls=certified.server) as port:

        def ask() -> bytes:
            sock, made, received, sent = shake_hands(port, certified.client)
            made.write(READY)
            sock.sendall(sent.read())  # the last message of the handshake and the request
            answer = b""
            while not answer.endswith(b"ready"):
                received.write(sock.recv(65536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer += made.read(65536)
            sock.close()
            return answer

        assert (await asyncio.wait_for(asyncio.to_thread(ask), 20)).startswith(b"HTTP/1.1 200")


async def test_a_server_that_stops_ends_handshakes_too(certified: Contexts):
    async with serve(tls=certified.server) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await exchange(port, READY, certified.client)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_request_that_is_computed_is_not_ended_for_a_new_connection():
    async with serve(ConnectionLimits(total=6, per_network=6)) as port, contextlib.AsyncExitStack() as opened:
        slow = asyncio.create_task(exchange(port, READY.replace(b"readyz", b"slow")))
        await asyncio.sleep(0.05)
        for _ in range(30):
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.callback(writer.close)
        assert (await slow).endswith(b"ready")


async def test_ten_addresses_that_keep_all_connections_busy_leave_some_to_another():
    async with serve(ConnectionLimits(total=62, per_network=46)) as port, contextlib.AsyncExitStack() as opened:
        for number in range(100):
            local = (f"127.0.0.{2 + number % 10}", 0)
            _reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
            opened.callback(writer.close)
            writer.write(READY.replace(b"readyz", b"slow"))
        assert (await exchange(port, READY)).endswith(b"ready")


@pytest.mark.parametrize("descriptors", [256, 1024, 65_536])
def test_databases_links_and_children_find_descriptors_left(descriptors: int):
    limits = choose_limits(descriptors, in_use=60, memory_bytes=1 << 40)
    assert limits.total + 60 <= descriptors - min(96, descriptors // 4)
    assert limits.per_network < limits.total
    alone = next(held for held in range(limits.total) if held + 1 > limits.count_allowed(held + 1))
    assert alone >= 0.7 * limits.total
    assert 4 * limits.at_once <= descriptors - limits.total - 60, "what is accepted while others are being closed"


@pytest.mark.parametrize("memory_bytes", [256 << 20, 1 << 30, 16 << 30])
def test_connections_take_half_of_the_memory_at_most(memory_bytes: int):
    limits = choose_limits(65_536, in_use=60, memory_bytes=memory_bytes)
    assert limits.total * server.CONNECTION_BYTES <= memory_bytes / 2
    assert limits.total >= 0.9 * memory_bytes / 2 / server.CONNECTION_BYTES, "and so much they may take"
    assert limits.per_network < limits.total


class PeerTransport(asyncio.Transport):
    """A transport of a peer at an address, which notes that it was aborted."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 40_000, 0, 0)})
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


async def test_addresses_of_one_ipv6_network_share_what_one_network_may_have():
    limits = ConnectionLimits(total=20, per_network=15)
    bounded = server.BoundedServer(limits, is_ready)
    others = [PeerTransport(address) for address in ("192.0.2.7", "2001:db8:0:2::1", "::ffff:192.0.2.8")]
    network = [PeerTransport(f"2001:db8:0:1::{number:x}") for number in range(1, 101)]
    for transport in (*others, *network):
        bounded.count_connection(bounded.make_handler(), transport)
    await asyncio.sleep(0)
    assert not any(transport.aborted for transport in others)
    assert sum(not transport.aborted for transport in network) <= limits.per_network
