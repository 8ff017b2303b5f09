"""HTTPS POST to the hub's web API, with pinned CAs and hub time instead of the wall clock; plain HTTP on loopback only.

Rule: nothing is sent before the server has shown a chain that ends in a CA we pinned. There is no way around it: not
the system's CAs, not an option, not a first time.
Rule: OpenSSL checks chain and name, but no dates (its clock may say 1970, or 2036). A server certificate is refused if
it ended before the floor, the latest hub time that the CA itself signed (at enrolment and each renewal: the hub's other
keys could lie about it and lock every device out); one that begins later only proves that time has passed. So a wrong
clock locks nobody out, and a certificate that has certainly expired is refused.
"""

import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import SplitResult

import msgspec

from wire.http.access import is_loopback
from wire.http.client import HttpClient, HttpReply, HttpServer, dial, parse_http_url
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.proxy import NO_PROXY, ForwardProxy

# X509_V_FLAG_NO_CHECK_TIME (OpenSSL, x509_vfy.h); Python has no name for it.
_NO_CHECK_TIME = 0x200000


class DeviceTlsSocket(ssl.SSLSocket):
    """TLS socket that checks the peer's certificate against the time floor right after the handshake."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
            if isinstance(self.context, DeviceTlsContext):
                self.context.check_not_ended(self.getpeercert() or {})
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise  # the handshake has not failed, it is only incomplete
        except OSError:
            self.close()  # the caller does not close a socket whose handshake fails
            raise


class DeviceTlsContext(ssl.SSLContext):
    """TLS client context with the time floor in hub milliseconds; made by `context`."""

    sslsocket_class = DeviceTlsSocket
    floor_ms: int

    def check_not_ended(self, certificate: Mapping[str, object]) -> None:
        """Raise SSLCertVerificationError if the certificate ended before the floor.

        `certificate`: as `ssl.SSLSocket.getpeercert` returns it.
        """
        ends = certificate.get("notAfter")
        if not isinstance(ends, str) or ssl.cert_time_to_seconds(ends) * 1000 < self.floor_ms:
            raise ssl.SSLCertVerificationError(f"the server's certificate ended before hub time: {ends}")


def make_tls_context(authorities: Sequence[str], floor_ms: int) -> DeviceTlsContext:
    """A TLS context that trusts these CAs (PEM) and no other; TLS 1.2 and up, host name checked.

    `floor_ms`: hub time in milliseconds that a server certificate must not have ended before. ssl.SSLError if a CA
    cannot be read.
    """
    made = DeviceTlsContext(ssl.PROTOCOL_TLS_CLIENT)
    made.floor_ms = floor_ms
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.verify_flags |= _NO_CHECK_TIME
    made.load_verify_locations(cadata="".join(authorities))
    return made


MAX_REPLY_BYTES = 64 * 1024
TIMEOUT_S = 15.0


class HubTrust(msgspec.Struct, frozen=True):
    """What a connection to the hub trusts.

    `authorities`: pinned CAs (PEM), once they are known; before that `ca_sha256`: hash (hex, of the DER form) from the
    invite.
    """

    floor_ms: int
    authorities: tuple[str, ...] = ()
    ca_sha256: str = ""


def post_to_hub(url: str, path: str, body: bytes, trust: HubTrust, proxy: ForwardProxy = NO_PROXY) -> HttpReply:
    """POST `body` to a path of the hub's web API and return the reply, whatever its status. `proxy`: on the way.

    ExitError(HUB) if nobody answers, ExitError(ENROLMENT) if the server is not the hub; the message names the TLS
    failure.
    """
    where = split_address(url)
    if where.scheme == "http" and not is_loopback(where.hostname or ""):
        raise ExitError(
            ExitCode.ENROLMENT, f"{where.geturl()}: secrets would cross the network in clear; the hub needs TLS"
        )
    client = HttpClient(
        url=url,
        server="hub",
        tls=partial(_make_context, where, trust, proxy),
        proxy=proxy,
        hint="is it running, is the address right?",
        timeout_s=TIMEOUT_S,
        max_reply_bytes=MAX_REPLY_BYTES,
    )
    return client.send("POST", path, body)


def split_address(url: str) -> SplitResult:
    """Parse a hub address. ValueError unless it is a plain http or https address."""
    where = parse_http_url(url)
    if where.query:
        raise ValueError(url)
    return where


def _make_context(where: SplitResult, trust: HubTrust, proxy: ForwardProxy) -> ssl.SSLContext:
    authorities = trust.authorities or (_fetch_shown_authority(where, trust.ca_sha256, proxy),)
    return make_tls_context(authorities, trust.floor_ms)


def _fetch_shown_authority(where: SplitResult, ca_sha256: str, proxy: ForwardProxy) -> str:
    """The CA (PEM) with this hash, out of the chain that the server shows. ExitError(ENROLMENT) if it is not there.

    This first connection verifies nothing, sends nothing and reads nothing else; the next one verifies against that CA.
    """
    look = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    look.check_hostname = False
    look.verify_mode = ssl.CERT_NONE
    server = HttpServer.of(where)
    with dial(server, TIMEOUT_S, lambda: look, proxy) as channel:
        shown = _read_shown_chain(channel)
    for certificate in shown:
        if sha256(certificate).hexdigest() == ca_sha256.lower():
            return ssl.DER_cert_to_PEM_cert(certificate)
    raise ExitError(
        ExitCode.ENROLMENT,
        f"{server.host}:{server.port} does not show the CA that the invite names: it is another hub, or somebody is in"
        " between",
    )


def _read_shown_chain(channel: Any) -> list[bytes]:
    """The certificates the server sent, DER. Public in Python 3.13; before, the same method of the inner object."""
    if hasattr(channel, "get_unverified_chain"):
        return [bytes(der) for der in channel.get_unverified_chain()]
    inner = channel._sslobj.get_unverified_chain() or []  # noqa: SLF001 - see above
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in inner]
