"""Links between a supervisor and ranks of other machines: TLS with a pinned certificate, and a generation's token.

The supervisor listens while a generation starts and no longer. Certificate and token are made for that generation and
reach its ranks through Ray; nobody else can join, and a rank of an older generation cannot either. Rule: a connection
that says anything else costs a bounded time and a bounded number of bytes, and holds up nobody.
"""

import contextlib
import hmac
import os
import queue
import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cloud_hub.engine.sharded import protocol
from cloud_hub.engine.sharded.protocol import JoinOrder, PipeError, RankJoined
from cloud_hub.engine.sharded.tls_link import TlsLink, accept_tls
from wire.process.tls import start_tls

_HANDSHAKE_S = 5.0
_LOOK_S = 0.02
_MAX_STRANGERS = 64  # connections that have not said who they are, at once
_MAX_JOIN_BYTES = 4096
_TOKEN_BYTES = 32
_KEEPALIVE = ((socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class JoinedLink(NamedTuple):
    """The connection of a rank that proved to be of this generation, and what it said of itself."""

    link: TlsLink
    said: RankJoined


class RankListener:
    """Listening socket of one generation, on `host` at one of `ports` (0 = any). OSError if all of them are taken."""

    def __init__(self, host: str, ports: range, generation: int) -> None:
        self._generation = generation
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._context, self._certificate = _make_context()
        self._socket = _listen(host, ports)
        self._host = host
        self._joined: queue.SimpleQueue[JoinedLink | None] = queue.SimpleQueue()
        self._strangers = 0
        self._closed = False

    def make_order(self, rank: int) -> JoinOrder:
        """What a rank of this generation is told, and nobody else may know."""
        port = self._socket.getsockname()[1]
        return JoinOrder(rank, self._generation, self._host, port, self._certificate, self._token)

    def accept_ranks(self, world: int, until: float, check: Callable[[], None]) -> list[JoinedLink]:
        """Wait until all `world` ranks have joined; their links in the order of ranks.

        `check` is called again and again meanwhile and may raise. TimeoutError at `until` (monotonic). Links that were
        taken are closed then.
        """
        found: dict[int, JoinedLink] = {}
        with ExitStack() as undo:
            undo.callback(_close_all, found)
            while len(found) < world and time.monotonic() < until:
                check()
                self._accept_strangers()
                self._take_joined(found, world)
            if len(found) == world:
                undo.pop_all()
        if len(found) < world:
            raise TimeoutError(f"{world - len(found)} of {world} ranks did not connect in time")
        return [found[at] for at in range(world)]

    def close(self) -> None:
        """Listen no more. A link that joined when nobody waited any longer is closed, now or once it has joined."""
        self._closed = True
        self._socket.close()
        self._close_late()

    def _close_late(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                joined = self._joined.get_nowait()
                if joined is not None:
                    joined.link.close()

    def _accept_strangers(self) -> None:
        if self._strangers >= _MAX_STRANGERS:
            time.sleep(_LOOK_S)
        elif select.select([self._socket], [], [], _LOOK_S)[0]:
            link, _ = self._socket.accept()
            self._strangers += 1
            threading.Thread(target=self._meet_stranger, args=(link,), name="hub-rank-join", daemon=True).start()

    def _take_joined(self, found: dict[int, JoinedLink], world: int) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                joined = self._joined.get_nowait()
                self._strangers -= 1
                if joined is None:
                    continue
                if joined.said.rank in found or not 0 <= joined.said.rank < world:
                    joined.link.close()  # it has the token and is no rank that is missing: a defect, not a rank
                else:
                    found[joined.said.rank] = joined

    def _meet_stranger(self, plain: socket.socket) -> None:
        """Let one connection prove that it is a rank of this generation; else close it."""
        until = time.monotonic() + _HANDSHAKE_S
        try:
            plain.settimeout(_HANDSHAKE_S)
            tune_link(plain)
            link = accept_tls(plain, self._context, until)
            said, _ = protocol.receive_message(link, until, _MAX_JOIN_BYTES)
            if not isinstance(said, RankJoined) or not hmac.compare_digest(said.token, self._token):
                raise PipeError("not of this generation")
        except OSError:  # of TLS, too
            plain.close()
            self._joined.put(None)
            return
        self._joined.put(JoinedLink(link, said))
        if self._closed:
            self._close_late()


def dial_supervisor(order: JoinOrder, patience_s: float = 30.0) -> socket.socket:
    """Connect a rank to its supervisor. PipeError if nobody is there, or it is not the one that the order names.

    The rank then sends `RankJoined`: its token goes to nobody else.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate is pinned by its digest below; chains, names and clocks of machines have no say.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        plain = socket.create_connection((order.host, order.port), patience_s)
    except OSError as error:
        raise PipeError(f"no supervisor at {order.host}:{order.port} ({error.strerror or error})") from None
    with ExitStack() as undo:
        undo.callback(plain.close)
        try:
            tune_link(plain)
            link = undo.enter_context(start_tls(context, plain))
        except OSError as error:
            raise PipeError(f"no supervisor at {order.host}:{order.port} ({error})") from None
        seen = sha256(link.getpeercert(binary_form=True) or b"").digest()
        if not hmac.compare_digest(seen, order.certificate):
            raise PipeError(f"another supervisor than ours at {order.host}:{order.port}")
        undo.pop_all()
    link.settimeout(None)
    return link


def tune_link(link: socket.socket) -> None:
    """Send small messages at once, and notice within half a minute that the other machine is gone."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        link.setsockopt(socket.IPPROTO_TCP, option, value)


def find_own_address(host: str) -> str:
    """The IPv4 address of this machine by which it reaches `host`. OSError if there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # no packet is sent: the kernel only chooses the way
        return str(probe.getsockname()[0])


def _close_all(joined: Mapping[int, JoinedLink]) -> None:
    for each in joined.values():
        each.link.close()


def _listen(host: str, ports: range) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(_MAX_STRANGERS)
        except OSError as error:
            listening.close()
            failed = error
        else:
            return listening
    raise OSError(f"cannot listen for ranks on {host}, ports {ports.start} to {ports.stop - 1}: {failed.strerror}")


def _make_context() -> tuple[ssl.SSLContext, bytes]:
    """Server side of TLS 1.3 with a new key, and the SHA-256 of its self-signed certificate (DER)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "skerry ranks")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nothing is resumed
    handle = os.memfd_create("skerry-rank-key", os.MFD_CLOEXEC)  # ssl reads keys from files only; this one has no name
    try:
        os.write(handle, pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context, sha256(certificate.public_bytes(serialization.Encoding.DER)).digest()
