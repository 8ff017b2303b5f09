"""HTTP server security on aiohttp: listening, bearer token, Host and Origin checks, limits of bodies.

Rule: closed unless opened, as `wire.http.access` says. `Host` and `Origin` are always checked (DNS rebinding).
"""

import asyncio
import errno
import hmac
import os
import re
import socket
import ssl
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from wire.http.access import ServerAccess, build_tls_context, validate_access
from wire.http.oip import OipError
from wire.http.server import BoundedServer
from wire.process.exit_codes import ExitCode, ExitError

BODY_TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 30.0  # a connection that sends no whole request head for so long is closed
LISTEN_BACKLOG = 128
_PLAIN_ENCODINGS = ("", "identity")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


async def open_site(runner: web.AppRunner, access: ServerAccess, tls: ssl.SSLContext | None = None) -> str:
    """Start listening, and return the address to print.

    `tls`: made before with `build_tls_context(access)`, for a caller that replaces its certificate later. A Unix socket
    gets mode 0600. Raises ExitError(PORT) if the address is taken, ExitError(CONFIG) if it may not be opened.
    """
    validate_access(access)
    context = tls or build_tls_context(access)
    try:
        if access.unix:
            await web.UnixSite(runner, access.unix, backlog=LISTEN_BACKLOG).start()
            Path(access.unix).chmod(0o600)
            return f"unix:{access.unix}"
        beneath, backlog = context, LISTEN_BACKLOG
        if isinstance(runner.server, BoundedServer):  # it does TLS itself, and counts what is in its handshake
            runner.server.tls, beneath, backlog = context, None, runner.server.limits.at_once
        site = web.TCPSite(runner, access.host, access.port, ssl_context=beneath, backlog=backlog)
        await site.start()
        _lengthen_queues(site)
    except OSError as error:
        code = ExitCode.PORT if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM) else ExitCode.CONFIG
        where = access.unix or f"{access.host}:{access.port}"
        reason = "address in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
        raise ExitError(code, f"cannot listen on {where}: {reason}; choose another") from None
    host, port = runner.addresses[0][:2]
    return f"{'https' if context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _lengthen_queues(site: web.TCPSite) -> None:
    """Let more callers wait than are accepted in one turn: asyncio has one number for both."""
    for each in site._server.sockets if site._server else ():  # type: ignore[attr-defined]  # noqa: SLF001
        with socket.socket(fileno=os.dup(each.fileno())) as same:
            same.listen(LISTEN_BACKLOG)


class BearerToken:
    """The token that callers have to show, by its digest; a reload replaces it. ValueError for an empty one."""

    def __init__(self, token: str) -> None:
        self.sha256 = b""
        self.replace(token)

    def replace(self, token: str) -> bool:
        """Ask for this token from now on. True if it is another one."""
        if not token:
            raise ValueError("an empty token would open every route")
        before, self.sha256 = self.sha256, sha256(token.encode()).digest()
        return before != self.sha256


def security_middlewares(
    access: ServerAccess, token: BearerToken | None, open_routes: frozenset[str]
) -> list[Middleware]:
    """All middlewares of this module in their order; the bearer check only with a `token`.

    A local server without a token is open to everybody on this machine. `open_routes`: as in `make_bearer_middleware`.
    """
    checks = [make_error_middleware(), make_host_middleware(access), make_encoding_middleware()]
    return [*checks, make_bearer_middleware(token, open_routes)] if token else checks


def make_error_middleware() -> Middleware:
    """Middleware that answers every error with `{"error": one line}`.

    A defect of ours is left to aiohttp: logged, answered with a bare 500.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except OipError as error:
            return error_response(error.status, str(error))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return error_response(error.status, error.reason.lower(), dict(_kept_headers(error)))

    return middleware


def make_host_middleware(access: ServerAccess) -> Middleware:
    """Middleware that refuses a foreign `Host`, target in absolute form, or `Origin` with 403.

    A page of another site, or a name rebound to this address, cannot use the server.
    """
    hosts = access.hosts

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.getall("Host", [])
        if len(host) != 1 or _parse_host_name(host[0]) not in hosts or not _is_own_target(request, hosts):
            raise OipError(403, "this Host is not served here; add it to the server's names")
        origins = request.headers.getall("Origin", [])
        if any(not _same_origin(origin, host[0]) for origin in origins):
            raise OipError(403, "requests from another Origin are refused")
        return await handler(request)

    return middleware


def make_encoding_middleware() -> Middleware:
    """Middleware that refuses compressed bodies with 415: a small one can hold gigabytes."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        encodings = [e.strip().lower() for e in request.headers.getall("Content-Encoding", [])]
        if any(encoding not in _PLAIN_ENCODINGS for encoding in encodings):
            raise OipError(415, "compressed bodies are refused: send without Content-Encoding")
        return await handler(request)

    return middleware


def make_bearer_middleware(token: BearerToken, open_routes: frozenset[str]) -> Middleware:
    """Middleware that answers 401 without the token, except on `open_routes`.

    `open_routes`: patterns as registered, e.g. "/v1/x/{id}".
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        known = request.match_info.http_exception is None  # else 404 or 405: which routes there are is no secret
        if known and _route_pattern(request) not in open_routes and not has_token(request, token.sha256):
            return error_response(401, "this route needs the bearer token", {"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return middleware


def has_token(request: web.Request, expected_sha256: bytes) -> bool:
    """Whether the one bearer token of the request is the expected one."""
    token = parse_bearer_token(request)
    return token is not None and compare_token(token, expected_sha256)


def parse_bearer_token(request: web.Request) -> str | None:
    """Bearer token of the request's one Authorization header.

    "" for any other or a doubled header, None where there is none.
    """
    values = request.headers.getall("Authorization", [])
    if not values:
        return None
    scheme, _, given = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return given.strip() if scheme.lower() == "bearer" else ""


def compare_token(token: str, expected_sha256: bytes) -> bool:
    """Compare a token by its digest and in constant time: neither length nor prefix shows in the time taken."""
    return hmac.compare_digest(sha256(token.encode(errors="surrogateescape")).digest(), expected_sha256)


async def read_body(request: web.Request, max_bytes: int, within_s: float = BODY_TIMEOUT_S) -> bytes:
    """Read the whole request body.

    Raises OipError 413 as soon as it is known to be longer than `max_bytes`, 408 if it takes longer than `within_s`,
    400 if the caller hangs up before its end: nobody reads that reply, but it is no defect that a log must show.
    """
    if (request.content_length or 0) > max_bytes:
        raise OipError(413, f"a body of {request.content_length} bytes, at most {max_bytes}")
    if request.content.is_eof():  # it came with the head: nothing to wait for
        body = bytes(request.content.read_nowait())
        _check_length(len(body), max_bytes)
        return body
    try:
        async with asyncio.timeout(within_s):
            return await _read_whole(request, max_bytes)
    except TimeoutError:
        raise OipError(408, f"the body did not come within {within_s:g} s") from None
    except ConnectionError:
        raise OipError(400, "the caller hung up before the end of its body") from None


async def _read_whole(request: web.Request, max_bytes: int) -> bytes:
    """Read a body chunk by chunk, so that a long one is refused early."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        _check_length(len(body), max_bytes)
    return bytes(body)


def _check_length(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise OipError(413, f"the body is longer than {max_bytes} bytes")


def error_response(status: int, line: str, headers: dict[str, str] | None = None) -> web.Response:
    """Error response with the body `{"error": line}`."""
    body = msgspec.json.encode({"error": line})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _route_pattern(request: web.Request) -> str:
    """Pattern of the matched route; "" for a path that has none, so that it is never an open one."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else ""


def _parse_host_name(host: str) -> str:
    """Host name of a `Host` header without the port; "" for an invalid one."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").lower() if match else ""


def _is_own_target(request: web.Request, hosts: frozenset[str]) -> bool:
    """Whether a target in absolute form, which counts in place of `Host` (RFC 9112, section 3.2.2), is served here."""
    return request.raw_path.startswith("/") or (request.url.host or "").lower() in hosts


def _same_origin(origin: str, host: str) -> bool:
    """Whether an `Origin` header names this host over http or https."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _kept_headers(error: web.HTTPException) -> list[tuple[str, str]]:
    """Headers of an aiohttp error that its reply keeps."""
    return [(key, error.headers[key]) for key in ("Allow", "Retry-After") if key in error.headers]
