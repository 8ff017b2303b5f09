"""Runner of a server on aiohttp: connections within descriptors and memory, refusals below routing in one form.

Rule: a new connection is always taken. Where there are too many, the oldest of the network that holds most is closed
whose caller has sent no request, or not all of it, or has not completed its TLS handshake. So idle connections never
keep a caller out, nor the rest of the process from its descriptors. A network is an address, or all of an IPv6
network's (/64), as one caller may have them. Rule: what cannot be parsed is answered with
`{"error": one line}`, which repeats nothing of it.
"""

import asyncio
import resource
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import (
    BadHttpMethod,
    ContentLengthError,
    HttpProcessingError,
    LineTooLong,
    TransferEncodingError,
)
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import _ErrInfo

from wire.http.callers import UNIX, find_network
from wire.http.path_prefix import PathPrefix
from wire.process.logging import JsonLog
from wire.process.memory import read_memory_bytes

HANDSHAKE_TIMEOUT_S = 30.0  # a connection whose TLS handshake takes longer is closed
# Of each TLS connection, from the first byte of its handshake on. asyncio's own are 256 KiB: 2.8 GB for 10,000 callers.
TLS_BUFFER_BYTES = 32_768
HEADER_LINE_BYTES = 8190  # aiohttp's own limit of a line of the request's head
HEAD_BYTES = 32_768  # of a request's head; aiohttp's own limit is 128 lines, of which it holds two copies: 2 MiB
# Most that a connection takes whose caller has proved nothing: 56 KiB after a TLS handshake, 105 in one, and up to 203
# with requests in line (measured). Together they may take a part of the memory.
CONNECTION_BYTES = 262_144
MEMORY_PART = 0.5
_RESERVED = 512  # descriptors for databases, the broker's link, child processes, and connections on their way out
_TURNS = 4  # of the event loop, from the acceptance of a connection until the one that it displaces is closed
NO_PREFIX = PathPrefix()
RequestFactory = Callable[..., web.BaseRequest]  # of a parsed head first, as aiohttp calls it
_LOCATIONS = ("Location", "HX-Redirect")
_SEARCHED = 64  # connections of a network that are looked at to find one that may be closed
_LOG_EVERY_S = 60.0
_KEENNESS = 3  # times what is left: one network alone has three quarters, n have 3 / (3 n + 1) of all each


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How many connections a server holds in all and of one network.

    `at_once`: how many it accepts in one turn of the event loop.
    """

    total: int
    per_network: int
    at_once: int = 128

    def count_allowed(self, held: int) -> int:
        """Return how many one network may have while all together have `held`: a multiple of those that are left.

        So networks that keep as many connections busy as they can leave some to one that has fewer.
        """
        return max(1, min(self.per_network, _KEENNESS * (self.total - held)))


def choose_limits(descriptors: int, in_use: int, memory_bytes: int) -> ConnectionLimits:
    """Limits of a process that may have so many descriptors and so much memory.

    `in_use`: descriptors that it holds already.
    """
    reserved = min(_RESERVED, descriptors // 4)
    total = max(8, min(descriptors - in_use - reserved, int(MEMORY_PART * memory_bytes) // CONNECTION_BYTES))
    return ConnectionLimits(total, max(4, total * 3 // 4), max(1, min(128, reserved // _TURNS)))


def measure_limits() -> ConnectionLimits:
    """Limits of this process, by its memory, the descriptors that it may have and those that are open now."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return choose_limits(soft, sum(1 for _ in Path("/proc/self/fd").iterdir()), read_memory_bytes())


class HeadTooLongError(HttpProcessingError):
    """The head of a request is longer than `HEAD_BYTES`."""


class PlainRequestHandler(web.RequestHandler):
    """One connection. Its refusals below routing are JSON of one line."""

    __slots__ = ("_head_bytes", "_head_refused", "_last_body")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0  # of a head that is not complete yet
        self._head_refused = False
        self._last_body: StreamReader = EMPTY_PAYLOAD  # of the newest request

    @property
    def is_waiting(self) -> bool:
        """Whether the caller is to send something: a request, or the rest of one."""
        if self._current_request is None:
            return not self._messages
        return not self._current_request.content.is_eof()

    def data_received(self, data: bytes) -> None:
        """Take what came; refuse a request whose head grows beyond its limit."""
        if self._head_refused:
            return
        count, in_head = self._request_count, self._last_body.is_eof()
        super().data_received(data)
        if self._request_count != count:
            self._head_bytes = 0
            self._last_body = self._messages[-1][1]
        elif in_head and not self._upgraded:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse_head()

    def _refuse_head(self) -> None:
        """Answer 431 once the requests before are answered, and drop what comes meanwhile."""
        self._head_refused = True
        self._messages.append((_ErrInfo(status=431, exc=HeadTooLongError(), message=""), EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the connection's task, too, where only the rest of a body is read that was answered without it.

        aiohttp reads on for 10 s, so that each closed connection of a flood held its request for so long.
        """
        task, reads_on = self._task_handler, not self._request_in_progress and self._waiter is None
        super().connection_lost(exc)
        if task is not None and reads_on:
            task.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's, which repeats the request
    ) -> web.StreamResponse:
        """Answer a request that could not be parsed (400), or whose handler failed (500, logged)."""
        if status >= 500:
            self.log_exception("a handler failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        answer = PlainResponse(
            body=msgspec.json.encode({"error": describe_refusal(status, exc)}),
            status=status,
            content_type="application/json",
        )
        answer.force_close()
        return answer


class TlsHandshake(asyncio.Protocol):
    """One connection until its TLS handshake is complete; then a handler of requests takes its place.

    asyncio's own servers say nothing of a connection before that, so that it could be neither counted nor closed.
    """

    is_waiting = True

    def __init__(self, server: "BoundedServer", context: ssl.SSLContext) -> None:
        self._server = server
        self._context = context
        self._early: list[bytes] = []  # what came with the last message of the handshake
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # what comes is for TLS alone
        self._server.count_connection(self, transport)
        self._task = asyncio.get_running_loop().create_task(self._complete(transport), name="tls-handshake")

    def data_received(self, data: bytes) -> None:
        """Keep what was read before the handler of requests is in place."""
        self._early.append(data)

    async def _complete(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        secured = None
        try:
            if not transport.is_closing():
                secured = await loop.start_tls(
                    transport, self, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
                )
        except OSError:  # no TLS, none that we speak, too late, or the caller hung up
            return
        finally:
            self._server.forget_connection(self)
        if secured is None or secured.is_closing():
            return
        handler = self._server.make_handler()
        handler.connection_made(secured)
        secured.set_protocol(handler)
        for data in self._early:
            handler.data_received(data)


class PlainResponse(web.Response):
    """A response without the `Server` header, which would name the implementation."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


def describe_refusal(status: int, error: BaseException | None) -> str:
    """Why a request was refused before any route saw it, without a word of the request."""
    if status >= 500:
        return "the server failed; its log says where"
    if isinstance(error, HeadTooLongError):
        return f"the request's head is longer than {HEAD_BYTES} bytes"
    if isinstance(error, LineTooLong):
        return f"a line of the request's head is longer than {HEADER_LINE_BYTES} bytes"
    if isinstance(error, BadHttpMethod):
        return "the request's method is none of HTTP, or this is no HTTP at all"
    if isinstance(error, ContentLengthError | TransferEncodingError):
        return "the request's body is not framed as its head says"
    return "the request's head is not valid HTTP"


async def drop_server_header(_request: web.Request, response: web.StreamResponse) -> None:
    """Signal `on_response_prepare` of an application: take away the header that names the implementation."""
    response.headers.popall("Server", None)


Connection = PlainRequestHandler | TlsHandshake


class BoundedServer(web.Server):
    """Makes the handler of each connection, and closes connections where there are too many.

    `tls`: with which connections begin; None = with a request.
    """

    def __init__(self, limits: ConnectionLimits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits = limits
        self._held: dict[str, dict[Connection, asyncio.Transport]] = {}  # by network, oldest first
        self._networks: dict[Connection, str] = {}
        self._log = JsonLog()
        self._log_not_before_s = 0.0
        self.tls: ssl.SSLContext | None = None
        self.closed = 0
        SSLProtocol.max_size = TLS_BUFFER_BYTES

    def __call__(self) -> Connection:  # type: ignore[override]  # a handler takes the place of the handshake
        return TlsHandshake(self, self.tls) if self.tls is not None else self.make_handler()

    def make_handler(self) -> PlainRequestHandler:
        """Return a new handler of requests."""
        return PlainRequestHandler(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection whose caller may send requests now."""
        super().connection_made(handler, transport)
        assert isinstance(handler, PlainRequestHandler)
        self.count_connection(handler, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Count a connection no more."""
        super().connection_lost(handler, exc)
        assert isinstance(handler, PlainRequestHandler)
        self.forget_connection(handler)

    async def shutdown(self, timeout: float | None = None) -> None:
        """Close every connection, those in their handshake at once."""
        for group in self._held.values():
            for connection, transport in group.items():
                if isinstance(connection, TlsHandshake):
                    transport.abort()
        await super().shutdown(timeout)

    def count_connection(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Count a connection; close another one, or in need this one, where there are too many."""
        network = _read_network(transport)
        group = self._held.setdefault(network, {})
        group[connection] = transport
        self._networks[connection] = network
        if len(group) > self.limits.count_allowed(len(self._networks)):
            self._close_one(group, connection)
        elif len(self._networks) > self.limits.total:
            self._close_one(max(self._held.values(), key=len), connection)

    def forget_connection(self, connection: Connection) -> None:
        """Count a connection no more, if it was counted."""
        network = self._networks.pop(connection, None)
        if network is not None:
            group = self._held[network]
            del group[connection]
            if not group:
                del self._held[network]

    def _close_one(self, group: dict[Connection, asyncio.Transport], newest: Connection) -> None:
        victim = next(_find_waiting(group, newest), newest)
        transport = self._held[self._networks[victim]][victim]
        self.forget_connection(victim)
        self._loop.call_soon(transport.abort)  # once aiohttp has begun with a connection that was made this instant
        self.closed += 1
        now = time.monotonic()
        if now >= self._log_not_before_s:
            self._log_not_before_s = now + _LOG_EVERY_S
            self._log.warning("connections_full", open=len(self._networks), limit=self.limits.total, closed=self.closed)


def _find_waiting(group: dict[Connection, asyncio.Transport], newest: Connection) -> Iterator[Connection]:
    """Connections whose caller is to send something, oldest first."""
    return (each for each in islice(group, _SEARCHED) if each is not newest and each.is_waiting)


def _read_network(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return find_network(str(peer[0])) if isinstance(peer, tuple) else UNIX


def strip_requests(make_request: RequestFactory, prefix: PathPrefix) -> RequestFactory:
    """Return a factory whose requests have paths without the prefix, as if a proxy had taken it away."""

    def make(message: RawRequestMessage, *arguments: Any) -> web.BaseRequest:
        path = message.url.raw_path
        rest = prefix.strip(path)
        if rest != path:
            message = message._replace(url=message.url.with_path(rest, encoded=True, keep_query=True))
        return make_request(message, *arguments)

    return make


class BoundedRunner(web.AppRunner):
    """Runner of an application whose server is a `BoundedServer`.

    `prefix`: below which a proxy serves it. Requests are answered with and without it, and every path that an answer
    sends its caller to has it.
    """

    __slots__ = ("_prefix",)

    def __init__(self, app: web.Application, *, prefix: PathPrefix = NO_PREFIX, **options: Any) -> None:
        super().__init__(app, **options)
        self._prefix = prefix

    async def _make_server(self) -> web.Server:
        self.app.on_response_prepare.append(drop_server_header)
        if self._prefix.text:
            self.app.on_response_prepare.append(self._prefix_locations)
        made = await super()._make_server()
        return BoundedServer(
            measure_limits(),
            made.request_handler,
            request_factory=self._choose_factory(made.request_factory),
            handler_cancellation=made.handler_cancellation,
            loop=made._loop,  # noqa: SLF001 - aiohttp has no other way to a handler of one's own
            **made._kwargs,  # noqa: SLF001
        )

    def _choose_factory(self, made: RequestFactory) -> RequestFactory:
        return strip_requests(made, self._prefix) if self._prefix.text else made

    async def _prefix_locations(self, _request: web.Request, response: web.StreamResponse) -> None:
        for name in _LOCATIONS:
            where = response.headers.get(name, "")
            if where.startswith("/"):
                response.headers[name] = self._prefix.add(where)
