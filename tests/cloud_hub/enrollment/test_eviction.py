"""Session eviction: devices that are gone but still send lose their broker session, soon and at a limited rate."""

import asyncio
import contextlib
import io

import pytest

from cloud_hub.enrollment.eviction import SessionEvictor
from cloud_hub.registry.device_states import DeviceState
from cloud_hub.registry.registry import Registry
from tests.cloud_hub.registry.test_registry_lifecycle import DEVICE, enrolled
from wire.process.logging import JsonLog
from wire.transport.base import LinkLostError, MemoryBroker, MemoryTransport


class RecordedEvictor:
    """A session evictor whose take-overs are recorded."""

    def __init__(self, registry: Registry) -> None:
        self.taken: list[str] = []
        self.broker = MemoryBroker()
        self.said = io.StringIO()
        self.doorman = SessionEvictor(registry, self.take_over, JsonLog(self.said))

    async def take_over(self, device: str) -> MemoryTransport:
        if not self.broker.up:
            raise LinkLostError("broker down")
        self.taken.append(device)
        return self.broker.connect()

    @contextlib.asynccontextmanager
    async def open(self):
        task = asyncio.create_task(self.doorman.run())
        yield self
        task.cancel()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def registry(tmp_path):
    opened = Registry.open(tmp_path / "devices.db")
    enrolled(opened)
    yield opened
    opened.close()


@pytest.mark.parametrize("state", [DeviceState.REVOKED, DeviceState.RETIRED])
async def test_a_device_that_is_gone_is_thrown_off_when_it_speaks(registry, state):
    async with RecordedEvictor(registry).open() as door:
        assert door.doorman.device(DEVICE).active
        registry.set_state(DEVICE, state, 1)
        for _ in range(100):
            assert door.doorman.device(DEVICE).gone
            await door.settle()
        assert door.taken == [DEVICE]  # once in ten seconds
        assert door.doorman.counts["evictions"] == 1


@pytest.mark.parametrize("state", [DeviceState.ACTIVE, DeviceState.SUSPENDED, DeviceState.RETIRING])
async def test_who_may_come_back_keeps_its_session(registry, state):
    registry.set_state(DEVICE, state, 1, drain_s=60)
    async with RecordedEvictor(registry).open() as door:
        door.doorman.device(DEVICE)
        door.doorman.device("demo--nobody")
        await door.settle()
        assert door.taken == []


async def test_without_a_broker_nothing_is_thrown_off_and_the_next_one_is(registry):
    async with RecordedEvictor(registry).open() as door:
        door.broker.up = False
        door.doorman.queue_eviction(DEVICE)
        await door.settle()
        door.broker.up = True
        door.doorman.queue_eviction("demo--other")
        await door.settle()
        assert (door.taken, door.doorman.counts["eviction_failed"]) == (["demo--other"], 1)


async def test_a_suspicion_is_logged_once_by_name(registry):
    door = RecordedEvictor(registry)
    assert door.doorman.suspect(DEVICE, 1)
    assert not door.doorman.suspect(DEVICE, 2)
    assert door.said.getvalue().count("clone_suspect") == 1
    assert DEVICE in door.said.getvalue()
