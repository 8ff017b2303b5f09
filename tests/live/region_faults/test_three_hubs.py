"""Three hub processes: two are killed under load, the others take over their shards and tasks, and they come back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import BUSY_S, settle
from tests.live.region_faults.test_cut_off import until_ready
from tests.live.regions.test_leases import Pair, server
from tests.live.regions.test_news import share_keys
from tests.live.regions.test_tasks import TASKS
from tests.postgres import PostgresServer

__all__ = ["server"]

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(900)]
ALIVE = "until_ms > extract(epoch from clock_timestamp()) * 1000"


class Trio(Pair):
    """Hub `hub-3` beside the two of a pair."""

    third: ProcessHarness

    def tasks_of(self, hub: str) -> int:
        """How many tasks a hub does."""
        found = self.query(f"select count(*) from region.leases where kind = 'task' and hub = '{hub}' and {ALIVE}")
        return int(str(found[0][0]))

    async def until_shared(self, *hubs: str) -> None:
        """Wait until these hubs share all shards and all tasks, each its part, and nobody else holds any."""
        async with asyncio.timeout(BUSY_S):
            while not self._is_shared(hubs):
                await asyncio.sleep(0.05)

    def _is_shared(self, hubs: tuple[str, ...]) -> bool:
        shards, tasks = [len(self.shards_of(hub)) for hub in hubs], [self.tasks_of(hub) for hub in hubs]
        whole = (sum(shards), sum(tasks)) == (256, len(TASKS))
        return whole and max(shards) - min(shards) <= 1 and max(tasks) - min(tasks) <= 1


@pytest.fixture
async def trio(tmp_path: Path, bundle: Bundle, server: PostgresServer) -> AsyncIterator[Trio]:
    url = server.create_database()
    store = {"store": {"url": url}}
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    async with (
        ProcessHarness(folders[0]) as first,
        ProcessHarness(folders[1]) as second,
        ProcessHarness(folders[2]) as third,
    ):
        one = await first.start_hub(bundle.path, store)
        broker = {"start": False, "port": one.broker_port}
        for number, stage in ((2, second), (3, third)):
            more: dict[str, dict[str, Any]] = {**store, "broker": broker, "hub": {"member": f"hub-{number}"}}
            share_keys(one, await stage.configure_hub(bundle.path, more))
        made = Trio(first, second, url, bundle)
        made.third = third
        yield made


async def test_of_three_hubs_two_are_killed_one_after_the_other_and_come_back_and_nothing_is_lost(
    trio: Trio, tmp_path: Path
):
    agents = await trio.serve_agents(tmp_path)
    await trio.third.launch_hub()
    await trio.until_shared("hub", "hub-2", "hub-3")
    asking = trio.load(agents)
    await trio.until_answered(20)
    assert trio.second.hub is not None
    assert trio.third.hub is not None
    await trio.third.hub.child.kill()
    await trio.until_shared("hub", "hub-2")
    await trio.second.hub.child.kill()
    await trio.until_shared("hub")
    assert await until_ready(trio.first, 200) == ""
    for stage in (trio.third, trio.second):
        await stage.launch_hub()
    await trio.until_shared("hub", "hub-2", "hub-3")
    await asking
    await trio.load(agents)
    await settle(trio.first)
    trio.judge()
