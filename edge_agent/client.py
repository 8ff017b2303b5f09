"""Asks a running agent over its local API: what `skerry agent status` and `skerry why` stand on.

Law: small and blocking; the token goes only to the address that the state folder or the caller names.
"""

import http.client
import json
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from edge_agent.address import ADDRESS_FILE, Address
from wire.daemon import read_private
from wire.exits import Exit, Stop

TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 1 << 20


def running_at(state: Path) -> Address | None:
    """The address of the agent that owns a state folder; None if none runs."""
    try:
        return msgspec.json.decode((state / ADDRESS_FILE).read_bytes(), type=Address)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise Stop(Exit.CONFIG, f"{state / ADDRESS_FILE}: {error}") from None


def get(address: Address, path: str, method: str = "GET") -> dict[str, Any]:
    """The JSON object at `path`. Stop(NOT_FOUND) for 404, Stop(CREDENTIALS) for 401, Stop(HUB) if nobody answers."""
    token = read_private(Path(address.token_file)).decode().strip() if address.token_file else ""
    try:
        connection = _connection(address)
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            status, body = response.status, response.read(MAX_REPLY_BYTES)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Stop(Exit.HUB, f"no agent answers at {address.url}: {reason}; is it running?") from None
    return _read(address, status, body)


def _read(address: Address, status: int, body: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(body)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise Stop(Exit.HUB, f"{address.url} is no agent: it answers {status} and no JSON")
    if status in (http.HTTPStatus.OK, http.HTTPStatus.ACCEPTED):
        return reply
    line = "".join(c if c.isprintable() else "?" for c in str(reply.get("error", status))[:200])
    codes = {404: Exit.NOT_FOUND, 409: Exit.CONFIG, 401: Exit.CREDENTIALS, 403: Exit.CREDENTIALS}
    raise Stop(codes.get(status, Exit.HUB), f"the agent at {address.url} answers: {line}")


def _connection(address: Address) -> http.client.HTTPConnection:
    if address.url.startswith("unix:"):
        return _UnixConnection(address.url.removeprefix("unix:"))
    where = urlsplit(address.url)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise Stop(Exit.USAGE, f"{address.url!r} is no address: http://127.0.0.1:8090, for example")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(where.hostname, where.hostname)  # noqa: S104 - read, not bound
    if where.scheme == "http":
        return http.client.HTTPConnection(host, where.port, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(host, where.port, timeout=TIMEOUT_S, context=_trusting(address.tls_cert))


def _trusting(certificate_file: str) -> ssl.SSLContext:
    """Exactly the server's own certificate, whatever name it bears; without one the CAs of this machine."""
    if not certificate_file:
        return ssl.create_default_context()
    first = Path(certificate_file).read_text(encoding="ascii").split("-----END CERTIFICATE-----")[0]
    context = ssl.create_default_context(cadata=f"{first}-----END CERTIFICATE-----\n")
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket; the host name stands in the request only."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)
