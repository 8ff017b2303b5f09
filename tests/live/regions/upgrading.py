"""A region of three hubs that is upgraded one by one under load, from an earlier version to this one.

The earlier version is taken out of the repository's history and runs with the same interpreter and libraries. Broker
and PostgreSQL server are children of no hub, so that every hub can go.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from cloud_hub.database.parts import ALL_PARTS
from cloud_hub.region.schema_upgrade import read_upgrade
from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import BUSY_S, QUICK, ask, judged, policy, samples, settle
from tests.live.doubles.own_broker import OwnBroker, tapped
from tests.live.regions.test_news import share_keys
from tests.postgres import PostgresServer
from wire.errors import RemoteError
from wire.protocol.codec import decode_down_note, split_frame
from wire.protocol.messages import DownNote, Refusal, WelcomeNote

NEWEST = next(part.newest for part in ALL_PARTS if part.name == "region")
HUBS = ("hub", "hub-2", "hub-3")
AGENTS = ("a", "b", "c", "d")
PAUSE_S = 0.05  # of each agent's caller between two samples
BETWEEN = 40  # questions answered between two hubs


class UpgradeReport(msgspec.Struct, frozen=True):
    """What an upgrade of the whole region cost. `refusals`: that devices were sent, by reason; times in s.

    `swap_s`: of each hub, from the signal until its successor is ready; `contract_s`: until the schema was contracted
    after the last of them was.
    """

    questions: int
    answered: int
    lost: int
    doubled: int
    refusals: dict[str, int]
    swap_s: tuple[float, ...]
    contract_s: float


class UpgradedRegion:
    """Three hubs, each with a harness of its own, of which the first has the agents too."""

    def __init__(self, harnesses: list[ProcessHarness], url: str, bundle: Bundle, carried: list[bytes]) -> None:
        self.harnesses, self.url, self.bundle, self.carried = harnesses, url, bundle, carried
        self.agents: list[AgentHandle] = []
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(text)]

    def read_schema(self) -> tuple[int, tuple[str, ...]]:
        """Number of the region's own part, and the hubs that keep it from being contracted."""
        found = next(part for part in read_upgrade(self.url)[1] if part.part == "region")
        return found.schema, found.waits_for

    def shards(self) -> dict[str, int]:
        alive = "kind = 'shard' and until_ms > extract(epoch from clock_timestamp()) * 1000"
        found = self.query(f"select hub, count(*) from region.leases where {alive} group by hub")
        return dict(found)

    async def until_shared(self) -> None:
        """Wait until all three hubs serve their share."""
        async with asyncio.timeout(BUSY_S):
            while self.shards() != {"hub": 86, "hub-2": 85, "hub-3": 85}:
                await asyncio.sleep(0.05)

    async def until_contracted(self, number: int) -> float:
        """Wait for the schema; how many seconds that took."""
        began = time.monotonic()
        async with asyncio.timeout(BUSY_S):
            while int(self.query("select value from region.meta where key = 'schema'")[0][0]) != number:
                await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def until_answered(self, more: int) -> None:
        """Wait until so many more questions were answered by hubs."""
        query = "select count(*) from questions.effects where ended_ms > 0"
        least = self.query(query)[0][0] + more
        async with asyncio.timeout(BUSY_S):
            while self.query(query)[0][0] < least:
                await asyncio.sleep(0.05)

    async def drain(self, at: int) -> None:
        """Tell a hub to stop, and wait until it has finished what it has and is gone."""
        hub = self.harnesses[at].hub
        assert hub is not None
        assert hub.child.process is not None
        hub.child.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(hub.child.process.wait(), BUSY_S) == 0, hub.child.log_tail()

    async def start(self, at: int, earlier: Path | None = None) -> None:
        """Start a hub of an earlier version, or of this one, and wait until it is ready."""
        hub = self.harnesses[at].hub
        assert hub is not None
        hub.child.environment = {"PYTHONPATH": str(earlier)} if earlier else {}
        await self.harnesses[at].launch_hub()

    async def swap(self, at: int, earlier: Path | None = None) -> float:
        """Drain a hub and start it as another version; how many seconds it was away."""
        began = time.monotonic()
        await self.drain(at)
        await self.start(at, earlier)
        took = time.monotonic() - began
        await self.until_shared()
        return took

    async def start_agents(self, folder: Path) -> None:
        first = self.harnesses[0]
        for name in AGENTS:
            self.agents.append(await first.add_agent(name, self.bundle.path, policy(folder), QUICK))
        for agent in self.agents:
            await first.start_agent(agent)

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        """Every agent is asked again and again; at the end until every question has its outcome."""
        stop = asyncio.Event()

        async def feed(agent: AgentHandle) -> None:
            for sample in samples(100_000):
                if stop.is_set():
                    return
                await ask(self.harnesses[0], agent, self.bundle, sample)
                await asyncio.sleep(PAUSE_S)

        async with asyncio.TaskGroup() as group:
            for agent in self.agents:
                group.create_task(feed(agent))
            try:
                yield
            finally:
                stop.set()
        await settle(self.harnesses[0])

    def count_refusals(self) -> dict[str, int]:
        """Refusals that hubs sent to devices, by reason: the broker has seen them."""
        parts = [message.partition(b" ") for message in self.carried]
        notes = [note for topic, _, payload in parts if topic.endswith(b"/down/r") for note in _read_note(payload)]
        # every device is welcomed; one that is answered at once gets no receipt
        assert any(isinstance(note, WelcomeNote) for note in notes), "notes cannot be read any more"
        return dict(Counter(note.reason.value for note in notes if isinstance(note, Refusal)))

    def judge(self, swap_s: tuple[float, ...], contract_s: float) -> UpgradeReport:
        """What the devices' records and the hubs' database say of it all."""
        found = judged(self.harnesses[0])
        assert self.query("select count(*) from questions.sealed") == [(0,)]
        seen = (found.accepted, found.answers_by_hub, found.lost, found.doubled)
        return UpgradeReport(*seen, self.count_refusals(), swap_s, contract_s)


def _read_note(payload: bytes) -> Iterator[DownNote]:
    """The note of a frame; none of a verdict, which is sealed."""
    with suppress(RemoteError):
        yield decode_down_note(split_frame(payload).body)


@asynccontextmanager
async def upgraded_region(
    folder: Path, bundle: Bundle, server: PostgresServer, earlier: Path
) -> AsyncIterator[UpgradedRegion]:
    """Three hubs of an earlier version, over one database and one broker, with their agents."""
    url = server.create_database()
    store = {"store": {"url": url}}
    async with AsyncExitStack() as stages:
        for name in HUBS:
            (folder / name).mkdir(parents=True)
        broker = stages.enter_context(OwnBroker(folder / HUBS[0]))
        carried = await stages.enter_async_context(tapped(broker))
        harnesses = [await stages.enter_async_context(ProcessHarness(folder / name)) for name in HUBS]
        region = UpgradedRegion(harnesses, url, bundle, carried)
        for at, (name, harness) in enumerate(zip(HUBS, harnesses, strict=True)):
            hub = await harness.configure_hub(bundle.path, {**store, **broker.for_the_hub, "hub": {"member": name}})
            if at:
                assert harnesses[0].hub is not None
                share_keys(harnesses[0].hub, hub)
            await region.start(at, earlier)
        await region.until_shared()
        await region.start_agents(folder)
        yield region


async def upgrade_one_by_one(region: UpgradedRegion) -> UpgradeReport:
    """Drain, stop and start each hub as this version, under load; until the database is contracted."""
    swap_s = []
    async with region.loaded():
        for at in range(len(HUBS)):
            await region.until_answered(BETWEEN)
            swap_s.append(await region.swap(at))
        contract_s = await region.until_contracted(NEWEST)
        await region.until_answered(BETWEEN)
    return region.judge(tuple(swap_s), contract_s)
