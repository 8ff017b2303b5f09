"""Packets of MQTT 5 that a client of QoS 0 and 1 writes and reads (OASIS MQTT 5.0, sections 2 and 3). Pure.

Rule: reading is strict. What the standard calls malformed, or what no broker may send to such a client, raises
`PacketError` with the reason code to disconnect with; nothing else is ever raised.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from wire.transport.reason_codes import ReasonCode

UNLIMITED_BYTES = 268_435_455  # the protocol's own largest packet, without its fixed header
PING = b"\xc0\x00"
NEEDS_MQTT_5 = "this broker does not speak MQTT 5, which is needed"
_OLD_CONNACK_BYTES = 2  # of MQTT 3.1.1, which has no properties
_PUBLISH, _CONNACK, _PUBACK, _SUBACK, _UNSUBACK, _PINGRESP, _DISCONNECT = 3, 2, 4, 9, 11, 13, 14
_KNOWN = frozenset((_CONNACK, _PUBACK, _SUBACK, _UNSUBACK, _PINGRESP, _DISCONNECT))
_SHORT = struct.Struct("!H")
_LONG = struct.Struct("!I")
# Identifiers of properties (table 2-4), by the type of their value.
_BYTES = frozenset((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A))
_SHORTS = frozenset((0x13, 0x21, 0x22, 0x23))
_LONGS = frozenset((0x02, 0x11, 0x18, 0x27))
_TEXTS = frozenset((0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F))
_BINARIES = frozenset((0x09, 0x16))
_SUBSCRIPTION, _USER, _ALIAS, _REASON = 0x0B, 0x26, 0x23, 0x1F
_EXPIRY, _KEEP_ALIVE, _RECEIVE_MAX, _MAX_QOS, _MAX_PACKET = 0x11, 0x13, 0x21, 0x24, 0x27
# Which of them each packet may have.
_ALLOWED = {
    _PUBLISH: frozenset((0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26)),
    _CONNACK: frozenset(
        (0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A)
    ),
    _PUBACK: frozenset((0x1F, 0x26)),
    _SUBACK: frozenset((0x1F, 0x26)),
    _UNSUBACK: frozenset((0x1F, 0x26)),
    _DISCONNECT: frozenset((0x11, 0x1C, 0x1F, 0x26)),
}
Properties = dict[int, int | str | bytes]


class SessionOptions(NamedTuple):
    """What CONNECT says. `will_topic`: where the broker publishes the will when we are gone; "" = nowhere.

    `session_expiry_s` > 0 resumes the session that the broker kept. `max_packet_bytes`: largest that is received.
    """

    client_id: str
    session_expiry_s: int = 0
    keep_alive_s: int = 20
    will_topic: str = ""
    max_packet_bytes: int = UNLIMITED_BYTES


class PacketError(Exception):
    """A packet that a broker must not send; `code` says so to it: one that a client may send (table 3-13)."""

    def __init__(self, what: str, code: ReasonCode = ReasonCode.MALFORMED_PACKET) -> None:
        super().__init__(what)
        self.code = code


class Message(NamedTuple):
    """PUBLISH. `packet_id` 0: of QoS 0, so that nobody waits for an acknowledgement."""

    topic: str
    payload: bytes
    packet_id: int
    retained: bool = False


class Acknowledgement(NamedTuple):
    """PUBACK, SUBACK or UNSUBACK: one reason code for each thing that was asked for."""

    packet_id: int
    codes: tuple[int, ...]
    of_publish: bool


class ConnectAnswer(NamedTuple):
    """CONNACK. `keep_alive_s` -1 = the one that we asked for; `reason`: the broker's own words."""

    code: int
    session_present: bool
    max_packet_bytes: int
    receive_max: int
    max_qos: int
    keep_alive_s: int
    reason: str


class PingAnswer(NamedTuple):
    """PINGRESP."""


class Goodbye(NamedTuple):
    """DISCONNECT. `reason`: the broker's own words."""

    code: int
    reason: str


ReceivedPacket = Message | Acknowledgement | ConnectAnswer | PingAnswer | Goodbye


# -- writing


def write_connect(options: SessionOptions) -> bytes:
    """CONNECT. With a will topic the broker publishes an empty message there (QoS 1) once the connection has ended."""
    expiry_s, will = options.session_expiry_s, options.will_topic
    properties = b"\x11" + _LONG.pack(expiry_s) if expiry_s else b""
    if options.max_packet_bytes < UNLIMITED_BYTES:
        properties += b"\x27" + _LONG.pack(options.max_packet_bytes)
    flags = (0 if expiry_s else 2) | (0x0C if will else 0)
    last = b"\x00" + _text(will) + b"\x00\x00" if will else b""
    head = _text("MQTT") + bytes((5, flags)) + _SHORT.pack(options.keep_alive_s)
    return _frame(0x10, head + _length(len(properties)) + properties + _text(options.client_id) + last)


def write_publish(topic: str, payload: bytes, packet_id: int) -> bytes:
    """PUBLISH of QoS 1. ValueError for a topic that is none."""
    if not topic or any(each in topic for each in "+#\x00"):
        raise ValueError(f"{topic!r} is no topic to publish to")
    head = _text(topic) + _SHORT.pack(packet_id) + b"\x00"
    return b"".join((b"\x32", _length(len(head) + len(payload)), head, payload))


def write_acknowledgement(packet_id: int) -> bytes:
    """PUBACK: the message was taken."""
    return b"\x40\x02" + _SHORT.pack(packet_id)


def write_subscribe(packet_id: int, filters: Iterable[str]) -> bytes:
    """SUBSCRIBE at QoS 1."""
    return _frame(0x82, _SHORT.pack(packet_id) + b"\x00" + b"".join(_text(each) + b"\x01" for each in filters))


def write_unsubscribe(packet_id: int, filters: Iterable[str]) -> bytes:
    """UNSUBSCRIBE."""
    return _frame(0xA2, _SHORT.pack(packet_id) + b"\x00" + b"".join(map(_text, filters)))


def write_disconnect(code: ReasonCode) -> bytes:
    """DISCONNECT."""
    return bytes((0xE0, 1, code)) if code else b"\xe0\x00"


def _frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _length(len(body)) + body


def _text(text: str) -> bytes:
    """UTF-8 after its length. ValueError if it is too long, or no text."""
    data = text.encode()
    if len(data) > 0xFFFF:
        raise ValueError(f"a text of {len(data)} bytes, MQTT takes 65,535")
    return _SHORT.pack(len(data)) + data


def _length(length: int) -> bytes:
    """A variable byte integer."""
    out = bytearray()
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


# -- reading


def measure_packet(data: bytes, at: int) -> tuple[int, int]:
    """(where its body begins, where it ends) of the packet at `at`; (0, 0) while that is not known."""
    length = shift = 0
    for place in range(at + 1, min(at + 5, len(data))):
        byte = data[place]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return place + 1, place + 1 + length
        shift += 7
    if len(data) - at >= 5:
        raise PacketError("a packet without a length")
    return 0, 0


def read_packet(first: int, body: bytes) -> ReceivedPacket:
    """A whole packet from its first byte and its body."""
    kind = first >> 4
    try:
        if kind == _PUBLISH:
            return _read_publish(first & 0x0F, body)
        if first & 0x0F and kind in _KNOWN:
            raise PacketError("reserved flags are set")
        if kind in (_PUBACK, _SUBACK, _UNSUBACK):
            return _read_acknowledgement(kind, body)
        if kind == _CONNACK:
            return _read_connack(body)
        if kind == _DISCONNECT:
            return _read_disconnect(body)
        if kind == _PINGRESP and not body:
            return PingAnswer()
    except (struct.error, IndexError, UnicodeDecodeError):
        raise PacketError("a packet that ends too early, or whose text is none") from None
    raise PacketError(f"a packet of type {kind}", ReasonCode.PROTOCOL_ERROR)


def _read_publish(flags: int, body: bytes) -> Message:
    (length,) = _SHORT.unpack_from(body)
    at = 2 + length
    topic = body[2:at].decode()
    if len(body) < at or "\x00" in topic or "+" in topic or "#" in topic:
        raise PacketError("a message without a valid topic")
    qos, packet_id = flags >> 1 & 3, 0
    if qos > 1:
        raise PacketError("a message of QoS 2", ReasonCode.PROTOCOL_ERROR)
    if qos:
        (packet_id,) = _SHORT.unpack_from(body, at)
        at += 2
        if not packet_id:
            raise PacketError("a message of QoS 1 without an id")
    if body[at]:
        found, at = _read_properties(body, at, _PUBLISH)
        if _ALIAS in found:
            raise PacketError("a topic alias that was not allowed", ReasonCode.TOPIC_ALIAS_INVALID)
    else:
        at += 1
    if not topic:
        raise PacketError("a message without a topic", ReasonCode.PROTOCOL_ERROR)
    return Message(topic, body[at:], packet_id, bool(flags & 1))


def _read_acknowledgement(kind: int, body: bytes) -> Acknowledgement:
    (packet_id,) = _SHORT.unpack_from(body)
    if not packet_id:
        raise PacketError("an acknowledgement without an id")
    if kind != _PUBACK:
        _, at = _read_properties(body, 2, kind)
        if at == len(body):
            raise PacketError("an acknowledgement without a reason code")
        return Acknowledgement(packet_id, tuple(body[at:]), of_publish=False)
    code = body[2] if len(body) > 2 else 0
    if len(body) > 3:
        _expect_end(body, _read_properties(body, 3, kind)[1])
    return Acknowledgement(packet_id, (code,), of_publish=True)


def _read_connack(body: bytes) -> ConnectAnswer:
    flags, code = body[0], body[1]
    if len(body) == _OLD_CONNACK_BYTES:
        raise PacketError(
            f"an answer of MQTT 3.1.1 (code {code}): {NEEDS_MQTT_5}",
            ReasonCode.PROTOCOL_ERROR,
        )
    found, at = _read_properties(body, 2, _CONNACK)
    _expect_end(body, at)
    receive_max, max_packet = _number(found, _RECEIVE_MAX, 65_535), _number(found, _MAX_PACKET, UNLIMITED_BYTES)
    max_qos = _number(found, _MAX_QOS, 2)
    if flags > 1 or not receive_max or not max_packet or (max_qos > 1 and _MAX_QOS in found):
        raise PacketError("a CONNACK with impossible values", ReasonCode.PROTOCOL_ERROR)
    keep_alive_s = _number(found, _KEEP_ALIVE, -1)
    return ConnectAnswer(code, bool(flags), max_packet, receive_max, max_qos, keep_alive_s, str(found.get(_REASON, "")))


def _read_disconnect(body: bytes) -> Goodbye:
    code, found = body[0] if body else 0, Properties()
    if len(body) > 1:
        found, at = _read_properties(body, 1, _DISCONNECT)
        _expect_end(body, at)
    return Goodbye(code, str(found.get(_REASON, "")))


def _expect_end(body: bytes, at: int) -> None:
    if at != len(body):
        raise PacketError("a packet with bytes after its end")


def _number(found: Properties, name: int, otherwise: int) -> int:
    value = found.get(name, otherwise)
    return value if isinstance(value, int) else otherwise


def _read_properties(body: bytes, at: int, kind: int) -> tuple[Properties, int]:
    """Properties of a packet, and where they end. Those that may stand several times are checked and left out."""
    length, at = _read_length(body, at)
    end, found = at + length, Properties()
    if end > len(body):
        raise PacketError("properties longer than their packet")
    while at < end:
        name = body[at]
        if name not in _ALLOWED[kind]:
            raise PacketError(f"property {name:#04x} where it may not be", ReasonCode.PROTOCOL_ERROR)
        value, at = _read_property(name, body, at + 1)
        if name in (_USER, _SUBSCRIPTION):
            continue
        if name in found:
            raise PacketError(f"property {name:#04x} twice", ReasonCode.PROTOCOL_ERROR)
        found[name] = value
    if at != end:
        raise PacketError("a property longer than its packet says")
    return found, end


def _read_property(name: int, body: bytes, at: int) -> tuple[int | str | bytes, int]:
    if name in _BYTES:
        return body[at], at + 1
    if name in _SHORTS:
        return _SHORT.unpack_from(body, at)[0], at + 2
    if name in _LONGS:
        return _LONG.unpack_from(body, at)[0], at + 4
    if name == _SUBSCRIPTION:
        return _read_length(body, at)
    if name == _USER:
        _, at = _read_binary(body, at, text=True)
        return _read_binary(body, at, text=True)
    return _read_binary(body, at, text=name in _TEXTS)


def _read_binary(body: bytes, at: int, *, text: bool) -> tuple[str | bytes, int]:
    (length,) = _SHORT.unpack_from(body, at)
    end = at + 2 + length
    value = body[at + 2 : end]
    if len(value) != length:
        raise PacketError("a text longer than its packet")
    return (value.decode() if text else value), end


def _read_length(body: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer, and where it ends."""
    length = 0
    for shift in (0, 7, 14, 21):
        byte = body[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, at
    raise PacketError("a number of more than four bytes")
