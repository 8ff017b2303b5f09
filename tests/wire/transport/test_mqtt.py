"""MQTT connections over real sockets: what an abandoned attempt leaves behind, ends, keep-alive and back-pressure."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import mqtt5
import pytest

from cloud_hub.security.authority import Authority, utc_now
from tests.examples import SetTimes
from tests.wire.doubles.closed_port import closed_port
from tests.wire.doubles.mqtt5_peer import Mqtt5Peer
from wire.errors import LocalError
from wire.transport import mqtt
from wire.transport.base import DeliveryOutcome, IncomingMessage, LinkLostError, SessionTakenOverError
from wire.transport.mqtt import DeviceMqttTransport, MqttTransport

TOPIC = "v1/00/demo--a/down/r"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


async def accepted(listener: socket.socket) -> socket.socket:
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    connection.settimeout(60.0)
    return connection


def said_until_the_end(connection: socket.socket) -> bytes:
    found = b""
    with connection, suppress(ConnectionResetError):  # who left did not read the session tickets
        while data := connection.recv(1024):
            found += data
    return found


async def test_who_gives_up_before_the_broker_answers_leaves_no_connection_behind(listener):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await MqttTransport.connect("127.0.0.1", listener.getsockname()[1], "demo--a", None)
    assert b"MQTT" in await asyncio.to_thread(said_until_the_end, await accepted(listener))


def make_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = Authority.open(folder, utc_now())
    pair = authority.ensure_server(folder, (), utc_now())
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    server.load_cert_chain(pair.certificate, pair.key)
    client.load_verify_locations(cadata=authority.certificate_pem.decode())
    return server, client


async def test_who_gives_up_in_the_middle_of_a_handshake_hangs_up_at_once(listener: socket.socket, tmp_path: Path):
    _, client = make_contexts(tmp_path)
    connecting = asyncio.create_task(MqttTransport.connect("127.0.0.1", listener.getsockname()[1], "demo--a", client))
    connection = await accepted(listener)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert b"MQTT" not in await asyncio.to_thread(said_until_the_end, connection)


async def test_where_nobody_listens_the_reason_is_told():
    with closed_port() as port, pytest.raises(LinkLostError, match=r"(?i)refused"):
        await MqttTransport.connect("127.0.0.1", port, "demo--a", None)


async def test_a_name_that_does_not_exist_is_told():
    with pytest.raises(LinkLostError):
        await MqttTransport.connect("nowhere.invalid", 1, "demo--a", None)


@pytest.fixture(autouse=True)
def quick_goodbye(set_times: SetTimes) -> None:
    """The peer never closes the connection itself."""
    set_times(mqtt, _GOODBYE_S=0.05)


@asynccontextmanager
async def peer() -> AsyncIterator[Mqtt5Peer]:
    made = Mqtt5Peer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.writer.close()
        await asyncio.wait_for(made.ended.wait(), 60)


async def connect(broker: Mqtt5Peer, kind: type[MqttTransport] = MqttTransport) -> MqttTransport:
    return await kind.connect("127.0.0.1", broker.port, "demo--a", None, timeout_s=60.0)


def is_paused(link: MqttTransport) -> bool:
    return link._paused


async def test_a_device_that_closes_has_its_will_published_and_a_hub_does_not():
    for kind, code in ((DeviceMqttTransport, 4), (MqttTransport, 0)):
        async with peer() as broker:
            link = await connect(broker, kind)
            link.post(TOPIC, b"last")
            await link.close()
            (goodbye,) = await broker.wait_for(mqtt5.DisconnectPacket)
            assert int(goodbye.reason_code) == code
            assert [type(each) for each in broker.received[1:]] == [mqtt5.PublishPacket, mqtt5.DisconnectPacket]
            with pytest.raises(LinkLostError):
                link.post(TOPIC, b"later")


async def test_when_the_link_ends_everybody_who_waits_is_told_after_what_had_come():
    async with peer() as broker:
        link = await connect(broker)
        posted = link.post(TOPIC, b"x")
        subscribing = asyncio.create_task(link.subscribe(("a",)))
        await broker.wait_for(mqtt5.SubscribePacket)
        broker.send(mqtt5.PublishPacket(TOPIC, b"before the end"))
        broker.writer.close()
        assert await posted is DeliveryOutcome.LOST
        with pytest.raises(LinkLostError):
            await subscribing
        assert await link.receive() == [IncomingMessage(TOPIC, b"before the end")]
        for _ in range(2):
            with pytest.raises(LinkLostError, match="connection ended"):
                await link.receive()


async def test_a_broker_that_says_why_it_ends_is_quoted():
    async with peer() as broker:
        link = await connect(broker)
        broker.send(mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode.SESSION_TAKEN_OVER))
        with pytest.raises(SessionTakenOverError, match=r"session taken over, 0x8e"):
            await link.receive()


async def test_a_broker_that_sends_nonsense_is_told_so_and_left():
    async with peer() as broker:
        link = await connect(broker)
        broker.writer.write(b"\x30\xff\xff\xff\xff\x7f")
        with pytest.raises(LinkLostError, match="without a length"):
            await link.receive()
        (goodbye,) = await broker.wait_for(mqtt5.DisconnectPacket)
        assert goodbye.reason_code == mqtt5.DisconnectReasonCode.MALFORMED_PACKET


async def test_a_refusal_is_quoted_and_what_had_been_sent_is_counted():
    async with peer() as broker:
        broker.connack = mqtt5.ConnAckPacket(reason_code=mqtt5.ConnAckReasonCode.NOT_AUTHORIZED)
        with pytest.raises(LinkLostError, match=r"not authorized, 0x87") as caught:
            await connect(broker)
        assert caught.value.sent_bytes > 20


async def test_a_broker_that_says_nothing_is_not_waited_for_longer_than_asked(listener):
    with pytest.raises(LinkLostError, match=r"CONNECT of MQTT 5: no answer within 0\.2 s"):
        await MqttTransport.connect("127.0.0.1", listener.getsockname()[1], "demo--a", None, timeout_s=0.2)


async def test_more_than_the_broker_takes_is_refused_here():
    async with peer() as broker:
        broker.connack = mqtt5.ConnAckPacket(max_packet_size=1000)
        link = await connect(broker)
        with pytest.raises(LocalError, match="the broker takes 1000"):
            link.post(TOPIC, bytes(1000))
        with pytest.raises(LocalError):
            link.post("a/#", b"")
        assert link.max_packet_bytes == 1000
        await link.close()


@pytest.mark.further
async def test_a_reader_that_does_not_keep_up_stops_the_broker_and_loses_nothing(monkeypatch):
    monkeypatch.setattr(mqtt, "_PAUSE_BYTES", 200_000)
    async with peer() as broker:
        link = await connect(broker)
        for _ in range(3000):
            broker.send(mqtt5.PublishPacket(TOPIC, bytes(2000)))
        async with asyncio.timeout(60):
            while not is_paused(link):
                await asyncio.sleep(0.01)
        assert link._inbox_bytes < 2_000_000
        got = 0
        async with asyncio.timeout(30):
            while got < 3000:
                got += len(await link.receive())
        assert not is_paused(link)
        await link.close()


async def test_a_peer_that_reads_slowly_gets_everything_in_order():
    async with peer() as broker:
        link = await connect(broker)
        for number in range(300):
            link.post(TOPIC, b"%06d" % number + bytes(20_000))
        found = await broker.wait_for(mqtt5.PublishPacket, 300)
        assert [each.payload[:6] for each in found] == [b"%06d" % number for number in range(300)]
        assert link.sent_bytes > 6_000_000
        await link.close()


@pytest.mark.further
async def test_a_silent_link_is_pinged(monkeypatch):
    async with peer() as broker:
        broker.connack = mqtt5.ConnAckPacket(server_keep_alive=1)
        link = await connect(broker)
        await broker.wait_for(mqtt5.PingReqPacket)
        with pytest.raises(LinkLostError, match="does not answer"):
            await asyncio.wait_for(link.receive(), 60)
