"""HTTP client of devices, hubs and commands: blocking, over `http.client`, by TCP, TLS or a Unix socket.

`HttpClient` sends one request to one server and reads the whole reply; every failure is an `ExitError` of one line.
`HttpChannel`, on which it stands, leaves the body unread and the connection open for the next request: a download is
written as it arrives, within its limits of time, and words its errors itself.

Rule: the proxy of the configuration is used for every machine but this one, and none of the environment. A redirect is
followed by `HttpChannel.get` alone, on the same server, so that a token goes to the server named and nowhere else.

What runs in an event loop uses aiohttp's client: streams between the hub and servers of language models, and webhooks.
The download of public data sets, typed by a person, uses urllib's, which takes the proxy of the environment.
"""

import http.client
import io
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from wire.http.access import is_loopback
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_text
from wire.process.proxy import (
    MAX_HEAD_BYTES,
    NO_PROXY,
    ForwardProxy,
    check_connect_answer,
    is_address,
    make_connect_request,
    name_target,
    parse_http_head,
)
from wire.process.time_limits import StepTimeoutError, describe_failure
from wire.process.tls import start_tls

MAX_ERROR_CHARS = 200
MAX_REDIRECTS = 3
SHORT_PAGE_BYTES = 65536  # an error page up to this size is read away, to use the connection again
USER_AGENT = "skerry"
_REDIRECTS = (301, 302, 303, 307, 308)
_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a server bound to all addresses, seen from here

TlsFactory = Callable[[], ssl.SSLContext]


class HttpReply(msgspec.Struct, frozen=True):
    """Status and body of a reply. `date`: its `Date` header, when the server made it by its own clock; "" without."""

    status: int
    body: bytes
    date: str = ""

    @property
    def ok(self) -> bool:
        """Whether the status is a 2xx."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def error_line(self) -> str:
        """The server's own `{"error": line}`, made printable, at most `MAX_ERROR_CHARS`; "" if there is none."""
        line = (self.json_object() or {}).get("error")
        return _make_printable(line) if isinstance(line, str) else ""

    def json_object(self) -> dict[str, Any] | None:
        """The body as a JSON object; None for anything else."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


class HttpClient(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP client of one server.

    `url`: http://..., https://... or unix:PATH; a path in it is put before that of each request.
    `server`: what should answer there ("hub"), for error lines, as is `hint`. `token_file`: holds the bearer token,
    "" for none. `tls`: makes the context of an https connection. `max_reply_bytes`: a longer reply is an error.
    `timeout_s`: of each step, and of each read. `proxy`: on the way to any other machine.
    """

    url: str
    server: str
    token_file: str = ""
    tls: TlsFactory = ssl.create_default_context
    hint: str = "is it running?"
    timeout_s: float = 10.0
    max_reply_bytes: int = 1 << 20
    proxy: ForwardProxy = NO_PROXY

    def send(self, method: str, path: str, body: bytes | None = None) -> HttpReply:
        """Send one request and read the whole reply, whatever its status.

        Raises ExitError(HUB) if nobody answers or the reply is too long, (USAGE) if `url` is no address, (CREDENTIALS)
        if the token cannot be read.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.token_file:
            headers["Authorization"] = f"Bearer {read_private_text(Path(self.token_file))}"
        server, prefix = self._find_server()
        try:
            with (
                closing(HttpChannel(self.tls, self.proxy, self.timeout_s)) as channel,
                channel.request(method, server, prefix + path, headers, body) as response,
            ):
                data = response.read(self.max_reply_bytes + 1)
        except (OSError, http.client.HTTPException) as error:
            reason = describe_failure(error, f"{method} {path}", self.timeout_s)
            raise ExitError(
                ExitCode.HUB, f"no {self.server} answers at {self.url}: {_make_printable(reason)}; {self.hint}"
            ) from None
        if len(data) > self.max_reply_bytes:
            raise ExitError(ExitCode.HUB, f"{self.url}: the reply is longer than {self.max_reply_bytes} bytes")
        return HttpReply(response.status, data, response.headers["Date"] or "")

    def read_object(self, reply: HttpReply) -> dict[str, Any]:
        """The JSON object of a reply, whatever its status.

        Raises ExitError(HUB) if it has none: another server answered.
        """
        found = reply.json_object()
        if found is None:
            raise ExitError(ExitCode.HUB, f"{self.url} is no {self.server}: it answers {reply.status} and no JSON")
        return found

    def call(
        self, method: str, path: str, body: bytes | None = None, *, codes: Mapping[int, ExitCode], prefix: str = ""
    ) -> dict[str, Any]:
        """Send one request and return the JSON object of the reply.

        Raises ExitError with `prefix` and the server's own line for any status but a 2xx, by the code that `codes` has
        for it, else (HUB); and as `send` and `read_object` do.
        """
        reply = self.send(method, path, body)
        found = self.read_object(reply)
        if reply.ok:
            return found
        raise ExitError(codes.get(reply.status, ExitCode.HUB), f"{prefix}{reply.error_line or reply.status}")

    def _find_server(self) -> tuple["HttpServer", str]:
        """The server, and the path prefix that `url` names."""
        if self.url.startswith("unix:"):
            return HttpServer("unix", self.url.removeprefix("unix:")), ""
        try:
            where = parse_http_url(self.url)
        except ValueError:
            raise ExitError(ExitCode.USAGE, f"{self.url!r} is no address: http://127.0.0.1:8090, for example") from None
        return HttpServer.of(where), where.path.rstrip("/")


def _make_printable(text: str) -> str:
    """One line of another machine's text: printable and at most `MAX_ERROR_CHARS`."""
    return "".join(c if c.isprintable() else "?" for c in text.strip()[:MAX_ERROR_CHARS])


def parse_http_url(url: str) -> SplitResult:
    """Split a URL. ValueError unless it is a plain one: http or https, a host, no user, nothing that is not printed."""
    plain = is_address(url, ("http", "https")) and url.isprintable() and not any(c.isspace() for c in url)
    where = urlsplit(url if plain else "")
    if not (plain and f"{where.path}{where.query}".isascii()):
        raise ValueError("not a plain http or https address")
    return where


class HttpServer(NamedTuple):
    """Where a connection leads: host and port by `scheme` http or https, or the path of a socket by `scheme` unix."""

    scheme: str
    host: str
    port: int = 0

    @classmethod
    def of(cls, where: SplitResult) -> "HttpServer":
        """The server of a URL that `parse_http_url` has split."""
        host = where.hostname or ""
        return cls(where.scheme, _REACHABLE.get(host, host), where.port or (443 if where.scheme == "https" else 80))


class TransferLimits(NamedTuple):
    """Limits of one download. The least rate is judged over each `window_s`; `gap_s` is the longest silence."""

    deadline_s: float = 24 * 3600.0
    least_bytes_per_s: float = 1024.0
    window_s: float = 300.0
    gap_s: float = 30.0


class SlowTransferError(TimeoutError):
    """Download that is slower than its limits allow; the text says which."""


class TransferPace:
    """Clock of one download, over all its connections. SlowTransferError when it is too slow."""

    def __init__(self, limits: TransferLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._ends = clock() + limits.deadline_s
        self._window_ends = clock() + limits.window_s
        self._window_bytes = 0

    def read_timeout_s(self) -> float:
        """Return how long the next read may wait, in seconds."""
        left_s = self._ends - self._clock()
        if left_s <= 0:
            raise SlowTransferError(f"not done after {self._limits.deadline_s:g} s")
        return min(left_s, self._limits.gap_s)

    def count_bytes(self, size: int) -> None:
        """Count bytes that arrived and judge the rate of a window that is over."""
        self._window_bytes += size
        now = self._clock()
        if now < self._window_ends:
            return
        rate = self._window_bytes / (self._limits.window_s + now - self._window_ends)
        if rate < self._limits.least_bytes_per_s:
            raise SlowTransferError(f"{rate:.0f} bytes/s, least {self._limits.least_bytes_per_s:g}")
        self._window_ends, self._window_bytes = now + self._limits.window_s, 0


class HttpChannel:
    """One connection at a time, which stays open between requests to the same server. `requests` counts what was sent.

    A failure (OSError, http.client.HTTPException) closes the connection. `timeout_s`: of each step and of each read,
    for requests without a pace.
    """

    def __init__(
        self, tls: TlsFactory = ssl.create_default_context, proxy: ForwardProxy = NO_PROXY, timeout_s: float = 30.0
    ) -> None:
        self.requests = 0
        self._tls = tls
        self._proxy = proxy
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None

    def request(
        self,
        method: str,
        server: HttpServer,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        pace: TransferPace | None = None,
    ) -> http.client.HTTPResponse:
        """Send one request and return the response, its body unread. With a `pace` no read waits longer than that."""
        try:
            connection = self._connect(server, pace)
            self.requests += 1
            connection.request(method, target, body, headers)
            return connection.getresponse()
        except BaseException:
            self.close()
            raise

    def get(self, url: str, headers: Mapping[str, str], pace: TransferPace) -> http.client.HTTPResponse:
        """Send a GET request and follow redirects on the same server; return the response, its body unread.

        ValueError for an address that is not plain, and for a redirect that is not followed.
        """
        for _ in range(MAX_REDIRECTS + 1):
            where = parse_http_url(url)
            response = self._get_once(where, {"User-Agent": USER_AGENT, **headers}, pace)
            if response.status not in _REDIRECTS:
                return response
            self.discard(response)
            url = find_redirect(url, response.headers.get("Location", ""))
        raise ValueError("redirected too often")

    def discard(self, response: http.client.HTTPResponse) -> None:
        """Read a short error page away so that the connection can be used again; else close it."""
        try:
            if response.length is None or response.length > SHORT_PAGE_BYTES:
                self.close()
            else:
                response.read()
        except (OSError, http.client.HTTPException):
            self.close()
        response.close()

    def close(self) -> None:
        """Close the open connection, if any."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def _get_once(self, where: SplitResult, headers: dict[str, str], pace: TransferPace) -> http.client.HTTPResponse:
        """Send a GET request; a connection that stayed open may have died meanwhile: then once more on a new one."""
        server, target = HttpServer.of(where), (where.path or "/") + (f"?{where.query}" if where.query else "")
        reused = self._find_open(server) is not None
        try:
            return self.request("GET", server, target, headers, pace=pace)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            if not reused:
                raise
        return self.request("GET", server, target, headers, pace=pace)

    def _find_open(self, server: HttpServer) -> "_Connection | None":
        found = self._connection
        return found if found and found.sock and found.server == server else None

    def _connect(self, server: HttpServer, pace: TransferPace | None) -> "_Connection":
        connection = self._find_open(server)
        if connection is None:
            self.close()
            limit_s = pace.read_timeout_s() if pace else self._timeout_s
            connection = self._connection = _Connection(server, limit_s, self._tls, self._proxy)
            connection.connect()
        connection.pace = pace
        if pace:
            connection.sock.settimeout(pace.read_timeout_s())
        return connection


def find_redirect(url: str, location: str) -> str:
    """The URL that a redirect leads to, on the same server. ValueError if there is none, or it is of another."""
    there = urljoin(url, location)
    if not location or HttpServer.of(parse_http_url(there)) != HttpServer.of(parse_http_url(url)):
        raise ValueError("redirected to another host")
    return there


class _Connection(http.client.HTTPConnection):
    """Connection to a server, whose responses are read at the pace of the download they are for, where there is one."""

    def __init__(self, server: HttpServer, timeout_s: float, tls: TlsFactory, proxy: ForwardProxy) -> None:
        self.default_port = 443 if server.scheme == "https" else 80
        super().__init__("localhost" if server.scheme == "unix" else server.host, server.port or None)
        self.server = server
        self.pace: TransferPace | None = None
        self._dial = partial(dial, server, timeout_s, tls, proxy)

    def connect(self) -> None:
        self.sock = self._dial()

    def response_class(  # type: ignore[override]  # http.client calls it like the class that it is by default
        self, sock: socket.socket, *args: Any, **more: Any
    ) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(sock, *args, **more)
        if self.pace:
            raw = response.fp.detach()
            response.fp = io.BufferedReader(_PacedReader(sock, raw, self.pace))
        return response


class _PacedReader(io.RawIOBase):
    """Raw reader of a socket: sets the timeout before every read and counts the bytes."""

    def __init__(self, sock: socket.socket, raw: Any, pace: TransferPace) -> None:
        super().__init__()
        self._sock = sock
        self._raw = raw  # holds the socket open until the body is read
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        patience_s = self._pace.read_timeout_s()
        self._sock.settimeout(patience_s)
        try:
            size = int(self._raw.readinto(buffer))
        except TimeoutError:
            self._pace.read_timeout_s()  # raises if it was the deadline and not a silence
            raise SlowTransferError(f"silent for {patience_s:.1f} s") from None
        self._pace.count_bytes(size)
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


def dial(server: HttpServer, timeout_s: float, tls: TlsFactory, proxy: ForwardProxy) -> socket.socket:
    """A socket that is connected to a server, by TLS for https, with that time limit for each call.

    Its OSError names the step that failed: the proxy, the connection, the TLS handshake.
    """
    if server.scheme == "unix":
        return _dial_unix(server.host, timeout_s)
    context = tls() if server.scheme == "https" else None
    direct = not proxy.url or is_loopback(server.host)
    sock = _dial_tcp(server.host, server.port, timeout_s) if direct else _dial_proxy(proxy, server, timeout_s)
    if context is None:
        return sock
    try:
        return start_tls(context, sock, server.host)  # closes the socket where it fails
    except TimeoutError:
        raise StepTimeoutError(f"TLS with {name_target(server.host, server.port)}", timeout_s) from None


def _dial_unix(path: str, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _dial_proxy(proxy: ForwardProxy, server: HttpServer, timeout_s: float) -> socket.socket:
    where, (host, port) = name_target(server.host, server.port), proxy.address
    request = make_connect_request(proxy, server.host, server.port)
    sock = _dial_tcp(host, port, timeout_s)
    try:
        sock.sendall(request)
        _read_connect_answer(sock, proxy, where)
    except TimeoutError:
        sock.close()
        raise StepTimeoutError(f"CONNECT at the proxy {name_target(host, port)}", timeout_s) from None
    except BaseException:
        sock.close()
        raise
    return sock


def _dial_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    try:
        sock = socket.create_connection((host, port), timeout_s)
    except TimeoutError:
        raise StepTimeoutError(f"TCP to {name_target(host, port)}", timeout_s) from None
    except UnicodeError:  # of a name that cannot be looked up
        raise OSError(f"'{host}' is no name of a machine") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _read_connect_answer(sock: socket.socket, proxy: ForwardProxy, where: str) -> None:
    """Read the proxy's answer to CONNECT; OSError unless it lets us through."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(4096)
        data += more
        if not more or len(data) > MAX_HEAD_BYTES:
            raise OSError(f"the proxy {proxy.address[0]} ended the connection" if not more else "an endless answer")
    head, _, rest = data.partition(b"\r\n\r\n")
    check_connect_answer(proxy, where, parse_http_head(head), rest)
