"""Tasks that one hub of a region does for all, over a real PostgreSQL: one hub does each, whoever comes and goes."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloud_hub.region.lease_keeper import LeaseKeeper, does_task
from cloud_hub.region.leases import TASKS, LeaseTable, RegionTask
from tests.postgres import PostgresServer
from wire.process.logging import JsonLog

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

LIFE_S = 2.0


class IdleServer:
    """A hub that serves what it is told to serve."""

    def lose_shards(self, shards: frozenset[int]) -> None:
        pass

    def count_hubs(self, hubs: int) -> None:
        pass

    async def gain_shards(self, terms: dict[int, int]) -> None:
        pass


class Hubs:
    """Lease keepers by the names of their hubs, each of which runs until it is killed or leaves."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keepers: dict[str, LeaseKeeper] = {}
        self._tables: dict[str, LeaseTable] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str) -> LeaseKeeper:
        table = self._tables[name] = await asyncio.to_thread(LeaseTable.open, self.url, name, LIFE_S)
        keeper = self.keepers[name] = LeaseKeeper(table, JsonLog(io.StringIO()))
        self._running[name] = asyncio.create_task(keeper.run(IdleServer()))
        return keeper

    async def kill(self, name: str) -> None:
        """End a hub without a word."""
        task = self._running.pop(name)
        task.cancel()
        await asyncio.wait([task])
        del self.keepers[name]
        await asyncio.to_thread(self._tables[name].close)  # after what the keeper may have left on the one thread

    def tasks(self) -> dict[str, set[RegionTask]]:
        return {name: {task for task in TASKS if keeper.does(task)} for name, keeper in self.keepers.items()}

    def are_dealt(self) -> bool:
        """Whether each task is done by one hub."""
        return sorted(task for tasks in self.tasks().values() for task in tasks) == sorted(TASKS)


@pytest.fixture
async def hubs(postgres: PostgresServer) -> AsyncIterator[Hubs]:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    hubs = Hubs(postgres.create_database())
    yield hubs
    for name in list(hubs.keepers):
        await hubs.kill(name)


async def wait_for(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not met():
            await asyncio.sleep(0.02)


async def never_two(hubs: Hubs) -> None:
    while True:
        done = [task for tasks in hubs.tasks().values() for task in tasks]
        assert len(done) == len(set(done)), f"done twice: {hubs.tasks()}"
        await asyncio.sleep(0.01)


def test_a_hub_without_a_region_does_every_task():
    assert all(does_task(None, task) for task in RegionTask)


async def test_tasks_are_dealt_out_and_of_a_hub_that_is_gone_others_do_them(hubs: Hubs):
    watch = asyncio.create_task(never_two(hubs))
    alone = await hubs.start("hub")
    await wait_for(lambda: all(alone.does(task) for task in TASKS))
    await hubs.start("hub-2")
    await hubs.start("hub-3")
    await wait_for(lambda: hubs.are_dealt() and all(hubs.tasks().values()))
    await hubs.kill("hub")
    await wait_for(hubs.are_dealt)
    assert not watch.done()
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch


async def test_a_hub_that_drains_gives_its_tasks_away_at_once_and_keeps_its_shards(hubs: Hubs):
    first = await hubs.start("hub")
    await wait_for(lambda: hubs.are_dealt() and len(first.shards) == 256)
    second = await hubs.start("hub-2")
    await wait_for(lambda: hubs.are_dealt() and len(second.shards) == len(first.shards))
    first.drain()
    await wait_for(lambda: all(second.does(task) for task in TASKS))
    assert not any(first.does(task) for task in TASKS)
    assert len(first.shards) == 128
