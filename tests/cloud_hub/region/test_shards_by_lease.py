"""Two hubs of a region in one process, over one real database and one broker in memory: every story ends alike.

Each question ends once, whoever served its shard when; who lost a shard writes nothing of it and says nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from cloud_hub.engine.base import EchoEngine
from cloud_hub.region.lease_keeper import LeaseKeeper
from cloud_hub.region.leases import LeaseKind, LeaseTable
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.rollouts import decide_here
from cloud_hub.runtime.services import HubServices
from cloud_hub.storage.store import Store
from policies.serving.shard_leases import SHARDS
from tests.cloud_hub.doubles.devices import CARD, SimDevice
from tests.cloud_hub.doubles.site import Ear, Site
from tests.postgres import PostgresServer
from wire.process.logging import JsonLog
from wire.protocol.topics import compute_shard
from wire.transport.base import MemoryBroker

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(180)]

LIFE_S = 2.0
DEVICES = [SimDevice(f"demo--d{number}") for number in range(16)]


class RegionSite(Site):
    """One hub of a region; all of them are given one broker and one database."""

    def __init__(self, name: str, url: str, broker: MemoryBroker, folder: Path, compute_s: float = 0.0) -> None:
        super().__init__(folder, *DEVICES, engine=EchoEngine(CARD, compute_s), member=name, database_url=url)
        self.broker = broker
        self.url = url
        self.table: LeaseTable

    def make_hub(self) -> Hub:
        self.table = LeaseTable.open(self.url, self.settings.member, LIFE_S)
        leases = LeaseKeeper(self.table, JsonLog(self.log))
        return self.build_hub(HubServices(JsonLog(self.log), leases=leases))

    @property
    def shards(self) -> set[int]:
        assert self.hub.leases is not None
        return set(self.hub.leases.shards)


class Region:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.broker = MemoryBroker()
        self.sites: dict[str, RegionSite] = {}

    async def start(self, name: str, compute_s: float = 0.0) -> RegionSite:
        site = self.sites[name] = RegionSite(name, self.url, self.broker, self.folder, compute_s)
        await site.start()
        return site

    async def ask_until_answered(self, ear: Ear, seq: int) -> None:
        """Ask as a device does: the same bytes again until there is a verdict."""
        frame = ear.device.question(seq, time.time())
        async with asyncio.timeout(60):
            while True:
                ear.transport.post(ear.device.up, frame)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        while True:
                            if any(isinstance(each, tuple) and each[0] == seq for each in await ear.heard()):
                                return

    def count_rows(self) -> tuple[int, int]:
        """Rows, and rows without an ending."""
        engine = sa.create_engine(self.url)
        with engine.connect() as connection:
            found = connection.execute(sa.text("select count(*), count(ended_ms) from questions.effects")).one()
        engine.dispose()
        return int(found[0]), int(found[0]) - int(found[1])


@pytest.fixture
async def region(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Region]:
    url = postgres.create_database()
    region = Region(url, tmp_path)
    yield region
    for site in region.sites.values():
        if not site.ended:
            await site.stop()
    postgres.drop_database(url)


async def wait_for(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not met():
            await asyncio.sleep(0.02)


async def ears(region: Region) -> list[Ear]:
    return [await Ear.listen(device, region.broker) for device in DEVICES]


async def test_one_hub_holds_all_shards_and_a_second_one_takes_half(region: Region):
    first = await region.start("hub")
    assert len(first.shards) == SHARDS
    second = await region.start("hub-2")
    await wait_for(lambda: len(first.shards) == len(second.shards) == SHARDS // 2)
    assert not first.shards & second.shards
    for number, ear in enumerate(await ears(region)):
        await region.ask_until_answered(ear, number + 1)
    assert region.count_rows() == (len(DEVICES), 0)
    assert sum(site.hub.counters()["verdicts"] for site in (first, second)) == len(DEVICES)
    served = {compute_shard(device.id) for device in DEVICES}
    assert served & first.shards
    assert served & second.shards


async def test_of_a_hub_that_is_gone_without_a_word_the_other_serves_the_shards_and_what_is_owed(region: Region):
    first = await region.start("hub", compute_s=3.0)  # it will not answer in time
    ear = await Ear.listen(DEVICES[0], region.broker)
    ear.ask(1)
    await wait_for(lambda: region.count_rows() == (1, 1))
    first.table.session = ""  # it gives nothing away
    await first.kill()
    second = await region.start("hub-2")
    assert 1 in await ear.verdicts(1, 60)
    await wait_for(lambda: len(second.shards) == SHARDS)
    assert region.count_rows() == (1, 0)


async def test_a_hub_that_drains_gives_all_away_and_nothing_is_lost(region: Region):
    first, second = await region.start("hub"), await region.start("hub-2")
    await wait_for(lambda: len(first.shards) == len(second.shards) == SHARDS // 2)
    listening = await ears(region)
    asking = [asyncio.create_task(region.ask_until_answered(ear, 1)) for ear in listening]
    await first.stop()
    await asyncio.gather(*asking)
    await wait_for(lambda: len(second.shards) == SHARDS)
    held = [each for each in second.table.look().held() if each.id.kind is not LeaseKind.TASK]
    assert {each.hub for each in held} == {"hub-2"}
    assert region.count_rows() == (len(DEVICES), 0)


async def test_a_hub_that_believes_in_a_lease_it_lost_writes_nothing_and_forgets(region: Region):
    first = await region.start("hub")
    thief = LeaseTable.open(region.url, "hub-3", 3600.0)
    shard = compute_shard(DEVICES[0].id)
    engine = sa.create_engine(region.url)
    with engine.begin() as connection:  # as if it had slept: the table says another one has it
        connection.execute(
            sa.text(
                "update region.leases set hub = 'hub-3', session = :session, stated = :session, term = term + 1, "
                "until_ms = until_ms + "
                "3600000 where kind = 'shard' and number = :shard"
            ),
            {"session": thief.session, "shard": shard},
        )
    ear = await Ear.listen(DEVICES[0], region.broker)
    ear.ask(1)
    await wait_for(lambda: shard not in first.shards)
    assert region.count_rows() == (0, 0)
    assert len(first.shards) == SHARDS - 1
    assert first.hub.counters().get("verdicts", 0) == 0
    engine.dispose()
    thief.close()


async def test_two_hubs_that_both_write_one_question_leave_one_row_and_one_ending(region: Region):
    first = await region.start("hub")
    ear = await Ear.listen(DEVICES[0], region.broker)
    await region.ask_until_answered(ear, 1)
    store = Store.open(region.url)
    assert store.read_unanswered() == []
    store.close()
    assert len(first.shards) == SHARDS
    assert region.count_rows() == (1, 0)


async def test_a_hub_that_has_lost_the_broker_decides_no_rollout_until_it_is_back(region: Region):
    site = await region.start("hub")
    decides = decide_here(site.hub)
    assert decides is not None
    await wait_for(decides)
    region.broker.kill()
    await wait_for(lambda: not decides())
    await asyncio.sleep(2 * LIFE_S)
    assert not decides()
    assert len(site.shards) == SHARDS  # it has its leases all the same
    region.broker.up = True
    await wait_for(decides)
