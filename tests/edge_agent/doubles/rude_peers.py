"""Peers that a device may meet in place of its broker, its hub or its proxy, each on a free port."""

import contextlib
import datetime as dt
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PORTAL = b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\nContent-Length: 0\r\n\r\n<html>sign in</html>"
REFUSED_PROBE = b"\x20\x02\x00\x01"
Behaviour = Callable[[socket.socket], None]


class Certificates:
    """A hub's CA and what it may have issued; `stranger`: a CA that the device does not know."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.ca, self._key = _make_authority("hub")
        self._stranger, self._strangers_key = _make_authority("stranger")

    @property
    def pem(self) -> str:
        return self.ca.public_bytes(serialization.Encoding.PEM).decode()

    def context(
        self, name: str = "localhost", begins_days: float = -1, ends_days: float = 30, *, stranger: bool = False
    ) -> ssl.SSLContext:
        """A server's context with a certificate for `name`, good for these days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        issuer, issuers_key = (self._stranger, self._strangers_key) if stranger else (self.ca, self._key)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=begins_days))
            .not_valid_after(now + dt.timedelta(days=ends_days))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(issuers_key, hashes.SHA256())
        )
        self._number += 1
        file = self._folder / f"server-{self._number}.pem"
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _make_authority(name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=100))
        .not_valid_after(now + dt.timedelta(days=100))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return made, key


def say(answer: bytes) -> Behaviour:
    """Answer the first bytes so, and close."""

    def behave(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(answer)

    return behave


def drip(answer: bytes) -> Behaviour:
    """A byte now and then."""

    def behave(sock: socket.socket) -> None:
        for byte in answer:
            sock.sendall(bytes((byte,)))
            threading.Event().wait(0.02)

    return behave


def stay_silent(sock: socket.socket) -> None:
    while sock.recv(4096):
        pass


def hang_up(sock: socket.socket) -> None:
    """Close without a word."""


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half_close(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)
    stay_silent(sock)


@contextlib.contextmanager
def peer(behave: Behaviour, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a peer that behaves so, by TLS where there is a context."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    open_ones: list[socket.socket] = []

    def handle(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.settimeout(1.0)
            wrapped = context.wrap_socket(sock, server_side=True) if context else sock
            open_ones.append(wrapped)
            behave(wrapped)
        for each in {sock, *open_ones[-1:]} if context else {sock}:
            each.close()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                open_ones.append(sock)
                threads.append(threading.Thread(target=handle, args=(sock,)))
                threads[-1].start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for sock in open_ones:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for each in threads:
            each.join()
        for sock in open_ones:
            sock.close()
