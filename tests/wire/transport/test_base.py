"""In-memory transport: the properties that a `Transport` may be relied upon for, and no more."""

import asyncio

import pytest

from wire.errors import LocalError
from wire.protocol.topics import TopicChannel, build_topic, list_hub_filters
from wire.transport.base import (
    MAX_DRAIN_MESSAGES,
    DeliveryOutcome,
    IncomingMessage,
    LinkLostError,
    MemoryBroker,
    MemoryTransport,
)

TOPIC = build_topic("demo--a", TopicChannel.QUESTION)


async def hub_of(broker: MemoryBroker) -> MemoryTransport:
    hub = broker.connect()
    await hub.subscribe(list_hub_filters())
    return hub


async def test_what_is_posted_arrives_once_and_in_order() -> None:
    broker = MemoryBroker()
    hub, device = await hub_of(broker), broker.connect()
    for number in range(5):
        assert await device.post(TOPIC, b"%d" % number) is DeliveryOutcome.TAKEN
    assert await hub.receive() == [IncomingMessage(TOPIC, b"%d" % n) for n in range(5)]


async def test_a_message_nobody_hears_is_said_to_be_so() -> None:
    device = MemoryBroker().connect()
    assert await device.post(TOPIC, b"x") is DeliveryOutcome.NOBODY


async def test_only_the_subscriber_of_the_topic_hears_it() -> None:
    broker = MemoryBroker()
    mine, other = broker.connect(), broker.connect()
    await mine.subscribe((build_topic("demo--a", TopicChannel.REPLY),))
    await other.subscribe((build_topic("demo--b", TopicChannel.REPLY),))
    await broker.connect().post(build_topic("demo--a", TopicChannel.REPLY), b"r")
    assert await mine.receive() == [IncomingMessage(build_topic("demo--a", TopicChannel.REPLY), b"r")]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(other.receive(), 0.01)


@pytest.mark.parametrize(
    ("pattern", "heard"), [("v1/+/+/up/q", True), ("v1/+/up/q", False), ("v1/+/+/up/ask", False), ("+", False)]
)
async def test_a_plus_stands_for_exactly_one_level(pattern: str, heard: bool) -> None:
    broker = MemoryBroker()
    await broker.connect().subscribe((pattern,))
    said = await broker.connect().post(TOPIC, b"x")
    assert (said is DeliveryOutcome.TAKEN) == heard


async def test_one_receive_takes_at_most_a_batch_and_leaves_the_rest() -> None:
    broker = MemoryBroker()
    hub, device = await hub_of(broker), broker.connect()
    for _ in range(MAX_DRAIN_MESSAGES + 1):
        await device.post(TOPIC, b"x")
    assert [len(await hub.receive()), len(await hub.receive())] == [MAX_DRAIN_MESSAGES, 1]


async def test_a_receiver_waits_until_something_comes() -> None:
    broker = MemoryBroker()
    hub, device = await hub_of(broker), broker.connect()
    waiting = asyncio.create_task(hub.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    await device.post(TOPIC, b"x")
    assert await waiting == [IncomingMessage(TOPIC, b"x")]


async def test_a_message_over_the_limit_is_refused_before_it_is_sent() -> None:
    broker = MemoryBroker()
    await hub_of(broker)
    device = MemoryTransport(broker, max_bytes=10)
    assert await device.post(TOPIC, bytes(10)) is DeliveryOutcome.TAKEN
    with pytest.raises(LocalError, match="11 bytes"):
        device.post(TOPIC, bytes(11))
    assert len(broker.carried) == 1


async def test_a_killed_broker_ends_every_connection_and_wakes_whoever_waits() -> None:
    broker = MemoryBroker()
    hub, device = await hub_of(broker), broker.connect()
    waits = [asyncio.create_task(hub.receive()), asyncio.create_task(device.receive())]
    await asyncio.sleep(0)
    broker.kill()
    for waiting in waits:
        with pytest.raises(LinkLostError):
            await waiting
    with pytest.raises(LinkLostError):
        device.post(TOPIC, b"x")
    with pytest.raises(LinkLostError):
        broker.connect()


async def test_what_had_arrived_before_the_link_went_is_still_handed_over() -> None:
    broker = MemoryBroker()
    hub, device = await hub_of(broker), broker.connect()
    await device.post(TOPIC, b"x")
    broker.kill()
    assert await hub.receive() == [IncomingMessage(TOPIC, b"x")]
    for _ in range(2):  # and then every call says that the link is gone
        with pytest.raises(LinkLostError):
            await hub.receive()


async def test_a_connection_from_before_the_restart_stays_dead_after_it() -> None:
    broker = MemoryBroker()
    old = broker.connect()
    broker.kill()
    broker.up = True
    hub = await hub_of(broker)
    with pytest.raises(LinkLostError):
        old.post(TOPIC, b"x")
    with pytest.raises(LinkLostError):
        await old.subscribe((TOPIC,))
    assert await broker.connect().post(TOPIC, b"new") is DeliveryOutcome.TAKEN
    assert await hub.receive() == [IncomingMessage(TOPIC, b"new")]


async def test_a_closed_connection_hears_nothing_and_counts_for_nobody() -> None:
    broker = MemoryBroker()
    hub, device = await hub_of(broker), broker.connect()
    await hub.close()
    assert await device.post(TOPIC, b"x") is DeliveryOutcome.NOBODY
    with pytest.raises(LinkLostError):
        await hub.receive()
