"""Sockets of the transports: dialling TCP and TLS without blocking the event loop, and counting what was sent."""

import asyncio
import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import Protocol

from wire.process.proxy import MAX_HEAD_BYTES, HttpHead, parse_http_head
from wire.process.tls import start_tls


class ByteSocket(Protocol):
    """What a transport needs of a connected socket that does not block, or of what stands for one."""

    def fileno(self) -> int:
        """Descriptor, for the event loop."""
        ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """As of a socket."""
        ...

    def send(self, data: bytes, /) -> int:
        """Send some bytes; how many. BlockingIOError, or ssl's, if none can be taken now."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Receive some bytes, b"" at the end. BlockingIOError, or ssl's, if there are none now."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


_BYTES_SENT_AT = 200  # in struct tcp_info of linux/tcp.h: tcpi_bytes_sent, tcpi_bytes_retrans
_BYTES_SENT = struct.Struct("=QQ")


def count_sent_bytes(sock: ByteSocket) -> int:
    """Bytes that a TCP socket has sent, retransmissions not counted.

    Read from `tcp_info` (Linux 4.19 and later); 0 on other systems and for a closed socket.
    """
    option = getattr(socket, "TCP_INFO", None)
    if option is None or not sys.platform.startswith("linux"):
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _BYTES_SENT.size + _BYTES_SENT_AT)
    except OSError:
        return 0
    if len(info) < _BYTES_SENT.size + _BYTES_SENT_AT:
        return 0
    sent, repeated = _BYTES_SENT.unpack_from(info, _BYTES_SENT_AT)
    return int(sent - repeated)


async def dial_tcp(host: str, port: int) -> socket.socket:
    """A connected socket that does not block. OSError if no address of the host can be reached."""
    loop = asyncio.get_running_loop()
    failed = OSError(errno.EADDRNOTAVAIL, "")
    for family, kind, protocol, _, address in await _resolve(loop, host, port):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            # Nagle's algorithm and delayed ACKs together cost 88 ms a round trip; this option brings it to 0.3 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise OSError(failed.errno, f"{host}:{port}: {os.strerror(failed.errno or 0)}")


async def _resolve(
    loop: asyncio.AbstractEventLoop, host: str, port: int
) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    """Addresses of a host; one that is a number is not looked up, which would take a thread."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(errno.EINVAL, f"'{host}' is no name of a machine") from None
    return found  # type: ignore[return-value]  # addresses are passed on as they are


async def wrap_tls(sock: socket.socket, tls: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """The socket after its TLS handshake. OSError (`ssl.SSLError`) if it fails; the socket is closed then."""
    wrapped = start_tls(tls, sock, host, handshake=False)
    loop = asyncio.get_running_loop()
    try:
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await _wait_until(loop.add_reader, loop.remove_reader, wrapped)
            except ssl.SSLWantWriteError:
                await _wait_until(loop.add_writer, loop.remove_writer, wrapped)
            else:
                return wrapped
    except BaseException:
        wrapped.close()
        raise


async def exchange_head(sock: socket.socket, request: bytes) -> tuple[HttpHead, bytes]:
    """Send an HTTP request without a body; returns the head of the answer, and the bytes behind it.

    OSError for what is no HTTP answer, or is too long.
    """
    await _send_whole(sock, request)
    data = b""
    while b"\r\n\r\n" not in data:
        more = await _receive_some(sock)
        data += more
        if not more or len(data) > MAX_HEAD_BYTES:
            raise OSError("the connection ended" if not more else "an answer without an end")
    head, _, rest = data.partition(b"\r\n\r\n")
    return parse_http_head(head), rest


async def _send_whole(sock: socket.socket, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[sock.send(data) :]
        except (ssl.SSLWantWriteError, BlockingIOError):
            await _wait_until(loop.add_writer, loop.remove_writer, sock)
        except ssl.SSLWantReadError:
            await _wait_until(loop.add_reader, loop.remove_reader, sock)


async def _receive_some(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    while True:
        try:
            return sock.recv(4096)
        except (ssl.SSLWantReadError, BlockingIOError):
            await _wait_until(loop.add_reader, loop.remove_reader, sock)
        except ssl.SSLWantWriteError:
            await _wait_until(loop.add_writer, loop.remove_writer, sock)


async def _wait_until(add: Callable[..., None], remove: Callable[[int], bool], sock: socket.socket) -> None:
    """Wait until a socket can be read, or written."""
    future = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    add(sock.fileno(), wake)
    try:
        await future
    finally:
        remove(sock.fileno())
