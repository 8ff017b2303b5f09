"""The hub's link: what is published before its first connection waits for it, what is published later does not."""

import asyncio
import contextlib
import itertools

from cloud_hub.runtime import link as link_module
from cloud_hub.runtime.link import MAX_EARLY, HubLink
from wire.process.logging import JsonLog
from wire.transport.base import IncomingMessage, LinkLostError, MemoryBroker, MemoryTransport


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_refusals_of_a_restart_reach_devices_with_the_first_connection_and_nothing_waits_later():
    broker = MemoryBroker()
    broker.up = False

    async def connect() -> MemoryTransport:
        if not broker.up:
            raise LinkLostError("no broker")
        return broker.connect()

    link = HubLink(connect, lambda _: None, lambda: 0.0, JsonLog())
    for number in range(MAX_EARLY + 1):
        link.publish("v1/aa/d/down/r", number.to_bytes(2, "big"))
    assert link.counts["link.unsent"] == 1
    running = asyncio.create_task(link.run())
    broker.up = True
    await until(lambda: link.up)
    assert [message.payload for message in broker.carried] == [n.to_bytes(2, "big") for n in range(MAX_EARLY)]
    broker.up = False
    broker.kill()
    await until(lambda: not link.up)
    link.publish("v1/aa/d/down/r", b"later")
    assert link.counts["link.unsent"] == 2
    broker.up = True
    await until(lambda: link.up)
    assert broker.carried[-1].payload != b"later"
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


class Dropped(MemoryTransport):
    """A connection that stands, and ends at once without a word: Mosquitto 2.0 does so to one that is taken over."""

    async def receive(self) -> list[IncomingMessage]:
        raise LinkLostError("connection ended")


async def test_a_broker_that_takes_the_hub_in_and_drops_it_is_asked_more_and_more_seldom(monkeypatch):
    broker, at = MemoryBroker(), []

    async def connect() -> MemoryTransport:
        at.append(asyncio.get_running_loop().time())
        return Dropped(broker)

    monkeypatch.setattr(link_module, "RECONNECT_BASE_S", 0.005)
    link = HubLink(connect, lambda _: None, lambda: 1.0, JsonLog())
    running = asyncio.create_task(link.run())
    await until(lambda: len(at) == 6)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    gaps = [after - before for before, after in itertools.pairwise(at)]
    assert all(gap >= 0.005 * 2**attempt for attempt, gap in enumerate(gaps, 1))
