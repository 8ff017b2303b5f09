"""MQTT 5 transport for devices and hubs: `session` over a TCP or TLS socket of the event loop.

Rule: no thread, no task and no timer per message. What is said in one turn of the event loop leaves in one write (the
first message of an idle connection at once), and everything that one read brings is taken in together.
"""

import asyncio
import contextlib
import socket
import ssl
from math import inf
from typing import Any, ClassVar, Self

from wire.errors import LocalError
from wire.process.time_limits import StepTimeoutError, describe_failure, limit_step
from wire.protocol.codec import MAX_FRAME_BYTES
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.base import (
    MAX_DRAIN_MESSAGES,
    DeliveryOutcome,
    IncomingMessage,
    LinkLostError,
    SessionTakenOverError,
)
from wire.transport.packets import UNLIMITED_BYTES, SessionOptions
from wire.transport.reason_codes import FAILURE, ReasonCode
from wire.transport.routes import DIRECT, LinkRoute, open_route
from wire.transport.session import (
    MqttSession,
    PublishEnded,
    RequestEnded,
    SessionEnded,
    SessionEvent,
    SessionOpened,
)
from wire.transport.sockets import ByteSocket, count_sent_bytes

_PACKET_OVERHEAD_BYTES = 64  # fixed header, topic length, packet id, properties
_LARGEST_RECEIVED_BYTES = MAX_FRAME_BYTES + 4096
_READ_BYTES = 65_536
_READS = 64  # at most, in one turn of the event loop
_PAUSE_BYTES = 32 * 1024 * 1024  # received and not taken yet: then nothing more is read
_GOODBYE_S = 1.0


class MqttTransport:
    """One MQTT connection, a `Transport`. Make it with `connect`; after `LinkLostError` make another."""

    has_will: ClassVar[bool] = False

    def __init__(self, sock: ByteSocket, session: MqttSession, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._session = session
        self._timeout_s = timeout_s
        self._fileno = sock.fileno()
        self._reads_pieces = not isinstance(sock, socket.socket) or isinstance(sock, ssl.SSLSocket)
        self._unsent = b""
        self._flush_due = self._blocked = self._paused = False
        self._inbox: list[IncomingMessage] = []
        self._inbox_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._acks: dict[int, asyncio.Future[DeliveryOutcome]] = {}
        self._answers: dict[int, asyncio.Future[tuple[int, ...]]] = {}
        self._opened: asyncio.Future[SessionOpened] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._why = ""
        self._lost_class: type[LinkLostError] = LinkLostError
        self._sent_before = 0
        self._timer: asyncio.TimerHandle | None = None
        self.session_present = False
        self.max_packet_bytes = UNLIMITED_BYTES

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
    ) -> Self:
        """Connect to a broker; raises LinkLostError with the reason that the broker or TLS gave.

        `session_expiry_s` > 0 resumes the session the broker kept. `tls` None: plain TCP.
        `timeout_s`: how long each step may take: TCP, TLS, the CONNACK, each answer.
        """
        options = cls._make_options(client_id, session_expiry_s)
        return await cls._open_by(DIRECT, host, port, tls, options, timeout_s=timeout_s)

    @classmethod
    async def connect_by(
        cls, route: LinkRoute, host: str, port: int, client_id: str, tls: ssl.SSLContext | None, *, timeout_s: float
    ) -> Self:
        """As `connect`, by a route that need not be the direct one."""
        return await cls._open_by(route, host, port, tls, cls._make_options(client_id), timeout_s=timeout_s)

    @classmethod
    def _make_options(cls, client_id: str, session_expiry_s: int = 0) -> SessionOptions:
        will = build_topic(client_id, TopicChannel.STATE) if cls.has_will else ""
        return SessionOptions(client_id, session_expiry_s, will_topic=will, max_packet_bytes=_LARGEST_RECEIVED_BYTES)

    @classmethod
    async def _open_by(
        cls,
        route: LinkRoute,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        options: SessionOptions,
        *,
        timeout_s: float,
    ) -> Self:
        try:
            sock = await open_route(route, host, port, tls, timeout_s)
        except OSError as error:  # TimeoutError and ssl.SSLError too
            raise _make_lost(describe_failure(error, f"connection to {host}:{port}", timeout_s)) from None
        made = cls(sock, MqttSession(options, asyncio.get_running_loop().time()), timeout_s)
        await made._open()
        return made

    async def _open(self) -> None:
        """Send CONNECT and wait for the CONNACK. LinkLostError if the broker refuses or does not answer."""
        self._loop.add_reader(self._fileno, self._on_readable)
        self._flush()
        try:
            async with limit_step("CONNECT of MQTT 5", self._timeout_s):
                opened = await self._opened
        except StepTimeoutError as error:
            self._lose(str(error))
            raise _make_lost(self._why, self._sent_before) from None
        except LinkLostError:
            raise _make_lost(self._why, self._sent_before) from None
        except asyncio.CancelledError:  # one that succeeded all the same would displace the next of this client id
            self._lose("abandoned")
            raise
        self.session_present, self.max_packet_bytes = opened.session_present, opened.max_packet_bytes
        self._set_timer()

    @property
    def sent_bytes(self) -> int:
        """Bytes sent, as the kernel counts them: TLS, MQTT and payloads, each byte once."""
        return self._sent_before if self._over.done() else count_sent_bytes(self._sock)

    # -- what we say

    async def subscribe(self, filters: tuple[str, ...]) -> None:
        """Subscribe at QoS 1. Raises LinkLostError if the link is gone or the broker refuses a filter."""
        self._check_link()
        codes = await self._wait_answer("SUBSCRIBE", self._session.subscribe(filters))
        refused = [name for name, code in zip(filters, codes, strict=True) if code >= FAILURE]
        if refused:
            raise LinkLostError(f"the broker refused the subscription to {refused[0]}")

    async def unsubscribe(self, filters: tuple[str, ...]) -> None:
        """Unsubscribe. Raises LinkLostError if the link is gone."""
        self._check_link()
        await self._wait_answer("UNSUBSCRIBE", self._session.unsubscribe(filters))

    async def _wait_answer(self, step: str, packet_id: int) -> tuple[int, ...]:
        future = self._answers[packet_id] = self._loop.create_future()
        self._flush_soon()
        try:
            async with limit_step(step, self._timeout_s):
                codes: tuple[int, ...] = await future
                return codes
        except StepTimeoutError as error:
            raise LinkLostError(str(error)) from None
        finally:
            self._answers.pop(packet_id, None)

    def post(self, topic: str, payload: bytes) -> "asyncio.Future[DeliveryOutcome]":
        """Publish at QoS 1 without waiting for the PUBACK.

        Raises LocalError for a message over the size limit of the frame or the broker, LinkLostError without a link.
        """
        size = len(payload) + len(topic) + _PACKET_OVERHEAD_BYTES
        # One message over the broker's limit makes it hang up, and again after each reconnect: never hand it over.
        if len(payload) > MAX_FRAME_BYTES or size > self.max_packet_bytes:
            limit = min(MAX_FRAME_BYTES, self.max_packet_bytes)
            raise LocalError(f"message of {len(payload)} bytes, the broker takes {limit}")
        self._check_link()
        try:
            packet_id = self._session.publish(topic, payload)
        except OverflowError as error:
            raise LinkLostError(str(error)) from None
        except ValueError as error:  # a topic that is none
            raise LocalError(str(error)) from None
        future = self._acks[packet_id] = self._loop.create_future()
        if len(self._acks) == 1 and not self._flush_due:
            self._flush()  # nothing is under way to be gathered with (Nagle's rule): a turn of the event loop less
        else:
            self._flush_soon()
        return future

    def _check_link(self) -> None:
        if self._over.done():
            raise self._lost_class(self._why)

    def _flush_soon(self) -> None:
        """Send at the end of this turn of the event loop, with whatever else is said in it."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._over.done() or self._blocked:
            return
        data = self._unsent + self._session.data_to_send(self._loop.time())
        try:
            while data:
                data = data[self._sock.send(data) :]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
            self._blocked = True
            self._loop.add_writer(self._fileno, self._on_writable)
        except OSError as error:
            self._lose(str(error))
            return
        self._unsent = data

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._fileno)
        self._blocked = False
        self._flush()

    # -- what the broker says

    def _on_readable(self) -> None:
        for _ in range(_READS):
            try:
                data = self._sock.recv(_READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._end_with(str(error))
                return
            if not data:
                self._end_with("")
                return
            self._take_events(self._session.receive_data(data))
            # A broker sends each message as a TLS record, and a read takes one: all that lie there are one round.
            if self._over.done() or self._paused or (not self._reads_pieces and len(data) < _READ_BYTES):
                break
        if self._session.has_data:
            self._flush_soon()

    def _end_with(self, why: str) -> None:
        """The peer is gone. In TLS 1.3 the alert about our certificate comes after our side of the handshake."""
        if why and not self._opened.done():
            why = f"refused before CONNACK: {why}"
        told = [event.reason for event in self._session.receive_end(why) if isinstance(event, SessionEnded)]
        self._lose(told[0] if told else "connection ended")

    def _take_events(self, events: list[SessionEvent]) -> None:
        for event in events:
            if type(event) is IncomingMessage:
                self._inbox.append(event)
                self._inbox_bytes += len(event.payload)
            elif isinstance(event, PublishEnded):
                self._settle(self._acks.pop(event.packet_id, None), _outcome_of(event.code))
            elif isinstance(event, RequestEnded):
                self._settle(self._answers.get(event.packet_id), event.codes)
            elif isinstance(event, SessionOpened):
                self._settle(self._opened, event)
            elif isinstance(event, SessionEnded):
                self._why = event.reason
                self._lost_class = SessionTakenOverError if event.taken_over else LinkLostError
                self._flush()  # the DISCONNECT that says why, as far as the socket takes it
                self._lose(event.reason)
        if self._inbox:
            self._wake_reader()
            if self._inbox_bytes > _PAUSE_BYTES and not self._over.done():
                self._paused = True
                self._loop.remove_reader(self._fileno)

    @staticmethod
    def _settle(future: "asyncio.Future[Any] | None", value: object) -> None:
        if future is not None and not future.done():
            future.set_result(value)

    async def receive(self) -> list[IncomingMessage]:
        """Wait for a message, then take what else is in the inbox, at most `MAX_DRAIN_MESSAGES` in all."""
        while not self._inbox:
            self._check_link()
            self._reader = self._loop.create_future()
            await self._reader
        if len(self._inbox) <= MAX_DRAIN_MESSAGES:
            taken, self._inbox = self._inbox, []
            self._inbox_bytes = 0
        else:
            taken, self._inbox = self._inbox[:MAX_DRAIN_MESSAGES], self._inbox[MAX_DRAIN_MESSAGES:]
            self._inbox_bytes -= sum(len(message.payload) for message in taken)
        if self._paused and self._inbox_bytes < _PAUSE_BYTES // 2 and not self._over.done():
            self._paused = False
            self._loop.add_reader(self._fileno, self._on_readable)
        return taken

    def _wake_reader(self) -> None:
        self._settle(self._reader, None)

    # -- time and end

    def _set_timer(self) -> None:
        due = self._session.next_tick()
        self._timer = self._loop.call_at(due, self._tick) if due < inf and not self._over.done() else None

    def _tick(self) -> None:
        self._take_events(self._session.tick(self._loop.time(), deaf=self._paused))
        self._flush()
        self._set_timer()

    def _lose(self, why: str) -> None:
        """The connection has ended: close the socket and tell everybody who waits."""
        if self._over.done():
            return
        self._over.set_result(None)
        self._why = self._why or why
        self._loop.remove_reader(self._fileno)
        self._loop.remove_writer(self._fileno)
        self._sent_before = count_sent_bytes(self._sock)
        self._sock.close()
        if self._timer is not None:
            self._timer.cancel()
        for ack in self._acks.values():
            self._settle(ack, DeliveryOutcome.LOST)
        self._acks.clear()
        self._fail(self._opened)
        for answer in self._answers.values():
            self._fail(answer)
        self._wake_reader()

    def _fail(self, future: "asyncio.Future[Any]") -> None:
        if not future.done():
            future.set_exception(self._lost_class(self._why))
            future.exception()  # nobody may be waiting for it

    async def close(self) -> None:
        """Send DISCONNECT if the link still stands; never raises."""
        if self._over.done():
            return
        self._session.disconnect(with_will=self.has_will)
        self._flush()
        with contextlib.suppress(TimeoutError):  # what was posted before leaves first; the broker hangs up then
            await asyncio.wait_for(asyncio.shield(self._over), _GOODBYE_S)
        self._lose("closed")


class DeviceMqttTransport(MqttTransport):
    """Connection of a device: once it has ended, in whichever way, the broker publishes an empty `up/state` for it."""

    has_will = True


def _outcome_of(code: int) -> DeliveryOutcome:
    """Outcome of a PUBACK reason code."""
    if code >= FAILURE:
        return DeliveryOutcome.DENIED
    return DeliveryOutcome.NOBODY if code == ReasonCode.NO_MATCHING_SUBSCRIBERS else DeliveryOutcome.TAKEN


def _make_lost(why: str, sent_bytes: int = 0) -> LinkLostError:
    """The error of a connection attempt, with what it had sent."""
    lost = LinkLostError(why)
    lost.sent_bytes = sent_bytes
    return lost
