"""One POST to the hub's web API: over TLS that trusts pinned CAs alone, or in clear on this very machine.

Law: nothing is sent before the server has shown a chain that ends in a CA we pinned. There is no way around it: not the
system's CAs, not an option, not a first time.
"""

import http.client
import ssl
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from edge_agent import tls
from wire.doors import is_loopback
from wire.exits import Exit, Stop

MAX_REPLY_BYTES = 64 * 1024
TIMEOUT_S = 15.0


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: bytes

    @property
    def good(self) -> bool:
        return self.status == http.HTTPStatus.OK

    @property
    def refusal(self) -> str:
        """The hub's own line, made printable: it is text of another machine. "" if it gave none."""
        try:
            line = str(msgspec.json.decode(self.body, type=dict[str, str])["error"])
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
            return ""
        return "".join(c if c.isprintable() else "?" for c in line[:200])


class Trust(msgspec.Struct, frozen=True):
    """Whom to believe: `authorities` (PEM) where they are known; before, `ca_sha256` (hex, DER) of the invite."""

    floor_ms: int
    authorities: tuple[str, ...] = ()
    ca_sha256: str = ""


def post(url: str, path: str, body: bytes, trust: Trust) -> Reply:
    """Stop(HUB) if nobody answers, Stop(ENROLMENT) if the server is not the hub; the reason of TLS is in the line."""
    where = split(url)
    try:
        connection = _connection(where, trust)
        try:
            connection.request("POST", where.path.rstrip("/") + path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = response.read(MAX_REPLY_BYTES + 1)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Stop(Exit.HUB, f"no hub answers at {url}: {reason}; is it running, is the address right?") from None
    if len(reply) > MAX_REPLY_BYTES:
        raise Stop(Exit.HUB, f"{url}: the reply is longer than {MAX_REPLY_BYTES} bytes")
    return Reply(response.status, reply)


def split(url: str) -> SplitResult:
    """ValueError unless it is a plain http or https address."""
    where = urlsplit(url)
    if where.scheme not in ("http", "https") or not where.hostname or where.username or where.query or where.port == 0:
        raise ValueError(url)
    return where


def _connection(where: SplitResult, trust: Trust) -> http.client.HTTPConnection:
    host, port = where.hostname or "", where.port
    if where.scheme == "http":
        if not is_loopback(host):
            raise Stop(Exit.ENROLMENT, f"{where.geturl()}: secrets would cross the network in clear; the hub needs TLS")
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    authorities = trust.authorities or (_shown_authority(host, port or 443, trust.ca_sha256),)
    context = tls.context(authorities, trust.floor_ms)
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _shown_authority(host: str, port: int, ca_sha256: str) -> str:
    """The CA (PEM) with this hash, out of the chain that the server shows. Stop(ENROLMENT) if it is not there.

    This first look verifies nothing, sends nothing and learns nothing else; the connection that speaks verifies.
    """
    look = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    look.check_hostname = False
    look.verify_mode = ssl.CERT_NONE
    probe = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=look)
    try:
        probe.connect()
        shown: Sequence[bytes] = _chain(probe.sock)
    finally:
        probe.close()
    for certificate in shown:
        if sha256(certificate).hexdigest() == ca_sha256.lower():
            return ssl.DER_cert_to_PEM_cert(certificate)
    raise Stop(
        Exit.ENROLMENT,
        f"{host}:{port} does not show the CA that the invite names: it is another hub, or somebody is in between",
    )


def _chain(channel: Any) -> list[bytes]:
    """The certificates the server sent, DER. Public in Python 3.13; before, the same method of the inner object."""
    if hasattr(channel, "get_unverified_chain"):
        return [bytes(der) for der in channel.get_unverified_chain()]
    inner = channel._sslobj.get_unverified_chain() or []  # noqa: SLF001 - see above
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in inner]
