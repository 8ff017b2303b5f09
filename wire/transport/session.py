"""Client side of one MQTT 5 connection without I/O: bytes in, events out, bytes to send. QoS 0 and 1. Pure.

`packets` writes and reads; here is what a client has to know between two packets (OASIS MQTT 5.0): packet ids, the
broker's limits, acknowledgements, keep-alive and ends. Rule: nothing that a broker sends raises. What is malformed or
against the protocol ends the session with a reason code, which is sent in a DISCONNECT. `now` is in seconds, from any
clock that never goes back.
"""

from collections import deque
from math import inf
from typing import NamedTuple

from wire.transport import packets
from wire.transport.base import IncomingMessage
from wire.transport.packets import (
    Acknowledgement,
    ConnectAnswer,
    Goodbye,
    Message,
    PacketError,
    PingAnswer,
    ReceivedPacket,
    SessionOptions,
)
from wire.transport.reason_codes import FAILURE, ReasonCode, describe_code

MAX_IN_FLIGHT = 1000  # of our own, however many more the broker would take
_PING_AT = 0.75  # of the keep-alive time
_IDS = 65_535
_HTTP = b"HTTP/"
_TAKEN_OVER = "session taken over, 0x8e: another client of the same client id has connected to this broker"
_ENDED_EARLY = "refused before CONNACK: the broker ended the connection after CONNECT of MQTT 5"


class SessionOpened(NamedTuple):
    """CONNACK: the connection is accepted. `session_present`: the broker kept our subscriptions and queue."""

    session_present: bool
    max_packet_bytes: int


class PublishEnded(NamedTuple):
    """PUBACK of one of our messages, with its reason code."""

    packet_id: int
    code: int


class RequestEnded(NamedTuple):
    """SUBACK or UNSUBACK, with one reason code for each filter in its order."""

    packet_id: int
    codes: tuple[int, ...]


class SessionEnded(NamedTuple):
    """The connection is over: `reason` in words. Nothing comes after it.

    `taken_over`: another connection of our client id has ended it.
    """

    reason: str
    taken_over: bool = False


SessionEvent = IncomingMessage | SessionOpened | PublishEnded | RequestEnded | SessionEnded


class MqttSession:
    """One connection, from CONNECT to its end. Take `data_to_send` after every call that may have caused some."""

    def __init__(self, options: SessionOptions, now: float) -> None:
        self._options = options
        self._out: list[bytes] = []
        self._rest = bytearray()
        self._wanted = 0  # bytes of the packet that `_rest` begins
        self._opened = self._ended = False
        self._last_id = 0
        self._used: set[int] = set()  # packet ids without an acknowledgement
        self._in_flight = 0
        self._room = MAX_IN_FLIGHT
        self._held: deque[bytes] = deque()  # messages beyond `_room`
        self._asked: dict[int, int] = {}  # SUBSCRIBE and UNSUBSCRIBE under way: how many filters
        self._keep_alive_s = float(options.keep_alive_s)
        self._sent_s = now
        self._answer_by_s = inf  # of a PINGREQ
        self._out.append(packets.write_connect(options))

    # -- what we say

    def publish(self, topic: str, payload: bytes) -> int:
        """Publish at QoS 1 once the broker's receive maximum allows it; returns the packet id.

        ValueError for a topic that is none; OverflowError if as many wait as there are packet ids.
        """
        packet_id = self._take_id()
        try:
            packet = packets.write_publish(topic, payload, packet_id)
        except ValueError:
            self._used.discard(packet_id)
            raise
        if self._in_flight < self._room:
            self._in_flight += 1
            self._out.append(packet)
        else:
            self._held.append(packet)
        return packet_id

    def subscribe(self, filters: tuple[str, ...]) -> int:
        """Subscribe at QoS 1; returns the packet id."""
        packet_id = self._take_id()
        self._asked[packet_id] = len(filters)
        self._out.append(packets.write_subscribe(packet_id, filters))
        return packet_id

    def unsubscribe(self, filters: tuple[str, ...]) -> int:
        """Unsubscribe; returns the packet id."""
        packet_id = self._take_id()
        self._asked[packet_id] = len(filters)
        self._out.append(packets.write_unsubscribe(packet_id, filters))
        return packet_id

    def disconnect(self, *, with_will: bool = False) -> None:
        """Say goodbye. `with_will`: the broker publishes the will all the same."""
        if not self._ended:
            code = ReasonCode.DISCONNECT_WITH_WILL if with_will else ReasonCode.SUCCESS
            self._out += self._held  # what was accepted here is sent, as far as the broker takes it
            self._held.clear()
            self._out.append(packets.write_disconnect(code))
            self._ended = True

    @property
    def has_data(self) -> bool:
        """Whether there is something to be sent now."""
        return bool(self._out)

    def data_to_send(self, now: float) -> bytes:
        """Everything to be sent now; empty if there is nothing."""
        if not self._out:
            return b""
        self._sent_s = now
        data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
        self._out.clear()
        return data

    # -- time

    def next_tick(self) -> float:
        """When `tick` has something to do."""
        if self._ended or not self._opened or not self._keep_alive_s:
            return inf
        return min(self._answer_by_s, self._sent_s + _PING_AT * self._keep_alive_s)

    def tick(self, now: float, *, deaf: bool = False) -> list[SessionEvent]:
        """Ping a broker that was told nothing for three quarters of the keep-alive time; end with one that is silent.

        `deaf`: what it has sent is not being read at the moment, so its silence says nothing.
        """
        if self._ended or not self._opened or not self._keep_alive_s:
            return []
        if now >= self._answer_by_s and not deaf:
            return self._end(ReasonCode.KEEP_ALIVE_TIMEOUT, "the broker does not answer")
        if self._answer_by_s == inf and now >= self._sent_s + _PING_AT * self._keep_alive_s:
            self._answer_by_s = now + self._keep_alive_s
            self._out.append(packets.PING)
        elif deaf:
            self._answer_by_s = now + self._keep_alive_s
        return []

    # -- what the broker says

    def receive_data(self, data: bytes) -> list[SessionEvent]:
        """Take in received bytes, however they are cut; returns what they mean, in order."""
        if self._ended:
            return []
        self._rest += data
        if not self._opened and self._rest.startswith(_HTTP):
            return self._end(ReasonCode.PROTOCOL_ERROR, "what answers to CONNECT speaks HTTP, not MQTT")
        events: list[SessionEvent] = []
        if len(self._rest) < self._wanted:
            return events
        whole = data if len(self._rest) == len(data) else bytes(self._rest)
        try:
            at = self._read_packets(whole, events)
            del self._rest[:at]
        except PacketError as error:
            events += self._end(error.code, f"the broker sent {error}")
        return events

    def receive_end(self, why: str = "") -> list[SessionEvent]:
        """The peer closed the connection, or it broke: `why` in words."""
        if self._ended:
            return []
        self._ended = True
        return [SessionEnded(why or ("connection ended" if self._opened else _ENDED_EARLY))]

    def _read_packets(self, data: bytes, events: list[SessionEvent]) -> int:
        """Read whole packets; returns where the first one begins that is not whole."""
        at, end = 0, len(data)
        while not self._ended and at < end:
            body, until = packets.measure_packet(data, at)
            self._wanted = until - at
            if self._wanted > self._options.max_packet_bytes:
                raise PacketError(f"a packet of {self._wanted} bytes", ReasonCode.PACKET_TOO_LARGE)
            if not until or until > end:
                break
            self._take_packet(packets.read_packet(data[at], data[body:until]), events)
            at, self._wanted = until, 0
        return at

    def _take_packet(self, packet: ReceivedPacket, events: list[SessionEvent]) -> None:
        if isinstance(packet, ConnectAnswer) is self._opened:
            raise PacketError("a second CONNACK" if self._opened else "no CONNACK first", ReasonCode.PROTOCOL_ERROR)
        if isinstance(packet, Message):
            if packet.packet_id:
                self._out.append(packets.write_acknowledgement(packet.packet_id))
            events.append(IncomingMessage(packet.topic, packet.payload, packet.retained))
        elif isinstance(packet, Acknowledgement):
            events += self._settle_publish(packet) if packet.of_publish else self._settle_request(packet)
        elif isinstance(packet, PingAnswer):
            self._answer_by_s = inf
        elif isinstance(packet, ConnectAnswer):
            events.append(self._take_connack(packet))
        elif isinstance(packet, Goodbye):
            self._ended = True
            taken_over = packet.code == ReasonCode.SESSION_TAKEN_OVER
            reason = _TAKEN_OVER if taken_over else _describe("the broker ended the connection", packet)
            events.append(SessionEnded(reason, taken_over=taken_over))

    def _settle_publish(self, packet: Acknowledgement) -> list[SessionEvent]:
        packet_id = packet.packet_id
        if packet_id not in self._used or packet_id in self._asked:
            return []  # of nothing that we wait for: acknowledged before
        self._used.discard(packet_id)
        self._in_flight -= 1
        if self._held and self._in_flight < self._room:
            self._in_flight += 1
            self._out.append(self._held.popleft())
        return [PublishEnded(packet_id, packet.codes[0])]

    def _settle_request(self, packet: Acknowledgement) -> list[SessionEvent]:
        asked = self._asked.pop(packet.packet_id, None)
        if asked is None:
            return []
        if len(packet.codes) != asked:
            raise PacketError(f"an answer to {len(packet.codes)} of {asked} filters", ReasonCode.PROTOCOL_ERROR)
        self._used.discard(packet.packet_id)
        return [RequestEnded(packet.packet_id, packet.codes)]

    def _take_connack(self, packet: ConnectAnswer) -> SessionEvent:
        if packet.code >= FAILURE:
            self._ended = True
            return SessionEnded(_describe("the broker refused the connection", packet))
        if not packet.max_qos:
            raise PacketError("that it takes no messages of QoS 1", ReasonCode.PROTOCOL_ERROR)
        self._opened = True
        self._room = min(MAX_IN_FLIGHT, packet.receive_max)
        if packet.keep_alive_s >= 0:
            self._keep_alive_s = float(packet.keep_alive_s)
        return SessionOpened(packet.session_present, packet.max_packet_bytes)

    # -- parts

    def _take_id(self) -> int:
        """Take the next packet id that nothing waits for. OverflowError if all are taken."""
        if len(self._used) >= _IDS:
            raise OverflowError("65,535 messages wait for their acknowledgement")
        packet_id = self._last_id % _IDS + 1
        while packet_id in self._used:
            packet_id = packet_id % _IDS + 1
        self._last_id = packet_id
        self._used.add(packet_id)
        return packet_id

    def _end(self, code: ReasonCode, reason: str) -> list[SessionEvent]:
        """End the session from our side."""
        if self._opened:  # who has not accepted us is told nothing
            self._out.append(packets.write_disconnect(code))
        self._ended = True
        return [SessionEnded(reason)]


def _describe(what: str, packet: ConnectAnswer | Goodbye) -> str:
    """What happened, with the name of the reason code and the broker's own words, if it has any."""
    said = f": {packet.reason}" if packet.reason else ""
    return f"{what} ({describe_code(packet.code)}){said}"
