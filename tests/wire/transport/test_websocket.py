"""WebSocket frames: whatever way a server cuts them the bytes are the same, and nothing it sends raises but OSError."""

import asyncio
import base64
import hashlib
import struct
from contextlib import suppress
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.process.exit_codes import ExitCode, ExitError
from wire.transport.base import LinkLostError
from wire.transport.mqtt import MqttTransport
from wire.transport.routes import LinkRoute, check_route
from wire.transport.sockets import dial_tcp
from wire.transport.websocket import FrameReader, apply_mask, encode_frame, upgrade_socket

PIECES = st.lists(st.binary(max_size=400), max_size=6)


def server_frame(opcode: int, body: bytes, *, final: bool = True) -> bytes:
    """A frame as a server sends it: unmasked."""
    size = len(body)
    head = bytes((0x80 * final | opcode,))
    if size <= 125:
        return head + bytes((size,)) + body
    return head + (b"\x7e" + struct.pack("!H", size) if size < 1 << 16 else b"\x7f" + struct.pack("!Q", size)) + body


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(each, len(data)) for each in at), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


@given(PIECES, st.lists(st.integers(0, 2000)), st.booleans())
def test_payload_comes_out_whole_however_it_is_cut(pieces: list[bytes], at: list[int], fragmented: bool) -> None:
    if fragmented and pieces:
        kinds = [0x2, *[0x0] * (len(pieces) - 1)]
        frames = [server_frame(kind, piece, final=False) for kind, piece in zip(kinds, pieces, strict=True)]
        frames[-1] = server_frame(kinds[-1], pieces[-1])
    else:
        frames = [server_frame(0x2, piece) for piece in pieces]
    stream = server_frame(0x9, b"are you there").join([b"", *frames]) if frames else b""
    reader = FrameReader()
    found = b"".join(reader.feed(piece) for piece in cut(stream, at))
    assert found == b"".join(pieces)
    assert not reader.ended


@given(st.binary(max_size=70_000), st.binary(min_size=4, max_size=4))
def test_a_mask_comes_off_again(data: bytes, mask: bytes) -> None:
    assert apply_mask(apply_mask(data, mask), mask) == data


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_a_client_frame_is_masked_and_says_its_size(size: int) -> None:
    frame = encode_frame(0x2, b"x" * size)
    assert frame[0] == 0x82
    assert frame[1] & 0x80
    at = {126: 4, 127: 10}.get(frame[1] & 0x7F, 2)
    assert apply_mask(frame[at + 4 :], frame[at : at + 4]) == b"x" * size


@given(st.lists(st.binary(max_size=60)))
def test_no_bytes_of_a_server_raise_anything_but_oserror(pieces: list[bytes]) -> None:
    reader = FrameReader()
    with suppress(OSError):
        for piece in pieces:
            reader.feed(piece)


def test_a_close_ends_the_stream_and_the_newest_ping_is_to_be_answered() -> None:
    reader = FrameReader()
    stream = server_frame(0x9, b"1") + server_frame(0x9, b"2") + server_frame(0x2, b"x") + server_frame(0x8, b"")
    assert reader.feed(stream + server_frame(0x2, b"late")) == b"x"
    assert reader.take_pings() == [b"2"]
    assert reader.ended


class Server:
    """Answers one connection: `reply` gets the request's head, then bytes go back as they came, framed."""

    def __init__(self, status: str = "101 Switching Protocols", accept: str = "", protocol: str = "mqtt") -> None:
        self.status, self.accept, self.protocol = status, accept, protocol

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
        digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        accept = self.accept or base64.b64encode(digest).decode()
        lines = f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {self.protocol}\r\n\r\n"
        writer.write(f"HTTP/1.1 {self.status}\r\n{lines}".encode())
        writer.close()


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (Server(status="404 Not Found"), "HTTP 404"),
        (Server(status="200 OK"), "HTTP 200"),
        (Server(accept="c29tZWJvZHkgZWxzZQ=="), "no MQTT broker"),
        (Server(protocol="chat"), "no MQTT broker"),
    ],
)
async def test_a_server_without_mqtt_over_websocket_is_refused_with_what_it_said(server: Server, why: str) -> None:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    route = LinkRoute(websocket=f"ws://127.0.0.1:{port}/mqtt")
    with pytest.raises(LinkLostError, match=why):
        await MqttTransport.connect_by(route, "127.0.0.1", 1, "d", None, timeout_s=5.0)
    sock = await dial_tcp("127.0.0.1", port)
    with pytest.raises(OSError, match=why):
        await upgrade_socket(sock, urlsplit(route.websocket))
    sock.close()
    listening.close()


@pytest.mark.parametrize(
    "route",
    [
        LinkRoute(websocket="https://hub.example/mqtt"),
        LinkRoute(websocket="wss://"),
        LinkRoute(websocket="wss://hub.example:99999/"),
        LinkRoute(proxy="socks5://proxy.example:1080"),
        LinkRoute(proxy="http://user:word@proxy.example:3128"),
        LinkRoute(credentials_file="/nowhere"),
    ],
)
def test_a_route_that_cannot_be_taken_is_a_wrong_configuration(route: LinkRoute) -> None:
    with pytest.raises(ExitError) as stopped:
        check_route(route)
    assert stopped.value.code is ExitCode.CONFIG
