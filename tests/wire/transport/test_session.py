"""The MQTT 5 session without I/O: whatever way its bytes are cut, every reason code, limits, keep-alive, and noise."""

import contextlib
import itertools
import os
import random
from math import inf
from typing import Any

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.transport.base import IncomingMessage
from wire.transport.packets import SessionOptions
from wire.transport.reason_codes import ReasonCode, describe_code
from wire.transport.session import (
    MAX_IN_FLIGHT,
    MqttSession,
    PublishEnded,
    RequestEnded,
    SessionEnded,
    SessionEvent,
    SessionOpened,
)

TOPIC = "v1/00/demo--a/down/r"
A_CLIENT_SAYS = {0, 4, 0x80, 0x81, 0x82, 0x83, *range(0x93, 0x9A)}  # in a DISCONNECT: MQTT 5.0, table 3-13
FUZZED = 1_000_000 if os.environ.get("SKERRY_EXAMPLES") == "full" else 20_000


def list_codes(kind: Any) -> list[Any]:
    """Members of an enumeration of `mqtt5`, which cannot be iterated."""
    return [getattr(kind, name) for name in dir(kind) if name.isupper()]


def begin(**options: object) -> MqttSession:
    session = MqttSession(SessionOptions("demo--a", **options), 0.0)  # type: ignore[arg-type]
    session.data_to_send(0.0)
    return session


def opened(now: float = 0.0, **connack: object) -> MqttSession:
    session = begin()
    assert isinstance(session.receive_data(mqtt5.ConnAckPacket(**connack).write())[0], SessionOpened)  # type: ignore[arg-type]
    session.data_to_send(now)
    return session


def read_all(data: bytes) -> list[mqtt5.Packet]:
    found, at = [], 0
    while at < len(data):
        packet, size = mqtt5.read(memoryview(data)[at:])
        assert not isinstance(packet, mqtt5.DisconnectPacket) or int(packet.reason_code) in A_CLIENT_SAYS
        found.append(packet)
        at += size
    return found


def message(topic: str, payload: bytes, packet_id: int | None = None, qos: int = 1) -> bytes:
    chosen = packet_id if qos else None
    return mqtt5.PublishPacket(topic, payload, qos=mqtt5.QoS(qos), packet_id=chosen).write()


# -- the beginning


def test_connect_says_who_we_are_and_what_is_to_be_said_of_us_when_we_are_gone():
    session = MqttSession(SessionOptions("demo--a", 60, will_topic="v1/00/demo--a/up/state", max_packet_bytes=999), 0.0)
    (connect,) = read_all(session.data_to_send(0.0))
    assert isinstance(connect, mqtt5.ConnectPacket)
    assert (connect.client_id, connect.clean_start, connect.session_expiry_interval) == ("demo--a", False, 60)
    assert (connect.keep_alive, connect.max_packet_size) == (20, 999)
    assert connect.will is not None
    assert (connect.will.topic, connect.will.payload or b"", connect.will.qos) == ("v1/00/demo--a/up/state", b"", 1)


def test_without_a_session_to_resume_the_start_is_clean_and_there_is_no_will():
    (connect,) = read_all(MqttSession(SessionOptions("hub"), 0.0).data_to_send(0.0))
    assert isinstance(connect, mqtt5.ConnectPacket)
    assert connect.clean_start
    assert connect.will is None


@pytest.mark.parametrize("limit", [None, 1, 70_000])
@pytest.mark.parametrize("present", [True, False])
def test_the_limits_of_the_connack_are_told(limit, present):
    (event,) = begin().receive_data(mqtt5.ConnAckPacket(session_present=present, max_packet_size=limit).write())
    assert event == SessionOpened(present, limit or 268_435_455)


@pytest.mark.parametrize("code", [code for code in list_codes(mqtt5.ConnAckReasonCode) if int(code)])
def test_every_refusal_of_the_connection_is_told_with_its_name_and_number(code):
    (event,) = begin().receive_data(mqtt5.ConnAckPacket(reason_code=code, reason_str="because").write())
    assert isinstance(event, SessionEnded)
    assert f"{int(code):#04x}" in event.reason
    assert describe_code(int(code)) in event.reason
    assert "because" in event.reason


@pytest.mark.parametrize("kind", [mqtt5.ConnAckReasonCode, mqtt5.PubAckReasonCode, mqtt5.DisconnectReasonCode])
def test_every_reason_code_of_the_standard_has_a_name(kind):
    assert {int(code) for code in list_codes(kind)} <= set(ReasonCode)


def test_a_broker_without_qos_1_is_of_no_use():
    (event,) = begin().receive_data(mqtt5.ConnAckPacket(max_qos=mqtt5.QoS.AT_MOST_ONCE).write())
    assert isinstance(event, SessionEnded)


def test_a_peer_that_hangs_up_before_its_connack_has_refused_us():
    session = begin()
    [ended] = session.receive_end()
    assert isinstance(ended, SessionEnded)
    assert ended.reason == "refused before CONNACK: the broker ended the connection after CONNECT of MQTT 5"
    assert session.receive_end() == []


@pytest.mark.parametrize("code", [1, 0])
def test_a_broker_of_mqtt_3_is_named_by_its_version(code):
    [ended] = begin().receive_data(bytes((0x20, 2, 0, code)))
    assert isinstance(ended, SessionEnded)
    assert "MQTT 3.1.1" in ended.reason
    assert "does not speak MQTT 5, which is needed" in ended.reason


def test_a_web_server_in_place_of_a_broker_is_named():
    [ended] = begin().receive_data(b"HTTP/1.1 400 Bad Request\r\n\r\n<html>")
    assert isinstance(ended, SessionEnded)
    assert ended.reason == "what answers to CONNECT speaks HTTP, not MQTT"


def test_nothing_but_a_connack_comes_first():
    for packet in (message(TOPIC, b"x", 1), mqtt5.PubAckPacket(1).write(), mqtt5.PingRespPacket().write()):
        session = begin()
        (event,) = session.receive_data(packet)
        assert isinstance(event, SessionEnded)
        assert session.data_to_send(0.0) == b""  # a broker that has not accepted us is told nothing


# -- messages


def test_a_session_that_another_client_took_over_ends_as_that():
    session = begin()
    session.receive_data(b"\x20\x03\x00\x00\x00")
    [ended] = session.receive_data(b"\xe0\x02\x8e\x00")
    assert isinstance(ended, SessionEnded)
    assert ended.taken_over
    assert "another client of the same client id" in ended.reason


def test_a_message_that_the_broker_has_kept_is_known_by_its_flag():
    session = begin()
    session.receive_data(b"\x20\x03\x00\x00\x00")
    kept, new = session.receive_data(b"\x31\x05\x00\x01a\x00x" + b"\x30\x05\x00\x01a\x00y")
    assert (kept, new) == (IncomingMessage("a", b"x", retained=True), IncomingMessage("a", b"y"))


def test_a_message_of_qos_1_is_acknowledged_and_one_of_qos_0_is_not():
    session = opened()
    assert session.receive_data(message(TOPIC, b"a", 7) + message(TOPIC, b"b", qos=0)) == [
        IncomingMessage(TOPIC, b"a"), IncomingMessage(TOPIC, b"b"),
    ]  # fmt: skip
    (ack,) = read_all(session.data_to_send(1.0))
    assert isinstance(ack, mqtt5.PubAckPacket)
    assert (ack.packet_id, int(ack.reason_code)) == (7, 0)


@pytest.mark.parametrize("code", list_codes(mqtt5.PubAckReasonCode))
def test_every_reason_code_of_a_puback_is_told(code):
    session = opened()
    packet_id = session.publish(TOPIC, b"x")
    assert session.receive_data(mqtt5.PubAckPacket(packet_id, reason_code=code).write()) == [
        PublishEnded(packet_id, int(code))
    ]
    assert session.receive_data(mqtt5.PubAckPacket(packet_id, reason_code=code).write()) == []  # once


@pytest.mark.parametrize("code", list_codes(mqtt5.SubAckReasonCode))
def test_every_reason_code_of_a_suback_is_told(code):
    session = opened()
    packet_id = session.subscribe(("a", "b"))
    (asked,) = read_all(session.data_to_send(0.0))
    assert isinstance(asked, mqtt5.SubscribePacket)
    assert [(each.pattern, int(each.max_qos)) for each in asked.topic_filters] == [("a", 1), ("b", 1)]
    granted = mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE
    answer = mqtt5.SubAckPacket(packet_id, [granted, code]).write()
    assert session.receive_data(answer) == [RequestEnded(packet_id, (1, int(code)))]


def test_an_answer_to_other_filters_than_we_asked_for_ends_the_session():
    session = opened()
    packet_id = session.subscribe(("a", "b"))
    (event,) = session.receive_data(
        mqtt5.SubAckPacket(packet_id, [mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE]).write()
    )
    assert isinstance(event, SessionEnded)


def test_unsubscribing_is_answered():
    session = opened()
    packet_id = session.unsubscribe(("a",))
    answer = mqtt5.UnsubAckPacket(packet_id, [mqtt5.UnsubAckReasonCode.SUCCESS]).write()
    assert session.receive_data(answer) == [RequestEnded(packet_id, (0,))]


@pytest.mark.parametrize("code", list_codes(mqtt5.DisconnectReasonCode))
def test_every_reason_of_a_disconnect_is_told(code):
    session = opened()
    (event,) = session.receive_data(mqtt5.DisconnectPacket(reason_code=code).write())
    assert isinstance(event, SessionEnded)
    assert f"{int(code):#04x}" in event.reason
    assert session.receive_data(message(TOPIC, b"late", 1)) == []


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (message(TOPIC, b"x", 5, qos=2), mqtt5.DisconnectReasonCode.PROTOCOL_ERROR),
        (mqtt5.PublishPacket("", b"x", topic_alias=3).write(), mqtt5.DisconnectReasonCode.TOPIC_ALIAS_INVALID),
        (mqtt5.ConnAckPacket().write(), mqtt5.DisconnectReasonCode.PROTOCOL_ERROR),
        (
            b"\x20\x02\x00\x01",
            mqtt5.DisconnectReasonCode.PROTOCOL_ERROR,
        ),  # a CONNACK of MQTT 3.1.1, after one of MQTT 5
        (mqtt5.PingReqPacket().write(), mqtt5.DisconnectReasonCode.PROTOCOL_ERROR),
        (mqtt5.PubRelPacket(1).write(), mqtt5.DisconnectReasonCode.PROTOCOL_ERROR),
        (mqtt5.AuthPacket().write(), mqtt5.DisconnectReasonCode.PROTOCOL_ERROR),
        (b"\x00\x00", mqtt5.DisconnectReasonCode.PROTOCOL_ERROR),
        (b"\x41\x02\x00\x01", mqtt5.DisconnectReasonCode.MALFORMED_PACKET),
        (b"\x30\xff\xff\xff\xff\x7f", mqtt5.DisconnectReasonCode.MALFORMED_PACKET),
        (b"\x32\x05\x00\x01a\x00\x00", mqtt5.DisconnectReasonCode.MALFORMED_PACKET),
        (b"\x30\x05\x00\x01\xffa\x00", mqtt5.DisconnectReasonCode.MALFORMED_PACKET),
    ],
)
def test_what_a_broker_must_not_send_ends_the_session_and_it_is_told_why(packet, code):
    session = opened()
    (event,) = session.receive_data(packet)
    assert isinstance(event, SessionEnded)
    (said,) = read_all(session.data_to_send(0.0))
    assert isinstance(said, mqtt5.DisconnectPacket)
    assert said.reason_code == code


def test_a_packet_over_our_limit_is_refused_before_it_has_come_whole():
    session = begin(max_packet_bytes=1000)
    session.receive_data(mqtt5.ConnAckPacket().write())
    (event,) = session.receive_data(message(TOPIC, bytes(2000), 1)[:10])
    assert isinstance(event, SessionEnded)
    assert "packet of" in event.reason


# -- flow control and packet ids


@given(st.integers(1, 40), st.integers(0, 120), st.randoms(use_true_random=False))
def test_no_more_is_in_flight_than_the_broker_takes_and_everything_is_sent_in_order(room, count, dice):
    session = opened(receive_max=room)
    wanted = [session.publish(TOPIC, b"%d" % number) for number in range(count)]
    waiting: list[int] = []
    sent: list[int] = []
    while True:
        for packet in read_all(session.data_to_send(0.0)):
            assert isinstance(packet, mqtt5.PublishPacket)
            assert packet.packet_id is not None
            waiting.append(packet.packet_id)
            sent.append(packet.packet_id)
        assert len(waiting) <= room
        if not waiting:
            break
        done = waiting.pop(dice.randrange(len(waiting)))
        assert session.receive_data(mqtt5.PubAckPacket(done).write()) == [PublishEnded(done, 0)]
    assert sent == wanted


def test_our_own_limit_holds_where_the_broker_has_none():
    session = opened()
    for _ in range(MAX_IN_FLIGHT + 10):
        session.publish(TOPIC, b"")
    assert len(read_all(session.data_to_send(0.0))) == MAX_IN_FLIGHT


def test_a_packet_id_is_not_taken_again_before_it_is_free():
    session = opened()
    first = session.publish(TOPIC, b"")
    others = {session.publish(TOPIC, b"") for _ in range(65_534)}
    assert len(others) == 65_534
    assert first not in others
    with pytest.raises(OverflowError):
        session.publish(TOPIC, b"")
    session.receive_data(mqtt5.PubAckPacket(first).write())
    assert session.publish(TOPIC, b"") == first


def test_what_was_held_back_is_said_before_goodbye():
    session = opened(receive_max=1)
    for _ in range(3):
        session.publish(TOPIC, b"")
    session.disconnect(with_will=True)
    packets = read_all(session.data_to_send(0.0))
    assert [type(packet) for packet in packets] == [mqtt5.PublishPacket] * 3 + [mqtt5.DisconnectPacket]
    assert isinstance(packets[-1], mqtt5.DisconnectPacket)
    assert packets[-1].reason_code == mqtt5.DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE


def test_a_topic_that_is_none_costs_no_packet_id():
    session = opened()
    with contextlib.suppress(ValueError):
        session.publish("a/+/b", b"")
    assert session.publish(TOPIC, b"") in (1, 2)


# -- keep-alive


def test_a_silent_link_is_pinged_and_a_silent_broker_is_left():
    session = opened()
    assert session.next_tick() == 15.0
    assert session.tick(14.9) == []
    assert session.data_to_send(14.9) == b""
    assert session.tick(15.0) == []
    assert isinstance(read_all(session.data_to_send(15.0))[0], mqtt5.PingReqPacket)
    assert session.tick(34.9) == []
    (event,) = session.tick(35.0)
    assert event == SessionEnded("the broker does not answer")


def test_a_broker_that_answers_is_kept():
    session, now = opened(), 0.0
    for _ in range(100):
        now = session.next_tick()
        assert session.tick(now) == []
        if session.data_to_send(now):
            session.receive_data(mqtt5.PingRespPacket().write())
    assert now > 1000.0


def test_whoever_talks_does_not_ping():
    session = opened()
    session.publish(TOPIC, b"")
    session.data_to_send(10.0)
    assert session.tick(15.0) == []
    assert session.data_to_send(15.0) == b""


def test_a_reader_that_was_paused_does_not_take_its_own_silence_for_the_brokers():
    session = opened()
    session.tick(15.0, deaf=True)
    session.data_to_send(15.0)
    assert session.tick(40.0, deaf=True) == []
    assert session.tick(59.0) == []
    assert session.tick(60.0) == [SessionEnded("the broker does not answer")]


@pytest.mark.parametrize(("asked", "tick"), [(10, 7.5), (0, inf)])
def test_the_brokers_keep_alive_is_the_one_that_counts(asked, tick):
    assert opened(server_keep_alive=asked).next_tick() == tick


# -- bytes as they come

packets = st.one_of(
    st.builds(message, st.text("abc/", min_size=1, max_size=9), st.binary(max_size=300), st.integers(1, 65535)),
    st.builds(lambda body: message(TOPIC, body, qos=0), st.binary(max_size=20)),
    st.builds(lambda number: mqtt5.PubAckPacket(number).write(), st.integers(1, 9)),
    st.just(mqtt5.PingRespPacket().write()),
)


def talk(pieces: list[bytes]) -> tuple[list[SessionEvent], bytes]:
    session = opened()
    for _ in range(5):
        session.publish(TOPIC, b"")
    session.data_to_send(0.0)
    events = [event for piece in pieces for event in session.receive_data(piece)]
    return events, session.data_to_send(0.0)


@given(st.lists(packets, max_size=12), st.lists(st.integers(0, 4000), max_size=12))
def test_bytes_mean_the_same_however_they_are_cut(sent, cuts):
    data = b"".join(sent)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert talk(pieces) == talk([data])
    assert talk([data[at : at + 1] for at in range(len(data))]) == talk([data])


@pytest.mark.further
def test_a_million_broken_streams_never_raise_and_never_open_what_was_not_opened():
    """Noise, and good packets with bits turned, cut off or spliced."""
    dice = random.Random(19)
    good = [
        mqtt5.ConnAckPacket(receive_max=9, max_packet_size=4000, reason_str="x", server_keep_alive=9).write(),
        message(TOPIC, b"payload", 7), message(TOPIC, b"p", qos=0), message(TOPIC, b"p", 3, qos=2),
        mqtt5.PubAckPacket(1, reason_code=mqtt5.PubAckReasonCode.NOT_AUTHORIZED, reason_str="no").write(),
        mqtt5.SubAckPacket(2, [mqtt5.SubAckReasonCode.NOT_AUTHORIZED]).write(), mqtt5.PingRespPacket().write(),
        mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode.SERVER_BUSY, reason_str="x").write(),
    ]  # fmt: skip
    for _ in range(FUZZED):
        session = opened() if dice.random() < 0.8 else begin()
        session.publish(TOPIC, b"")
        data = bytearray(b"".join(dice.choices(good, k=dice.randint(0, 3))))
        for _ in range(dice.randint(0, 4)):
            if data and dice.random() < 0.8:
                data[dice.randrange(len(data))] = dice.randrange(256)
            else:
                data += dice.randbytes(dice.randint(1, 12))
        del data[dice.randint(0, len(data) * 2) :]
        cut = dice.randint(0, len(data))
        events = session.receive_data(bytes(data[:cut])) + session.receive_data(bytes(data[cut:]))
        ends = [at for at, event in enumerate(events) if isinstance(event, SessionEnded)]
        assert ends in ([], [len(events) - 1])
        read_all(session.data_to_send(0.0))
