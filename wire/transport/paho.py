"""MQTT 5 transport on aiomqtt and paho-mqtt, the second implementation of the seam.

It adds what aiomqtt drops: PUBACK reason codes, the limits of the CONNACK, and late refusals of TLS 1.3.
Private hooks of aiomqtt 2.5 are overridden (docs/adr/0002), hence the version range in pyproject.toml.
"""

import asyncio
import contextlib
import socket
import ssl
from typing import Any, ClassVar, cast

import aiomqtt
from paho.mqtt.client import ConnectFlags, DisconnectFlags
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from wire.errors import LocalError
from wire.protocol.codec import MAX_FRAME_BYTES
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.base import MAX_DRAIN_MESSAGES, DeliveryOutcome, IncomingMessage, LinkLostError
from wire.transport.packets import NEEDS_MQTT_5
from wire.transport.reason_codes import ReasonCode as MqttCode
from wire.transport.routes import DIRECT, LinkRoute
from wire.transport.sockets import count_sent_bytes

# Nagle's algorithm and delayed ACKs together cost 88 ms a round trip; this option brings it to 0.3 ms.
_NODELAY = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
_NO_SUBSCRIBERS = 0x10
_FAILURE = 0x80
_PACKET_OVERHEAD_BYTES = 64  # fixed header, topic length, packet id, properties
_MAX_INFLIGHT = 1000
_UNLIMITED_BYTES = 268_435_455  # the protocol's own largest packet


class PahoTransport:
    """One MQTT connection, a `Transport`. Make it with `connect`; after `LinkLostError` make another."""

    has_will: ClassVar[bool] = False

    def __init__(self, client: "_MqttClient") -> None:
        self._client = client

    @classmethod
    async def connect_by(
        cls, route: LinkRoute, host: str, port: int, client_id: str, tls: ssl.SSLContext | None, *, timeout_s: float
    ) -> "PahoTransport":
        """As `connect`; LinkLostError for any route but the direct one."""
        if route != DIRECT:
            raise LinkLostError("this client knows neither WebSocket nor proxies: link.mqtt_client")
        return await cls.connect(host, port, client_id, tls, timeout_s=timeout_s)

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        client_id: str,
        tls: ssl.SSLContext | None,
        *,
        session_expiry_s: int = 0,
        timeout_s: float = 5.0,
    ) -> "PahoTransport":
        """Connect to a broker; raises LinkLostError with the reason that the broker or TLS gave.

        `session_expiry_s` > 0 resumes the session the broker kept. `tls` None: plain TCP.
        `timeout_s`: how long to wait for the CONNACK.
        """
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = session_expiry_s
        client = _MqttClient(
            host,
            port,
            identifier=client_id,
            protocol=aiomqtt.ProtocolVersion.V5,
            tls_context=tls,
            socket_options=_NODELAY,
            max_inflight_messages=_MAX_INFLIGHT,
            max_queued_outgoing_messages=0,
            timeout=timeout_s,
            clean_start=session_expiry_s == 0,
            properties=properties,
            keepalive=20,
            will=aiomqtt.Will(build_topic(client_id, TopicChannel.STATE), qos=1) if cls.has_will else None,
        )
        try:
            await client.__aenter__()
        except (aiomqtt.MqttError, OSError) as error:
            lost = LinkLostError(_describe_error(error))
            lost.sent_bytes = client.sent_bytes
            raise lost from None
        except asyncio.CancelledError:
            client.abandon_connect()
            raise
        return cls(client)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent, as the kernel counts them: TLS, MQTT and payloads, each byte once."""
        return self._client.sent_bytes

    @property
    def session_present(self) -> bool:
        """Whether the broker kept our subscriptions and queue since last time."""
        return self._client.session_present

    @property
    def max_packet_bytes(self) -> int:
        """Largest packet that the broker accepts: MaximumPacketSize of its CONNACK."""
        return self._client.max_packet_bytes

    async def subscribe(self, filters: tuple[str, ...]) -> None:
        """Subscribe at QoS 1. Raises LinkLostError if the link is gone or the broker refuses a filter."""
        try:
            codes = await self._client.subscribe([(pattern, 1) for pattern in filters])
        except aiomqtt.MqttError as error:
            raise LinkLostError(str(error)) from None
        refused = [f for f, code in zip(filters, codes, strict=True) if _code_value(code) >= _FAILURE]
        if refused:
            raise LinkLostError(f"the broker refused the subscription to {refused[0]}")

    async def unsubscribe(self, filters: tuple[str, ...]) -> None:
        """Unsubscribe. Raises LinkLostError if the link is gone."""
        try:
            await self._client.unsubscribe(list(filters))
        except aiomqtt.MqttError as error:
            raise LinkLostError(str(error)) from None

    def post(self, topic: str, payload: bytes) -> "asyncio.Future[DeliveryOutcome]":
        """Publish at QoS 1 without waiting for the PUBACK.

        Raises LocalError for a message over the size limit of the frame or the broker, LinkLostError without a link.
        """
        size = len(payload) + len(topic) + _PACKET_OVERHEAD_BYTES
        # One message over the broker's limit makes it hang up, and again after each reconnect: never hand it over.
        if len(payload) > MAX_FRAME_BYTES or size > self._client.max_packet_bytes:
            limit = min(MAX_FRAME_BYTES, self._client.max_packet_bytes)
            raise LocalError(f"message of {len(payload)} bytes, the broker takes {limit}")
        return self._client.post(topic, payload)

    async def receive(self) -> list[IncomingMessage]:
        """Wait for a message, then take what else is in the inbox, at most `MAX_DRAIN_MESSAGES` in all."""
        batch = [_to_incoming(await self._client.next_message())]
        while len(batch) < MAX_DRAIN_MESSAGES and not self._client.inbox.empty():
            message = self._client.inbox.get_nowait()
            if message is None:
                self._client.inbox.put_nowait(None)
                break
            batch.append(_to_incoming(message))
        return batch

    async def close(self) -> None:
        """Send DISCONNECT if the link still stands; never raises."""
        with contextlib.suppress(aiomqtt.MqttError, OSError):
            if self.has_will:
                self._client.release_will()
            await self._client.__aexit__(None, None, None)


class DevicePahoTransport(PahoTransport):
    """Connection of a device: once it has ended, in whichever way, the broker publishes an empty `up/state` for it."""

    has_will = True


class _MqttClient(aiomqtt.Client):
    """aiomqtt client with PUBACK reason codes and CONNACK limits.

    It fails at once where TLS 1.3 refuses the certificate after the handshake.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.max_packet_bytes = _UNLIMITED_BYTES
        self.session_present = False
        self._socket: socket.socket | None = None
        self._abandoned = False
        self._sent_before = 0  # of sockets that are closed
        self.inbox: asyncio.Queue[aiomqtt.Message | None] = cast("asyncio.Queue[aiomqtt.Message | None]", self._queue)
        self._acks: dict[int, asyncio.Future[DeliveryOutcome]] = {}
        # Whichever way the connection ends, a waiting reader is woken: no task and no timer per message.
        self._disconnected.add_done_callback(self._wake_reader)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent by the current and all earlier sockets of this client."""
        return self._sent_before + (count_sent_bytes(self._socket) if self._socket is not None else 0)

    def post(self, topic: str, payload: bytes) -> "asyncio.Future[DeliveryOutcome]":
        """Publish at QoS 1; the future ends with the PUBACK, or with LOST when the connection does."""
        if self._disconnected.done():
            raise LinkLostError("not connected")
        # Not awaited: no task and no timer per message.
        info = self._client.publish(topic, payload, 1)
        if info.rc:
            raise LinkLostError(f"publish refused here: {info.rc}")
        future: asyncio.Future[DeliveryOutcome] = self._loop.create_future()
        self._acks[info.mid] = future
        return future

    def _wake_reader(self, ended: "asyncio.Future[None]") -> None:
        """Wake a waiting reader when the connection ends."""
        if not ended.cancelled():
            ended.exception()  # retrieved here: the reader learns of it as LinkLostError
        self.inbox.put_nowait(None)

    async def next_message(self) -> aiomqtt.Message:
        """Next received message. Raises LinkLostError when the connection has ended."""
        message = await self.inbox.get()
        if message is None:
            self.inbox.put_nowait(None)  # so that every later call raises, too
            raise LinkLostError("connection ended")
        return message

    def abandon_connect(self) -> None:
        """Abandon a connection attempt.

        One that succeeded all the same would displace the next connection of this client id.
        """
        self._abandoned = True
        self._client._sock_close()  # noqa: SLF001

    def release_will(self) -> None:
        """Say goodbye so that the broker publishes the will all the same."""
        self._client.disconnect(ReasonCode(PacketTypes.DISCONNECT, "Disconnect with will message"))

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        if self._abandoned:  # a TLS handshake cannot be interrupted: its thread ends only now
            sock.close()
            return
        self._socket = sock
        super()._on_socket_open(client, userdata, sock)

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        if not self._abandoned:  # else the socket is closed, and the loop cannot watch it
            super()._on_socket_register_write(client, userdata, sock)

    def _on_socket_unregister_write(self, client: Any, userdata: Any, sock: Any) -> None:
        if not self._abandoned:
            super()._on_socket_unregister_write(client, userdata, sock)

    def _on_socket_close(self, client: Any, userdata: Any, sock: Any) -> None:
        self._sent_before, self._socket = self._sent_before + count_sent_bytes(sock), None
        super()._on_socket_close(client, userdata, sock)

    def _on_connect(
        self, client: Any, userdata: Any, flags: ConnectFlags, reason_code: ReasonCode, properties: Any = None
    ) -> None:
        self.max_packet_bytes = getattr(properties, "MaximumPacketSize", _UNLIMITED_BYTES)
        self.session_present = flags.session_present
        super()._on_connect(client, userdata, flags, reason_code, properties)

    def _on_disconnect(
        self, client: Any, userdata: Any, flags: DisconnectFlags, reason_code: ReasonCode, properties: Any = None
    ) -> None:
        for future in self._acks.values():
            if not future.done():
                future.set_result(DeliveryOutcome.LOST)
        self._acks.clear()
        if not self._connected.done():
            # In TLS 1.3 the alert about our certificate comes after our side of the handshake.
            self._connected.set_exception(aiomqtt.MqttError(f"refused before CONNACK: {reason_code}"))
            return
        super()._on_disconnect(client, userdata, flags, reason_code, properties)

    def _on_publish(
        self, client: Any, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> None:
        future = self._acks.pop(mid, None)
        if future is None:
            super()._on_publish(client, userdata, mid, reason_code, properties)
        elif not future.done():
            future.set_result(_delivery_from_code(_code_value(reason_code)))


def _delivery_from_code(code: int) -> DeliveryOutcome:
    """Outcome of a PUBACK reason code."""
    if code >= _FAILURE:
        return DeliveryOutcome.DENIED
    return DeliveryOutcome.NOBODY if code == _NO_SUBSCRIBERS else DeliveryOutcome.TAKEN


def _describe_error(error: Exception) -> str:
    """One line; of a broker of MQTT 3.1.1 alone the library names a code and not what is needed."""
    code = getattr(error, "rc", None)
    if code is not None and _code_value(code) == MqttCode.UNSUPPORTED_PROTOCOL_VERSION:
        return f"{error}: {NEEDS_MQTT_5}"
    return str(error)


def _code_value(code: Any) -> int:
    """Number of a reason code, whichever class paho gave."""
    return int(code.value) if isinstance(code, ReasonCode) else int(code)


def _to_incoming(message: aiomqtt.Message) -> IncomingMessage:
    payload = message.payload
    return IncomingMessage(message.topic.value, payload if isinstance(payload, bytes) else b"")
