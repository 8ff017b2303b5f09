"""Connections to a broker of the site over real sockets: a broker that is old, silent, slow, hostile, or gone."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import mqtt5
import pytest

from edge_agent.system import site_connection
from edge_agent.system.site_broker import BrokerSection
from edge_agent.system.site_connection import MAX_PACKET_BYTES, SiteConnection, connect_broker
from tests.examples import SetTimes
from tests.wire.doubles.closed_port import closed_port
from tests.wire.doubles.mqtt5_peer import Mqtt5Peer
from wire.errors import LocalError
from wire.transport.base import DeliveryOutcome, IncomingMessage, LinkLostError, SessionTakenOverError

ACCEPTED = mqtt5.ConnAckPacket()
OLD_REFUSAL, OLD_CONNACK = b"\x20\x02\x00\x01", b"\x20\x02\x00\x00"  # of MQTT 3.1.1


class SiteBroker(Mqtt5Peer):
    """Acknowledges subscriptions and, unless `acknowledges` is False, messages."""

    acknowledges = True

    def answer(self, packet: Any) -> None:
        super().answer(packet)
        if isinstance(packet, mqtt5.SubscribePacket):
            self.writer.write(b"\x90\x04" + packet.packet_id.to_bytes(2, "big") + b"\x00\x00")
        elif isinstance(packet, mqtt5.PublishPacket) and self.acknowledges and packet.packet_id:
            self.send(mqtt5.PubAckPacket(packet.packet_id))


@asynccontextmanager
async def serving(serve: Callable[..., Any]) -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        for writer in writers:
            with suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def broker() -> AsyncIterator[SiteBroker]:
    made = SiteBroker()
    async with serving(made.serve) as made.port:
        yield made
        with suppress(AttributeError):
            made.writer.close()


async def connect(port: int, scheme: str = "mqtt", **given: Any) -> SiteConnection:
    return await connect_broker(BrokerSection(broker=f"{scheme}://127.0.0.1:{port}"), "skerry-test", **given)


async def drain(link: SiteConnection) -> None:
    while True:
        await link.receive()


class OldBroker:
    """Speaks MQTT 3.1.1 and nothing newer. It has kept a message."""

    def __init__(self) -> None:
        self.levels: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                kind, size = await reader.readexactly(2)
                body = await reader.readexactly(size)
                if kind == 0x10:
                    self.levels.append(body[6])
                    writer.write(OLD_CONNACK if body[6] == 4 else OLD_REFUSAL)
                    if body[6] != 4:
                        break
                elif kind == 0x82:
                    writer.write(b"\x90\x03" + body[:2] + b"\x00" + b"\x31\x05\x00\x01aok" + b"\x30\x06\x00\x01anew")
                elif kind & 0xF0 == 0x30:
                    writer.write(b"\x40\x02" + body[3:5])
        writer.close()


async def test_a_broker_of_mqtt_3_1_1_alone_is_spoken_to_in_that_version():
    old = OldBroker()
    async with serving(old.serve) as port:
        link = await connect(port, wants_retained=False)
        await link.subscribe(("a",))
        found: list[IncomingMessage] = []
        while len(found) < 2:
            found += await link.receive()
        assert found == [IncomingMessage("a", b"ok", True), IncomingMessage("a", b"new")]
        assert await link.post("b", b"x") is DeliveryOutcome.TAKEN
        await link.close()
    assert old.levels == [5, 4]


async def test_what_is_posted_is_acknowledged_and_leaves_before_the_goodbye(broker: SiteBroker):
    link = await connect(broker.port)
    assert await link.post("t", b"first") is DeliveryOutcome.TAKEN
    link.post("t", b"last", retained=True)
    await link.close()
    await broker.wait_for(mqtt5.DisconnectPacket)
    kinds = [type(each) for each in broker.received[1:]]
    assert kinds == [mqtt5.PublishPacket, mqtt5.PublishPacket, mqtt5.DisconnectPacket]
    assert [each.retain for each in broker.find(mqtt5.PublishPacket)] == [False, True]
    with pytest.raises(LinkLostError):
        link.post("t", b"later")


async def test_the_limits_that_a_broker_states_are_obeyed(broker: SiteBroker):
    broker.connack = mqtt5.ConnAckPacket(max_packet_size=1000, receive_max=3)
    broker.acknowledges = False
    link = await connect(broker.port)
    with pytest.raises(LocalError, match="the broker takes"):
        link.post("t", bytes(1000))
    for topic in ("", "a/#", "+", "a\0", "\ud800", "t" * 65_536):
        with pytest.raises(LocalError):
            link.post(topic, b"")
    posted = [link.post("t", b"%d" % number) for number in range(5)]
    sent = await broker.wait_for(mqtt5.PublishPacket, 3)
    await asyncio.sleep(0.05)
    assert len(broker.find(mqtt5.PublishPacket)) == 3
    broker.acknowledges = True
    broker.send(*(mqtt5.PubAckPacket(each.packet_id) for each in sent))
    assert await asyncio.gather(*posted) == [DeliveryOutcome.TAKEN] * 5
    await link.close()


async def test_a_message_that_the_broker_does_not_allow_is_denied(broker: SiteBroker):
    broker.acknowledges = False
    link = await connect(broker.port)
    posted = link.post("t", b"x")
    (sent,) = await broker.wait_for(mqtt5.PublishPacket)
    broker.send(mqtt5.PubAckPacket(sent.packet_id, reason_code=mqtt5.PubAckReasonCode.NOT_AUTHORIZED))
    assert await posted is DeliveryOutcome.DENIED
    await link.close()


async def test_a_refusal_is_quoted_and_no_older_version_is_tried(broker: SiteBroker):
    broker.connack = mqtt5.ConnAckPacket(reason_code=mqtt5.ConnAckReasonCode.NOT_AUTHORIZED, reason_str="not you")
    with pytest.raises(LinkLostError, match=r"refused the connection \(not authorized, 0x87\): not you"):
        await connect(broker.port)
    assert len(broker.find(mqtt5.ConnectPacket)) == 1


async def test_a_session_that_another_client_takes_over_is_named(broker: SiteBroker):
    link = await connect(broker.port)
    posted = link.post("t", b"x")
    broker.send(mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode.SESSION_TAKEN_OVER))
    with pytest.raises(SessionTakenOverError, match=r"session taken over, 0x8e"):
        await drain(link)
    assert posted.done()


async def test_when_the_broker_goes_what_had_arrived_is_received_and_the_rest_is_lost(broker: SiteBroker):
    broker.acknowledges = False
    link = await connect(broker.port)
    posted = link.post("t", b"x")
    broker.send(mqtt5.PublishPacket("t", b"before the end"))
    await broker.wait_for(mqtt5.PublishPacket)
    broker.writer.close()
    assert await posted is DeliveryOutcome.LOST
    assert await link.receive() == [IncomingMessage("t", b"before the end")]
    for _ in range(2):
        with pytest.raises(LinkLostError, match="connection ended"):
            await link.receive()


HOSTILE = {
    "a packet of a quarter of a gigabyte": (b"\x30\xff\xff\xff\x7f", "a packet of 268435455 bytes"),
    "a packet one byte too large": (b"\x30\x81\x80\x40", f"a packet of {MAX_PACKET_BYTES + 1} bytes"),
    "a message of QoS 2": (b"\x34\x06\x00\x01a\x00\x01\x00", "a message of QoS 2"),
    "a length that does not end": (b"\x30\xff\xff\xff\xff\x7f", "connection ended"),
    "a packet of no type": (b"\x00\x00", "."),
    "a text that is none": (b"\x30\x05\x00\x02\xff\xfe\x00", "malformed"),
    "properties longer than their packet": (b"\x30\x05\x00\x01a\x7f\x01", "."),
    "a property that may not be there": (b"\x30\x06\x00\x01a\x02\x11\x00", "."),
    "an empty message": (b"\x30\x00", "."),
    "a second CONNACK": (b"\x20\x03\x00\x00\x00", "a second CONNACK"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_no_broker_may_send_ends_the_connection_and_is_no_other_error(broker: SiteBroker, name: str):
    sent, line = HOSTILE[name]
    link = await connect(broker.port)
    broker.writer.write(sent)
    with pytest.raises(LinkLostError, match=line):
        async with asyncio.timeout(20):
            await link.receive()


async def test_random_bytes_raise_nothing_but_a_lost_link(broker: SiteBroker):
    seeded = random.Random(5)
    for _ in range(100):
        link = await connect(broker.port)
        broker.writer.write(seeded.randbytes(seeded.randrange(1, 60)))
        broker.writer.close()
        with pytest.raises(LinkLostError):
            await asyncio.wait_for(drain(link), 20)


@pytest.mark.further
async def test_a_reader_that_does_not_keep_up_stops_the_broker_and_loses_nothing(
    broker: SiteBroker, set_times: SetTimes
):
    set_times(site_connection, _PAUSE_BYTES=200_000)
    link = await connect(broker.port)
    await link.subscribe(("t",))
    for number in range(2000):
        broker.send(mqtt5.PublishPacket("t", b"%06d" % number + bytes(2000)))
    async with asyncio.timeout(30):
        while not link._paused:
            await asyncio.sleep(0.01)
    assert link._inbox_bytes < 1_000_000
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < 2000:
            found += [each.payload[:6] for each in await link.receive()]
    assert found == [b"%06d" % number for number in range(2000)]
    await link.close()


@pytest.mark.further
async def test_a_broker_that_falls_silent_is_pinged_and_given_up(broker: SiteBroker, set_times: SetTimes):
    set_times(site_connection, _TICK_S=0.1)
    broker.connack = mqtt5.ConnAckPacket(server_keep_alive=1)
    link = await connect(broker.port)
    await broker.wait_for(mqtt5.PingReqPacket)
    with pytest.raises(LinkLostError, match="the broker does not answer"):
        await asyncio.wait_for(link.receive(), 20)


async def test_a_web_server_at_the_address_is_named():
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with serving(answer) as port:
        with pytest.raises(LinkLostError, match="HTTP, not MQTT"):
            await connect(port)


async def test_a_broker_that_does_not_answer_is_given_up_with_the_step_it_owes(broker: SiteBroker, set_times: SetTimes):
    set_times(site_connection, _STEP_S=0.2)
    broker.connack = None
    with pytest.raises(LinkLostError, match=r"CONNECT: no answer within 0\.2 s"):
        await connect(broker.port)


async def test_a_peer_that_never_ends_its_tls_handshake_holds_up_nobody(set_times: SetTimes):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await connect(port, "mqtts")
        set_times(site_connection, _STEP_S=0.2)
        with pytest.raises(LinkLostError, match=r"no answer within 0\.2 s"):
            await connect(port, "mqtts")


async def test_an_attempt_that_is_given_up_leaves_no_connection_behind():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await connect(listener.getsockname()[1])
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(20)
            while peer.recv(1024):
                pass


async def test_where_nothing_listens_the_reason_is_named():
    with closed_port() as port, pytest.raises(LinkLostError, match=r"(?i)refused"):
        await connect(port)
    with pytest.raises(LinkLostError):
        await connect_broker(BrokerSection(broker="mqtt://nowhere.invalid"), "skerry-test")
