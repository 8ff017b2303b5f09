"""A connection to a broker of the device's own site, by paho-mqtt: MQTT 5, or 3.1.1 where the broker has nothing newer.

It runs on the event loop, over a socket that is dialled as the link to the hub is. Rule: whatever a broker sends,
nothing but LinkLostError is raised, and no more is held than `_PAUSE_BYTES` and one packet.
"""

import asyncio
import io
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_agent.system.site_broker import (
    BrokerSection,
    SiteAddress,
    make_client_context,
    parse_broker,
    read_secret,
)
from wire.errors import LocalError
from wire.process.exit_codes import ExitError
from wire.process.time_limits import StepTimeoutError, describe_failure, limit_step
from wire.protocol.codec import MAX_FRAME_BYTES
from wire.transport import reason_codes
from wire.transport.base import (
    MAX_DRAIN_MESSAGES,
    DeliveryOutcome,
    IncomingMessage,
    LinkLostError,
    SessionTakenOverError,
)
from wire.transport.routes import DIRECT, open_route

MAX_PACKET_BYTES = 1 << 20  # of one packet that is received
_STEP_S = 5.0  # for TCP, TLS, CONNECT and SUBSCRIBE, each
_KEEP_ALIVE_S = 20
_TICK_S = 5.0  # how often paho looks whether a ping is due
_GOODBYE_S = 1.0
_PACKET_OVERHEAD_BYTES = 64  # fixed header, topic length, packet id, properties
_UNLIMITED_BYTES = 268_435_455  # the protocol's own largest packet
_MAX_TEXT_BYTES = 65_535  # of a topic
_MAX_IN_FLIGHT = 1000
_READ_BYTES = 65_536
_READ_PACKETS = 256  # at most, in one turn of the event loop
_PAUSE_BYTES = 32 * 1024 * 1024  # received and not taken yet: then nothing more is read
_HTTP = b"HTTP/"
_QOS_2 = 0x34  # PUBLISH of QoS 2, in the first byte of a packet
_MALFORMED = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, struct.error, MQTTException)
_VERSIONS = (MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311)


class _BoundedClient(Client):
    """paho's client on a connected socket, with two limits that it has no option for: a packet's size, and no QoS 2.

    `_create_socket`, `_sock_recv` and `_packet_handle` are private parts of paho 2; tests with a hostile broker hold
    that they work. `fault`: why the connection ended, where paho does not say. `has_more`: received bytes wait to be
    parsed.
    """

    def __init__(self, client_id: str, version: MQTTProtocolVersion, sock: socket.socket) -> None:
        clean_session = True if version is MQTTProtocolVersion.MQTTv311 else None
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id, clean_session, protocol=version, reconnect_on_failure=False
        )
        self._dialled = sock
        self.max_inflight_messages_set(0)  # counted here, since a broker states its own limit after we are connected
        self.fault = ""
        self.has_more = False
        self._pieces = io.BytesIO()

    def _create_socket(self) -> socket.socket:
        return self._dialled

    def _sock_recv(self, bufsize: int) -> bytes:
        """Received bytes, read from the socket in large pieces."""
        if bufsize > MAX_PACKET_BYTES:
            raise self._refuse(f"a packet of {bufsize} bytes")
        data = self._pieces.read(bufsize)
        if not data:
            self.has_more = False
            try:
                piece = super()._sock_recv(_READ_BYTES)
            except BlockingIOError:
                raise
            except OSError as error:
                self.fault = str(error)
                raise
            if piece.startswith(_HTTP) and not self.is_connected():
                raise self._refuse("HTTP, not MQTT")
            self.has_more = bool(piece)
            self._pieces = io.BytesIO(piece)
            data = self._pieces.read(bufsize)
        return data

    def _packet_handle(self) -> MQTTErrorCode:
        if int(self._in_packet["command"]) & 0xF6 == _QOS_2:  # paho would hold each until the broker releases it
            raise self._refuse("a message of QoS 2")
        return super()._packet_handle()

    def _refuse(self, what: str) -> ConnectionError:
        self.fault = f"the broker sent {what}"
        return ConnectionError(self.fault)


class SiteConnection:
    """One connection to a broker of the site. Make it with `connect_broker`; after LinkLostError make another."""

    def __init__(self, client: _BoundedClient, sock: socket.socket, *, wants_retained: bool) -> None:
        self._client = client
        self._sock = sock
        self._wants_retained = wants_retained
        self._loop = asyncio.get_running_loop()
        self._fileno = sock.fileno()
        self._paused = False
        self._inbox: list[IncomingMessage] = []
        self._inbox_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._acks: dict[int, asyncio.Future[DeliveryOutcome]] = {}
        self._waiting: deque[tuple[str, bytes, bool, asyncio.Future[DeliveryOutcome]]] = deque()
        self._room = _MAX_IN_FLIGHT
        self._answers: dict[int, asyncio.Future[list[int]]] = {}
        self._opened: asyncio.Future[int] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._why = ""
        self._lost_class: type[LinkLostError] = LinkLostError
        self._timer: asyncio.TimerHandle | None = None
        self._max_packet_bytes = _UNLIMITED_BYTES

    async def open(self) -> int:
        """Send CONNECT; returns the broker's answer: success, or that it does not speak this version.

        LinkLostError for everything else.
        """
        client, properties = self._client, None
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_message, client.on_publish = self._on_message, self._on_publish
        client.on_subscribe, client.on_socket_close = self._on_subscribe, self._on_socket_close
        if client.protocol is MQTTProtocolVersion.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.MaximumPacketSize = MAX_PACKET_BYTES
        self._loop.add_reader(self._fileno, self._on_readable)
        self._guard(lambda: client.connect("broker", keepalive=_KEEP_ALIVE_S, properties=properties))
        self._watch_writing()
        self._tick()
        try:
            async with limit_step("CONNECT", _STEP_S):
                return await self._opened
        except StepTimeoutError as error:
            self._lose(str(error))
            raise LinkLostError(str(error)) from None
        except asyncio.CancelledError:
            self._lose("abandoned")
            raise

    # -- what we say

    async def subscribe(self, filters: tuple[str, ...]) -> None:
        """Subscribe at QoS 0. Raises LinkLostError if the link is gone or the broker refuses a filter.

        At QoS 1 a broker hands out only so many messages (20, Mosquitto) that are not acknowledged yet, and drops what
        it may not queue; without a session to resume, QoS 1 would save nothing either.
        """
        self._check_link()
        wanted: Any = [(each, 0) for each in filters]
        if self._client.protocol is MQTTProtocolVersion.MQTTv5 and not self._wants_retained:
            options = SubscribeOptions(retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
            wanted = [(each, options) for each in filters]
        _, packet_id = self._client.subscribe(wanted)
        future: asyncio.Future[list[int]] = self._loop.create_future()
        if packet_id is None:
            raise LinkLostError(self._why or "not connected")
        self._answers[packet_id] = future
        self._watch_writing()
        try:
            async with limit_step("SUBSCRIBE", _STEP_S):
                codes = await future
        except StepTimeoutError as error:
            raise LinkLostError(str(error)) from None
        finally:
            self._answers.pop(packet_id, None)
        if len(codes) != len(filters):
            raise LinkLostError(f"the broker answered {len(codes)} of {len(filters)} subscriptions")
        refused = [name for name, code in zip(filters, codes, strict=True) if code >= reason_codes.FAILURE]
        if refused:
            raise LinkLostError(f"the broker refused the subscription to {refused[0]}")

    def post(self, topic: str, payload: bytes, *, retained: bool = False) -> "asyncio.Future[DeliveryOutcome]":
        """Publish at QoS 1 without waiting for the broker's acknowledgement. `retained`: for later subscribers too.

        Raises LocalError for a message that the broker does not take, LinkLostError without a link.
        """
        # One message over the broker's limit makes it hang up, and again after each reconnect: never hand it over.
        try:
            topic_bytes = len(topic.encode())
        except UnicodeEncodeError:
            topic_bytes = 0  # no text
        limit = min(MAX_FRAME_BYTES, self._max_packet_bytes - topic_bytes - _PACKET_OVERHEAD_BYTES)
        if len(payload) > limit:
            raise LocalError(f"message of {len(payload)} bytes, the broker takes {limit}")
        if not 0 < topic_bytes <= _MAX_TEXT_BYTES or any(each in topic for each in "+#\0"):
            raise LocalError(f"{topic[:60]!r} is no topic to publish to")
        self._check_link()
        future: asyncio.Future[DeliveryOutcome] = self._loop.create_future()
        self._waiting.append((topic, payload, retained, future))
        self._publish_waiting()
        return future

    def _publish_waiting(self) -> None:
        while self._waiting and len(self._acks) < self._room and not self._over.done():
            topic, payload, retained, future = self._waiting.popleft()
            sent = self._client.publish(topic, payload, 1, retained)
            if sent.rc or self._over.done():
                _settle(future, DeliveryOutcome.LOST)
            else:
                self._acks[sent.mid] = future
        self._watch_writing()

    def _check_link(self) -> None:
        if self._over.done():
            raise self._lost_class(self._why)

    def _watch_writing(self) -> None:
        """Have what paho has not sent yet sent once the socket can be written."""
        if self._fileno >= 0 and self._client.want_write():
            self._loop.add_writer(self._fileno, self._on_writable)
        elif self._fileno >= 0:
            self._loop.remove_writer(self._fileno)

    def _on_writable(self) -> None:
        self._guard(self._client.loop_write)
        self._watch_writing()

    # -- what the broker says

    def _on_readable(self) -> None:
        for _ in range(_READ_PACKETS):
            if self._over.done() or self._paused:
                return
            self._guard(self._client.loop_read)
            if not self._client.has_more:
                break
        else:
            self._loop.call_soon(self._on_readable)
        self._publish_waiting()

    def _guard(self, step: Callable[[], Any]) -> None:
        """Take a step of paho's. What it raises for malformed packets, of many classes, ends this connection."""
        try:
            step()
        except _MALFORMED as error:
            self._lose(self._client.fault or f"the broker sent what is malformed ({type(error).__name__})")

    def _on_connect(self, _c: Client, _u: Any, _f: ConnectFlags, reason: ReasonCode, properties: Any) -> None:
        if self._opened.done():
            self._lose("the broker sent a second CONNACK")
        elif reason.value in (reason_codes.ReasonCode.SUCCESS, reason_codes.ReasonCode.UNSUPPORTED_PROTOCOL_VERSION):
            self._max_packet_bytes = getattr(properties, "MaximumPacketSize", _UNLIMITED_BYTES)
            self._room = min(_MAX_IN_FLIGHT, getattr(properties, "ReceiveMaximum", _MAX_IN_FLIGHT))
            self._opened.set_result(reason.value)
        else:
            self._lose(_describe("the broker refused the connection", reason, properties))

    def _on_disconnect(self, _c: Client, _u: Any, flags: DisconnectFlags, reason: ReasonCode, properties: Any) -> None:
        if not flags.is_disconnect_packet_from_server:
            silent = reason.value == reason_codes.ReasonCode.KEEP_ALIVE_TIMEOUT
            self._lose("the broker does not answer" if silent else self._describe_end())
            return
        if reason.value == reason_codes.ReasonCode.SESSION_TAKEN_OVER:
            self._lost_class = SessionTakenOverError
        self._lose(_describe("the broker ended the connection", reason, properties))

    def _describe_end(self) -> str:
        why = self._client.fault or "connection ended"
        return why if self._opened.done() else f"refused before CONNACK: {why}"

    def _on_message(self, _c: Client, _u: Any, message: MQTTMessage) -> None:
        self._inbox.append(IncomingMessage(message.topic, bytes(message.payload), message.retain))
        self._inbox_bytes += len(message.payload)
        _settle(self._reader, None)
        if self._inbox_bytes > _PAUSE_BYTES and not self._paused and self._fileno >= 0:
            self._paused = True
            self._loop.remove_reader(self._fileno)

    def _on_publish(self, _c: Client, _u: Any, packet_id: int, reason: ReasonCode, _p: Any) -> None:
        outcome = DeliveryOutcome.DENIED if reason.is_failure else DeliveryOutcome.TAKEN
        _settle(self._acks.pop(packet_id, None), outcome)

    def _on_subscribe(self, _c: Client, _u: Any, packet_id: int, reasons: list[ReasonCode], _p: Any) -> None:
        _settle(self._answers.get(packet_id), [each.value for each in reasons])

    async def receive(self) -> list[IncomingMessage]:
        """Wait for a message, then take what else has arrived. LinkLostError when the connection ends."""
        while not self._inbox:
            self._check_link()
            self._reader = self._loop.create_future()
            await self._reader
        taken, self._inbox = self._inbox[:MAX_DRAIN_MESSAGES], self._inbox[MAX_DRAIN_MESSAGES:]
        self._inbox_bytes -= sum(len(message.payload) for message in taken)
        if self._paused and self._inbox_bytes < _PAUSE_BYTES // 2 and self._fileno >= 0:
            self._paused = False
            self._loop.add_reader(self._fileno, self._on_readable)
            self._loop.call_soon(self._on_readable)  # what was read from the socket before
        return taken

    # -- time and end

    def _tick(self) -> None:
        if self._over.done():
            return
        if not self._paused:  # else the silence is ours
            self._guard(self._client.loop_misc)
            self._watch_writing()
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _on_socket_close(self, *_: Any) -> None:
        self._unwatch()

    def _unwatch(self) -> None:
        if self._fileno >= 0:
            self._loop.remove_reader(self._fileno)
            self._loop.remove_writer(self._fileno)
            self._fileno = -1

    def _lose(self, why: str) -> None:
        """The connection has ended: close the socket, and let go of all that wait."""
        if self._over.done():
            return
        self._over.set_result(None)
        self._why = why
        self._unwatch()
        self._sock.close()
        if self._timer is not None:
            self._timer.cancel()
        for ack in (*self._acks.values(), *(each[-1] for each in self._waiting)):
            _settle(ack, DeliveryOutcome.LOST)
        self._acks.clear()
        self._waiting.clear()
        unanswered: list[asyncio.Future[Any]] = [self._opened, *self._answers.values()]
        for future in unanswered:
            if not future.done():
                future.set_exception(self._lost_class(why))
                future.exception()  # perhaps nothing waits for it
        _settle(self._reader, None)

    async def close(self) -> None:
        """Send DISCONNECT if the link still stands; never raises."""
        if self._over.done():
            return
        self._guard(self._client.disconnect)
        self._watch_writing()
        with suppress(TimeoutError):  # what was posted before leaves first
            await asyncio.wait_for(asyncio.shield(self._over), _GOODBYE_S)
        self._lose("closed")


def _settle(future: "asyncio.Future[Any] | None", value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _describe(what: str, reason: ReasonCode, properties: Any) -> str:
    """What happened, with the name of the reason code and the broker's own words, if it has any."""
    words = getattr(properties, "ReasonString", "")
    return f"{what} ({reason_codes.describe_code(reason.value)})" + (f": {words}" if words else "")


async def connect_broker(
    section: BrokerSection,
    client_id: str,
    *,
    will_topic: str = "",
    will_payload: bytes = b"",
    wants_retained: bool = True,
) -> SiteConnection:
    """Connect to a broker of the site, with the credentials that lie there now. Raises LinkLostError.

    `wants_retained`: subscriptions bring what the broker has kept. `will_topic`: where the broker publishes
    `will_payload`, retained, once we are gone without a word.
    """
    address = parse_broker(section.broker)
    try:
        password = read_secret(section.password_file) if section.password_file else b""
        tls = make_client_context(section.tls_ca, section.tls_cert, section.tls_key) if address.tls else None
    except (ExitError, OSError) as error:
        raise LinkLostError(str(error)) from None
    for version in _VERSIONS:
        sock = await _dial(address, tls)
        client = _BoundedClient(client_id, version, sock)
        if section.username:
            client.username_pw_set(section.username, password or None)  # type: ignore[arg-type]  # bytes stay bytes
        if will_topic:
            client.will_set(will_topic, will_payload, qos=1, retain=True)
        connection = SiteConnection(client, sock, wants_retained=wants_retained)
        if await connection.open() == reason_codes.ReasonCode.SUCCESS:
            return connection
        await connection.close()
    raise LinkLostError("the broker speaks neither MQTT 5 nor MQTT 3.1.1")


async def _dial(address: SiteAddress, tls: ssl.SSLContext | None) -> socket.socket:
    """A connected socket, after its TLS handshake if there is one. LinkLostError with the reason."""
    try:
        sock = await open_route(DIRECT, address.host, address.port, tls, _STEP_S)
    except OSError as error:
        where = f"connection to {address.host}:{address.port}"
        raise LinkLostError(describe_failure(error, where, _STEP_S)) from None
    assert isinstance(sock, socket.socket)  # a direct route is nothing else
    return sock
