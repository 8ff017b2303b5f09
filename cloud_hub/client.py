"""Asks a running hub over its admin API: what `skerry hub invite` and the like stand on.

Rule: small and blocking; the token goes only to the address that the hub itself wrote into its state folder.
"""

import http.client
import json
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from wire.daemon import read_private, write_private
from wire.exits import Exit, Stop

TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 16 << 20
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound
_CODES = {400: Exit.USAGE, 401: Exit.CREDENTIALS, 403: Exit.CREDENTIALS, 404: Exit.NOT_FOUND, 409: Exit.CHECK_FAILED}


class Address(msgspec.Struct, frozen=True):
    """Where a running hub is reached: http://..., https://... or unix:PATH. `ca`: the file its TLS is checked with."""

    url: str
    token_file: str
    ca: str = ""

    def save(self, path: Path) -> None:
        write_private(path, msgspec.json.encode(self))


def running_at(path: Path) -> Address | None:
    """The address a hub left at its start; None if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Address)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise Stop(Exit.HUB, f"{path}: {error}; remove it if no hub runs") from None


def ask(address: Address, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object that answers. Stop with the hub's own line if it refuses, Stop(HUB) if nobody answers."""
    token = read_private(Path(address.token_file)).decode("ascii", "replace").strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection = _connection(address)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            status, reply = response.status, response.read(MAX_REPLY_BYTES)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Stop(Exit.HUB, f"no hub answers at {address.url}: {reason}; is it running?") from None
    return _read(address, status, reply)


def _read(address: Address, status: int, body: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(body)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise Stop(Exit.HUB, f"{address.url} is no hub: it answers {status} and no JSON")
    if status < http.HTTPStatus.BAD_REQUEST:
        return reply
    line = "".join(c if c.isprintable() else "?" for c in str(reply.get("error", status))[:200])
    raise Stop(_CODES.get(status, Exit.HUB), line)


def _connection(address: Address) -> http.client.HTTPConnection:
    if address.url.startswith("unix:"):
        return _UnixConnection(address.url.removeprefix("unix:"))
    where = urlsplit(address.url)
    host = _HERE.get(where.hostname or "", where.hostname or "")
    if where.scheme == "http":
        return http.client.HTTPConnection(host, where.port, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    if address.ca:
        context.load_verify_locations(address.ca)
    return http.client.HTTPSConnection(host, where.port, timeout=TIMEOUT_S, context=context)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)
