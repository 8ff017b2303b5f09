"""Packets beside `mqtt5`, an implementation of its own: what one writes the other reads, to the same meaning."""

from typing import Any

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.transport import packets
from wire.transport.packets import (
    UNLIMITED_BYTES,
    Acknowledgement,
    ConnectAnswer,
    Goodbye,
    Message,
    PacketError,
    PingAnswer,
    ReceivedPacket,
    SessionOptions,
    measure_packet,
    read_packet,
)
from wire.transport.reason_codes import ReasonCode

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=40)
ids = st.integers(1, 65_535)
user = st.lists(st.tuples(texts, texts), max_size=3)


def members(kind: Any) -> list[Any]:
    return [getattr(kind, name) for name in dir(kind) if name.isupper()]


def read(data: bytes) -> ReceivedPacket:
    body, end = measure_packet(data, 0)
    assert end == len(data)
    return read_packet(data[0], data[body:end])


def by_peer(data: bytes) -> mqtt5.Packet:
    packet, size = mqtt5.read(memoryview(data))
    assert size == len(data)
    return packet


@given(texts, st.binary(max_size=70_000), ids)
def test_a_message_is_written_as_the_peer_reads_it(topic, payload, packet_id):
    packet = by_peer(packets.write_publish(topic, payload, packet_id))
    assert isinstance(packet, mqtt5.PublishPacket)
    assert (packet.topic, packet.payload, packet.packet_id, int(packet.qos)) == (topic, payload, packet_id, 1)
    assert packet.retain is False


@given(texts, st.integers(0, 65_535), st.integers(0, 2**32 - 1), texts | st.just(""), st.integers(1, 2**28))
def test_connect_is_written_as_the_peer_reads_it(client, keep_alive, expiry, will, limit):
    data = packets.write_connect(SessionOptions(client, expiry, keep_alive, will, limit))
    packet = by_peer(data)
    assert isinstance(packet, mqtt5.ConnectPacket)
    assert (packet.client_id, packet.keep_alive, packet.session_expiry_interval) == (client, keep_alive, expiry)
    assert packet.clean_start is (expiry == 0)
    assert packet.max_packet_size == (limit if limit < UNLIMITED_BYTES else None)
    assert (packet.will.topic if packet.will else "") == will
    assert packet.will is None or not (packet.will.payload or packet.will.retain)
    assert (packet.username, packet.password) == (None, None)


@given(ids, st.lists(texts, min_size=1, max_size=9))
def test_requests_are_written_as_the_peer_reads_them(packet_id, filters):
    subscribe = by_peer(packets.write_subscribe(packet_id, filters))
    assert isinstance(subscribe, mqtt5.SubscribePacket)
    assert [(each.pattern, int(each.max_qos), each.no_local) for each in subscribe.topic_filters] == [
        (each, 1, False) for each in filters
    ]
    unsubscribe = by_peer(packets.write_unsubscribe(packet_id, filters))
    assert isinstance(unsubscribe, mqtt5.UnsubscribePacket)
    assert unsubscribe.patterns == filters
    assert subscribe.packet_id == unsubscribe.packet_id == packet_id


@pytest.mark.parametrize("code", members(mqtt5.DisconnectReasonCode))
def test_goodbye_is_written_and_read_with_every_code(code):
    packet = by_peer(packets.write_disconnect(ReasonCode(int(code))))
    assert isinstance(packet, mqtt5.DisconnectPacket)
    assert packet.reason_code == code
    assert read(mqtt5.DisconnectPacket(reason_code=code, reason_str="why").write()) == Goodbye(int(code), "why")


def test_the_smallest_packets_are_written_as_the_peer_reads_them():
    assert isinstance(by_peer(packets.PING), mqtt5.PingReqPacket)
    ack = by_peer(packets.write_acknowledgement(7))
    assert isinstance(ack, mqtt5.PubAckPacket)
    assert ack.packet_id == 7
    assert read(mqtt5.PingRespPacket().write()) == PingAnswer()


@given(texts, st.binary(max_size=300), ids | st.none(), user, st.binary(max_size=9) | st.none(), st.booleans())
def test_a_message_of_the_peer_is_read_whatever_properties_it_has(topic, payload, packet_id, named, correlation, dup):
    data = mqtt5.PublishPacket(
        topic, payload, qos=mqtt5.QoS(1 if packet_id else 0), packet_id=packet_id, duplicate=bool(packet_id and dup),
        retain=dup, payload_format_indicator=0, message_expiry_interval=9, content_type="text", response_topic="a/b",
        correlation_data=correlation, subscription_ids=[1, 300], user_properties=named,
    ).write()  # fmt: skip
    assert read(data) == Message(topic, payload, packet_id or 0, dup)


@given(
    st.booleans(), st.sampled_from(members(mqtt5.ConnAckReasonCode)), st.integers(1, 65_535), st.booleans(),
    st.none() | st.integers(1, 2**32 - 1), st.none() | st.integers(0, 65_535), st.none() | texts, user,
)  # fmt: skip
def test_a_connack_of_the_peer_is_read_with_all_its_limits(present, code, receive, one, largest, alive, why, named):
    present = present and not int(code)
    data = mqtt5.ConnAckPacket(
        session_present=present, reason_code=code, receive_max=receive, max_packet_size=largest, reason_str=why,
        max_qos=mqtt5.QoS(1 if one else 2), server_keep_alive=alive, user_properties=named, assigned_client_id="x",
        session_expiry_interval=5, topic_alias_max=3, retain_available=False, response_info="i", server_reference="r",
        wildcard_subscription_available=False, subscription_id_available=False, shared_subscription_available=False,
        authentication_method="m", authentication_data=b"d",
    ).write()  # fmt: skip
    assert read(data) == ConnectAnswer(
        int(code),
        present,
        largest or UNLIMITED_BYTES,
        receive,
        1 if one else 2,
        -1 if alive is None else alive,
        why or "",
    )


@given(ids, st.lists(st.sampled_from(members(mqtt5.SubAckReasonCode)), min_size=1, max_size=9), user)
def test_answers_of_the_peer_are_read(packet_id, codes, named):
    data = mqtt5.SubAckPacket(packet_id, codes, reason_str="s", user_properties=named).write()
    assert read(data) == Acknowledgement(packet_id, tuple(map(int, codes)), of_publish=False)


@given(ids, st.sampled_from(members(mqtt5.PubAckReasonCode)), user, st.none() | texts)
def test_acknowledgements_of_the_peer_are_read(packet_id, code, named, why):
    data = mqtt5.PubAckPacket(packet_id, reason_code=code, reason_str=why, user_properties=named).write()
    assert read(data) == Acknowledgement(packet_id, (int(code),), of_publish=True)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x20\x03\x02\x00\x00", "flags of a CONNACK"),
        (b"\x20\x06\x00\x00\x03\x21\x00\x00", "a receive maximum of 0"),
        (b"\x20\x08\x00\x00\x05\x27\x00\x00\x00\x00", "a largest packet of 0"),
        (b"\x20\x05\x00\x00\x02\x24\x02", "a maximum QoS of 2, which is said by saying nothing"),
        (b"\x20\x07\x00\x00\x04\x24\x01\x24\x01", "a property twice"),
        (b"\x20\x05\x00\x00\x02\x01\x00", "a property of another packet"),
        (b"\x20\x04\x00\x00\x09\x24", "properties longer than the packet"),
        (b"\x20\x04\x00\x00\x00\x00", "bytes after the end"),
        (b"\x40\x02\x00\x00", "an acknowledgement without an id"),
        (b"\x40\x01\x00", "half an id"),
        (b"\x90\x03\x00\x01\x00", "a SUBACK without a code"),
        (b"\xd0\x01\x00", "a PINGRESP with a body"),
        (b"\x32\x06\x00\x01a\x00\x00\x00", "a message of QoS 1 without an id"),
        (b"\x30\x04\x00\x01+\x00", "a wildcard in a topic"),
        (b"\x30\x04\x00\x01\x00\x00", "a null in a topic"),
        (b"\x30\x03\x00\x00\x00", "no topic and no alias"),
        (b"\x36\x06\x00\x01a\x00\x01\x00", "QoS 3"),
    ],
)
def test_what_the_standard_forbids_is_refused(data, what):
    with pytest.raises(PacketError):
        read(data)


@pytest.mark.parametrize("topic", ["", "a/#", "a/+/b", "a\x00b"])
def test_nothing_is_published_to_what_is_no_topic(topic):
    with pytest.raises(ValueError, match="topic"):
        packets.write_publish(topic, b"", 1)


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="65,535"):
        packets.write_publish("a" * 70_000, b"", 1)
