"""Server side of TLS over a connected socket, for one thread that sends while another one receives.

`ssl.SSLSocket` is for one thread at a time. Here records are made and read in memory (`ssl.SSLObject`), under a lock
that is never held while a thread waits for the network.
"""

import contextlib
import socket
import ssl
import threading
import time
from typing import NamedTuple

_RECORDS = 1 << 18  # bytes that are taken from the network at once


class _TlsState(NamedTuple):
    """What all handles of one connection share."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    lock: threading.Lock


class TlsLink:
    """One handle of a TLS connection; `dup` makes another one, with a time limit of its own. Used as a socket is."""

    def __init__(self, plain: socket.socket, state: _TlsState) -> None:
        self._plain = plain
        self._state = state

    @property
    def pending(self) -> bool:
        """Whether something was taken from the network that was not received yet: no selector shows that."""
        with self._state.lock:
            return bool(self._state.incoming.pending or self._state.tls.pending())

    def fileno(self) -> int:
        return self._plain.fileno()

    def settimeout(self, value: float | None, /) -> None:
        """Limit in seconds for each wait of this handle; None = none."""
        self._plain.settimeout(value)

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Send all of it. OSError if the other side is gone or does not read in time."""
        with self._state.lock:
            left = memoryview(data).cast("B")
            while left:
                left = left[self._state.tls.write(left) :]
            records = self._state.outgoing.read()
        self._plain.sendall(records)

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive up to the buffer's size; 0 if the other side ended. OSError if nothing comes in time."""
        while True:
            with self._state.lock, contextlib.suppress(ssl.SSLWantReadError):
                return int(self._state.tls.read(len(buffer), buffer))
            data = self._plain.recv(_RECORDS)
            if not data:
                return 0
            with self._state.lock:
                self._state.incoming.write(data)

    def dup(self) -> "TlsLink":
        """Another handle of the same connection."""
        return TlsLink(self._plain.dup(), self._state)

    def shutdown(self, how: int, /) -> None:
        """End the connection below TLS: whoever waits for it wakes."""
        self._plain.shutdown(how)

    def close(self) -> None:
        """Close this handle."""
        self._plain.close()


def accept_tls(plain: socket.socket, context: ssl.SSLContext, until: float) -> TlsLink:
    """Do the server's side of the handshake by `until` (monotonic). OSError otherwise; the caller closes `plain`."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    done = False
    while not done:
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            done = True
        if outgoing.pending:
            plain.sendall(outgoing.read())
        if not done:
            plain.settimeout(max(0.001, until - time.monotonic()))
            data = plain.recv(_RECORDS)
            if not data:
                raise ConnectionResetError("ended before it was encrypted")
            incoming.write(data)
    return TlsLink(plain, _TlsState(tls, incoming, outgoing, threading.Lock()))
