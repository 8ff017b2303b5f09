"""Blocking HTTP client for short exchanges: one request on one connection, over TCP, TLS or a Unix socket.

Rule: it follows no redirect and keeps nothing between requests, so a token goes to the address named and nowhere else;
every failure is an `ExitError` of one line.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from wire.http.outward import OutwardConnection
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_text
from wire.process.proxy import NO_PROXY, ForwardProxy
from wire.process.time_limits import describe_failure

MAX_ERROR_CHARS = 200
_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a server bound to all addresses, seen from here


class HttpReply(msgspec.Struct, frozen=True):
    """Status and body of a reply. `date`: its `Date` header, when the server made it by its own clock; "" without."""

    status: int
    body: bytes
    date: str = ""

    @property
    def ok(self) -> bool:
        """Whether the status is a 2xx."""
        return http.HTTPStatus.OK <= self.status < http.HTTPStatus.MULTIPLE_CHOICES

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
    tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
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
        try:
            reply = self._exchange(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            reason = describe_failure(error, f"{method} {path}", self.timeout_s)
            raise ExitError(
                ExitCode.HUB, f"no {self.server} answers at {self.url}: {_make_printable(reason)}; {self.hint}"
            ) from None
        if len(reply.body) > self.max_reply_bytes:
            raise ExitError(ExitCode.HUB, f"{self.url}: the reply is longer than {self.max_reply_bytes} bytes")
        return reply

    def read_object(self, reply: HttpReply) -> dict[str, Any]:
        """The JSON object of a reply, whatever its status.

        Raises ExitError(HUB) if it has none: another server answered.
        """
        found = reply.json_object()
        if found is None:
            raise ExitError(ExitCode.HUB, f"{self.url} is no {self.server}: it answers {reply.status} and no JSON")
        return found

    def _exchange(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> HttpReply:
        connection, prefix = self._connection()
        try:
            connection.request(method, prefix + path, body, headers)
            response = connection.getresponse()
            return HttpReply(response.status, response.read(self.max_reply_bytes + 1), response.headers["Date"] or "")
        finally:
            connection.close()

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        """Connection that is not opened yet, and the path prefix that `url` names."""
        if self.url.startswith("unix:"):
            return _UnixConnection(self.url.removeprefix("unix:"), self.timeout_s), ""
        try:
            where = urlsplit(self.url)
            port = where.port
        except ValueError:
            raise self._no_address() from None
        if where.scheme not in ("http", "https") or not where.hostname:
            raise self._no_address()
        host, prefix = _REACHABLE.get(where.hostname, where.hostname), where.path.rstrip("/")
        if where.scheme == "http":
            return OutwardConnection(host, port, self.timeout_s, context=None, proxy=self.proxy), prefix
        return OutwardConnection(host, port, self.timeout_s, context=self.tls(), proxy=self.proxy), prefix

    def _no_address(self) -> ExitError:
        return ExitError(ExitCode.USAGE, f"{self.url!r} is no address: http://127.0.0.1:8090, for example")


def _make_printable(text: str) -> str:
    """One line of another machine's text: printable and at most `MAX_ERROR_CHARS`."""
    return "".join(c if c.isprintable() else "?" for c in text.strip()[:MAX_ERROR_CHARS])


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket; the host name stands in the Host header only."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
