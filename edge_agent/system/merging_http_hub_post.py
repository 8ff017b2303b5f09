"""One POST to the hub's web API: over TLS that trusts pinned CAs alone, or in clear on this very machine.

Law: nothing is sent before the server has shown a chain that ends in a CA we pinned. There is no way around it: not the
system's CAs, not an option, not a first time.
"""

import http.client
import ssl
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from edge_agent.system import merging_http_tls
from wire.http.client import HttpClient, HttpReply
from wire.http.guards import is_loopback
from wire.process.exit_codes import Exit, ExitError

MAX_REPLY_BYTES = 64 * 1024
TIMEOUT_S = 15.0


class Trust(msgspec.Struct, frozen=True):
    """Whom to believe: `authorities` (PEM) where they are known; before, `ca_sha256` (hex, DER) of the invite."""

    floor_ms: int
    authorities: tuple[str, ...] = ()
    ca_sha256: str = ""


def post(url: str, path: str, body: bytes, trust: Trust) -> HttpReply:
    """ExitError(HUB) if nobody answers, ExitError(ENROLMENT) if the server is not the hub.

    The reason of TLS is in the line.
    """
    where = split(url)
    if where.scheme == "http" and not is_loopback(where.hostname or ""):
        raise ExitError(
            Exit.ENROLMENT, f"{where.geturl()}: secrets would cross the network in clear; the hub needs TLS"
        )
    client = HttpClient(
        url=url,
        server="hub",
        tls=partial(_context, where, trust),
        hint="is it running, is the address right?",
        timeout_s=TIMEOUT_S,
        max_reply_bytes=MAX_REPLY_BYTES,
    )
    return client.send("POST", path, body)


def split(url: str) -> SplitResult:
    """ValueError unless it is a plain http or https address."""
    where = urlsplit(url)
    if where.scheme not in ("http", "https") or not where.hostname or where.username or where.query or where.port == 0:
        raise ValueError(url)
    return where


def _context(where: SplitResult, trust: Trust) -> ssl.SSLContext:
    host, port = where.hostname or "", where.port or 443
    return merging_http_tls.context(
        trust.authorities or (_shown_authority(host, port, trust.ca_sha256),), trust.floor_ms
    )


def _shown_authority(host: str, port: int, ca_sha256: str) -> str:
    """The CA (PEM) with this hash, out of the chain that the server shows. ExitError(ENROLMENT) if it is not there.

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
    raise ExitError(
        Exit.ENROLMENT,
        f"{host}:{port} does not show the CA that the invite names: it is another hub, or somebody is in between",
    )


def _chain(channel: Any) -> list[bytes]:
    """The certificates the server sent, DER. Public in Python 3.13; before, the same method of the inner object."""
    if hasattr(channel, "get_unverified_chain"):
        return [bytes(der) for der in channel.get_unverified_chain()]
    inner = channel._sslobj.get_unverified_chain() or []  # noqa: SLF001 - see above
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in inner]
