"""HTTP/1.1 connection for downloads with a deadline, a least rate and a limit of silence.

Rule: no read waits longer than the download may still last, header and body alike, so a server that drips a byte now
and then cannot hold us; and no answer redirects us to another host.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from tuf.api.exceptions import DownloadError, DownloadHTTPError, SlowRetrievalError

from wire.http.outward import OutwardConnection
from wire.process.proxy import NO_PROXY, ForwardProxy
from wire.process.time_limits import describe_failure

MAX_REDIRECTS = 3
SHORT_PAGE_BYTES = 65536
_REDIRECTS = (301, 302, 303, 307, 308)
USER_AGENT = "skerry"


class TransferLimits(NamedTuple):
    """Limits of one download. The least rate is judged over each `window_s`; `gap_s` is the longest silence."""

    deadline_s: float = 24 * 3600.0
    least_bytes_per_s: float = 1024.0
    window_s: float = 300.0
    gap_s: float = 30.0


METADATA_LIMITS = TransferLimits(deadline_s=60.0, least_bytes_per_s=0.0)


class UnreachableError(DownloadError):
    """Server that did not answer, or a connection that broke; trying again may help."""


class TransferPace:
    """Clock of one download, over all its connections. SlowRetrievalError when it is too slow."""

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
            raise SlowRetrievalError(f"not done after {self._limits.deadline_s:g} s")
        return min(left_s, self._limits.gap_s)

    def count_bytes(self, size: int) -> None:
        """Count bytes that arrived and judge the rate of a window that is over."""
        self._window_bytes += size
        now = self._clock()
        if now < self._window_ends:
            return
        rate = self._window_bytes / (self._limits.window_s + now - self._window_ends)
        if rate < self._limits.least_bytes_per_s:
            raise SlowRetrievalError(f"{rate:.0f} bytes/s, least {self._limits.least_bytes_per_s:g}")
        self._window_ends, self._window_bytes = now + self._limits.window_s, 0


class HttpChannel:
    """HTTP client that keeps one connection open between requests to the same host. `requests` counts what was sent."""

    def __init__(self, context: ssl.SSLContext | None = None, proxy: ForwardProxy = NO_PROXY) -> None:
        self._context = context
        self._proxy = proxy
        self._connection: _Connection | None = None
        self._origin: tuple[str, str, int | None] | None = None
        self.requests = 0

    def get(self, url: str, headers: dict[str, str], pace: TransferPace) -> http.client.HTTPResponse:
        """Send a GET request and follow redirects on the same host; return the response, its body unread.

        DownloadHTTPError for any status but 200 and 206; else DownloadError.
        """
        for _ in range(MAX_REDIRECTS + 1):
            response = self._request_with_retry(url, headers, pace)
            if response.status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                return response
            self._drain_response(response)
            if response.status not in _REDIRECTS:
                raise DownloadHTTPError(f"HTTP status {response.status}", response.status)
            url = _redirect_url(url, response.headers.get("Location", ""))
        raise DownloadError("redirected too often")

    def close(self) -> None:
        """Close the open connection, if any."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def _request_with_retry(self, url: str, headers: dict[str, str], pace: TransferPace) -> http.client.HTTPResponse:
        """Send a request; a connection that was kept open may have died meanwhile: then once more on a new one."""
        where = _parse_url(url)
        kept = self._connection is not None and self._origin == _url_origin(where)
        try:
            return self._send_request(where, headers, pace)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise _unreachable_error(where, error, pace.read_timeout_s()) from error
        except SlowRetrievalError:
            self.close()
            raise
        return self._request_with_retry(url, headers, pace)

    def _send_request(
        self, where: SplitResult, headers: dict[str, str], pace: TransferPace
    ) -> http.client.HTTPResponse:
        connection = self._ensure_connection(where, pace)
        path = where.path or "/"
        target = f"{path}?{where.query}" if where.query else path
        self.requests += 1
        connection.request("GET", target, headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers})
        return connection.getresponse()

    def _ensure_connection(self, where: SplitResult, pace: TransferPace) -> "_Connection":
        if self._connection is None or self._origin != _url_origin(where):
            self.close()
            self._connection = _create_connection(where, pace.read_timeout_s(), self._context, self._proxy)
            self._origin = _url_origin(where)
        self._connection.pace = pace
        return self._connection

    def _drain_response(self, response: http.client.HTTPResponse) -> None:
        """Read a short error page away so that the connection can be used again; else close it."""
        try:
            if response.length is None or response.length > SHORT_PAGE_BYTES:
                self.close()
            else:
                response.read()
        except (OSError, http.client.HTTPException, SlowRetrievalError):
            self.close()
        response.close()


class _Connection(OutwardConnection):
    """HTTP connection whose socket waits no longer than the download it serves may."""

    pace: TransferPace

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _PacedSocket(self.sock, self)


class _PacedSocket:
    """The part of a socket that http.client uses; `makefile` gives a reader that asks the pace before every read."""

    def __init__(self, sock: socket.socket, connection: _Connection) -> None:
        self._sock = sock
        self._connection = connection

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode
        return io.BufferedReader(_PacedReader(self._sock, self._connection))

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._connection.pace.read_timeout_s())
        self._sock.sendall(data)

    def close(self) -> None:
        self._sock.close()


class _PacedReader(io.RawIOBase):
    """Raw reader of a socket: sets the timeout before every read and counts the bytes."""

    def __init__(self, sock: socket.socket, connection: _Connection) -> None:
        super().__init__()
        self._sock = sock
        self._raw: Any = sock.makefile("rb", buffering=0)  # holds the socket open until the body is read
        self._pace = connection.pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        patience_s = self._pace.read_timeout_s()
        self._sock.settimeout(patience_s)
        try:
            size = int(self._raw.readinto(buffer))
        except TimeoutError:
            self._pace.read_timeout_s()  # raises if it was the deadline and not a silence
            raise SlowRetrievalError(f"silent for {patience_s:.1f} s") from None
        self._pace.count_bytes(size)
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


def _create_connection(
    where: SplitResult, patience_s: float, context: ssl.SSLContext | None, proxy: ForwardProxy
) -> _Connection:
    tls = (context or ssl.create_default_context()) if where.scheme == "https" else None
    return _Connection(where.hostname or "", where.port, patience_s, context=tls, proxy=proxy)


_SCHEMES = ("http", "https")


def _parse_url(url: str) -> SplitResult:
    try:
        where = urlsplit(url)
        fits = where.scheme in _SCHEMES and where.hostname and not where.username and where.port != 0
    except ValueError:
        fits = False
    if not fits or not url.isascii() or any(c.isspace() or not c.isprintable() for c in url):
        raise DownloadError("not a plain http or https address")
    return where


def _url_origin(where: SplitResult) -> tuple[str, str, int | None]:
    return where.scheme, where.hostname or "", where.port


def _redirect_url(url: str, location: str) -> str:
    there = urljoin(url, location)
    if not location or _url_origin(_parse_url(there)) != _url_origin(_parse_url(url)):
        raise DownloadError("redirected to another host")
    return there


def _unreachable_error(
    where: SplitResult, error: OSError | http.client.HTTPException, limit_s: float
) -> UnreachableError:
    return UnreachableError(f"{where.hostname}: {describe_failure(error, f'GET {where.path}', limit_s)}")
