"""Whether what answers at an address is an MQTT broker, found without opening a session.

A CONNECT of a protocol level that no broker has is sent: a broker refuses it, and a session of the same client id goes
on. Its client id ends an HTTP request, so that a web server answers too. Nothing that a peer does raises anything but
OSError.
"""

import asyncio
import ssl
from enum import StrEnum

from wire.transport.routes import LinkRoute, open_route
from wire.transport.sockets import ByteSocket

_CONNACK = 0x20
_LEVEL = 0x7F  # of no MQTT that there is
_CLIENT_ID = b"skerry-doctor\r\n\r\n"
_BODY = b"\x00\x04MQTT" + bytes((_LEVEL, 2, 0, 20)) + b"\x00" + len(_CLIENT_ID).to_bytes(2, "big") + _CLIENT_ID
_PROBE = bytes((0x10, len(_BODY))) + _BODY
_WOULD_BLOCK = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class BrokerAnswer(StrEnum):
    """What a peer answers to the probe."""

    MQTT = "refuses the probe, as an MQTT broker does"
    HTTP = "speaks HTTP, not MQTT: a captive portal or another server"
    OTHER = "answers with something that is no MQTT"
    CLOSED = "ends the connection without an answer"
    SILENT = "does not answer"


async def probe_broker(
    route: LinkRoute, host: str, port: int, tls: ssl.SSLContext | None, *, step_s: float, alert_s: float = 0.3
) -> BrokerAnswer:
    """Connect by a route and look who is there. OSError if no connection can be made, with the step that failed.

    `alert_s`: how long to wait for a refusal of our certificate, which TLS 1.3 sends after the handshake: ssl.SSLError.
    """
    sock = await open_route(route, host, port, tls, step_s)
    try:
        said = await _receive_within(sock, alert_s)
        if said == b"" and tls is not None:
            raise ssl.SSLError(1, "the connection was ended at once")
        if said is None:
            try:
                sock.send(_PROBE)  # fits any buffer: nothing was sent before
                said = await _receive_within(sock, step_s)
            except ConnectionError:
                said = b""
        return _judge(said)
    finally:
        sock.close()


def _judge(said: bytes | None) -> BrokerAnswer:
    if not said:
        return BrokerAnswer.SILENT if said is None else BrokerAnswer.CLOSED
    if said.startswith(b"HTTP/") or said.lstrip().startswith(b"<"):
        return BrokerAnswer.HTTP
    return BrokerAnswer.MQTT if said[0] == _CONNACK else BrokerAnswer.OTHER


async def _receive_within(sock: ByteSocket, limit_s: float) -> bytes | None:
    """The next bytes, b"" at the end; None if none come within the limit."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock.fileno(), ready.set)
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    return sock.recv(4096)
                except _WOULD_BLOCK:
                    ready.clear()
                    await ready.wait()
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(sock.fileno())
