"""MQTT over WebSocket (RFC 6455, and section 6 of OASIS MQTT 5.0): a connected socket as a socket of bytes.

It is used like the socket below it, without blocking, so that TLS with the device's own checks and the kernel's count
of bytes stay what they are. What is sent goes out as masked binary frames; how the peer has cut its frames does not
matter, as MQTT is a stream. Rule: nothing that a peer sends raises anything but OSError.
"""

import asyncio
import base64
import hashlib
import os
import secrets
import socket
import ssl
import struct
from contextlib import suppress
from urllib.parse import SplitResult

from wire.transport.sockets import exchange_head

PROTOCOL = "mqtt"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_SENT_BYTES = 65_536  # of one frame
_READ_BYTES = 65_536
_MAX_CONTROL_BYTES = 125
_FINAL, _MASKED = 0x80, 0x80
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA
_WOULD_BLOCK = (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError)


async def upgrade_socket(sock: socket.socket, url: SplitResult) -> "WebSocketStream":
    """Ask the server of a connected socket for a WebSocket. OSError if it has none for MQTT there."""
    key = base64.b64encode(secrets.token_bytes(16))
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = (
        f"GET {path} HTTP/1.1", f"Host: {url.netloc}", "Upgrade: websocket", "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key.decode()}", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Protocol: {PROTOCOL}",
    )  # fmt: skip
    head, rest = await exchange_head(sock, "\r\n".join((*lines, "", "")).encode())
    if head.status != 101:
        raise OSError(f"the server has no WebSocket at {url.geturl()}: HTTP {head.status}")
    wanted = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
    if head.fields.get("sec-websocket-accept") != wanted or head.fields.get("sec-websocket-protocol") != PROTOCOL:
        raise OSError(f"what answers at {url.geturl()} is no MQTT broker")
    return WebSocketStream(sock, rest)


class WebSocketStream:
    """Bytes over the frames of one WebSocket. `received`: what came behind the server's answer."""

    def __init__(self, sock: socket.socket, received: bytes = b"") -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self._payload = self._frames.feed(received)
        self._out = b""

    def fileno(self) -> int:
        """Of the socket below."""
        return self._sock.fileno()

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Of the socket below."""
        return self._sock.getsockopt(level, option, size)

    def send(self, data: bytes) -> int:
        """Send some bytes as one frame; how many. BlockingIOError while a former frame is not out yet."""
        self._push()
        if self._out:
            raise BlockingIOError
        taken = data[:_MAX_SENT_BYTES]
        self._out = encode_frame(_BINARY, taken)
        self._push()
        if self._out:  # nobody else waits for the rest of the frame
            self._loop.add_writer(self.fileno(), self._drain)
        return len(taken)

    def _push(self) -> None:
        with suppress(*_WOULD_BLOCK):
            while self._out:
                self._out = self._out[self._sock.send(self._out) :]

    def _drain(self) -> None:
        try:
            self._push()
        except OSError:
            self._out = b""  # whoever reads hears of it
        if not self._out:
            self._loop.remove_writer(self.fileno())

    def recv(self, size: int) -> bytes:
        """Some received bytes, b"" at the end. BlockingIOError (or ssl's) if there are none now."""
        while not self._payload:
            if self._frames.ended:
                return b""
            data = self._sock.recv(_READ_BYTES)
            if not data:
                return b""
            self._payload = self._frames.feed(data)
            self._answer_pings()
        taken, self._payload = self._payload[:size], self._payload[size:]
        return taken

    def _answer_pings(self) -> None:
        for body in self._frames.take_pings():
            if not self._out:  # a peer that pings while it does not read is not answered
                self._out = encode_frame(_PONG, body)
                self._push()
                if self._out:
                    self._loop.add_writer(self.fileno(), self._drain)

    def close(self) -> None:
        """Say goodbye as far as the socket takes it, and close it."""
        with suppress(OSError):
            self._push()
            if not self._out:
                self._sock.send(encode_frame(_CLOSE, struct.pack("!H", 1000)))
        with suppress(OSError, ValueError):
            self._loop.remove_writer(self.fileno())
        self._sock.close()


def encode_frame(opcode: int, data: bytes) -> bytes:
    """One whole frame of a client: masked, as RFC 6455 (5.3) asks of every one."""
    size, mask = len(data), os.urandom(4)
    if size <= _MAX_CONTROL_BYTES:
        head = bytes((_FINAL | opcode, _MASKED | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | opcode, _MASKED | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | opcode, _MASKED | 127)) + size.to_bytes(8, "big")
    return head + mask + apply_mask(data, mask)


def apply_mask(data: bytes, mask: bytes) -> bytes:
    """Bytes XOR the mask, over and over; the same again takes it off."""
    if not data:
        return b""
    key = mask * (len(data) // 4 + 1)
    return (int.from_bytes(data, "big") ^ int.from_bytes(key[: len(data)], "big")).to_bytes(len(data), "big")


class FrameReader:
    """Takes frames of a server apart, however they are cut. OSError for what no server may send.

    `ended`: the server has closed the WebSocket.
    """

    def __init__(self) -> None:
        self.ended = False
        self._rest = bytearray()
        self._left = 0  # payload bytes of the present binary frame
        self._within = False  # a message whose last frame has not come
        self._pings: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Take in received bytes; returns the payload that they bring."""
        self._rest += data
        found = bytearray()
        while self._rest and not self.ended:
            if self._left:
                piece = self._take(self._left)
                self._left -= len(piece)
                found += piece
            elif not self._take_head():
                break
        return bytes(found)

    def take_pings(self) -> list[bytes]:
        """Bodies of the pings that came since the last call."""
        found, self._pings = self._pings, []
        return found

    def _take(self, count: int) -> bytes:
        """Take up to `count` bytes off the front, in time linear in that count."""
        taken = bytes(self._rest[:count])
        del self._rest[:count]
        return taken

    def _take_head(self) -> bool:
        """Read the next frame's head, and the body of a control frame. False if it is not whole yet."""
        rest = self._rest
        if len(rest) < 2:
            return False
        opcode, size = rest[0] & 0x0F, rest[1] & 0x7F
        final = bool(rest[0] & _FINAL)
        if rest[0] & 0x70 or rest[1] & _MASKED:
            raise OSError("the server broke the rules of WebSocket")
        at = 2 + {126: 2, 127: 8}.get(size, 0)
        if len(rest) < at:
            return False
        size = int.from_bytes(rest[2:at], "big") if at > 2 else size
        if opcode in (_CLOSE, _PING, _PONG):
            return self._take_control(opcode, at, size)
        if opcode != (_CONTINUATION if self._within else _BINARY):
            raise OSError("the server broke the rules of WebSocket: no frame of a binary message")
        self._take(at)
        self._left, self._within = size, not final
        return True

    def _take_control(self, opcode: int, at: int, size: int) -> bool:
        if size > _MAX_CONTROL_BYTES or not self._rest[0] & _FINAL:
            raise OSError("the server broke the rules of WebSocket: a control frame that is too long")
        if len(self._rest) < at + size:
            return False
        body = self._take(at + size)[at:]
        self.ended = opcode == _CLOSE
        if opcode == _PING:
            self._pings = [*self._pings, body][-1:]  # the newest is the one to answer (5.5.3)
        return True
