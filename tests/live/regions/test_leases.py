"""Two hub processes over a real PostgreSQL and one broker: one is killed, stopped and woken, or told to stop.

Whatever happens, every question ends once and is answered; a hub that was woken writes nothing of what it lost.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import BUSY_S, QUICK, burst, judged, policy, samples, settle
from tests.live.regions.test_news import share_keys
from tests.postgres import PostgresServer, find_programs
from wire.protocol.topics import compute_shard

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]

AGENTS = ("a", "b", "c", "d")
SAMPLES = 60  # of each agent


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    with PostgresServer() as started:
        yield started


class Pair:
    """Hubs `hub`, which runs the broker, and `hub-2`, to which everything happens; and what the database says."""

    def __init__(self, first: ProcessHarness, second: ProcessHarness, url: str, bundle: Bundle) -> None:
        self.first, self.second, self.bundle = first, second, bundle
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)

    def query(self, text: str) -> list[sa.Row[tuple[object, ...]]]:
        with self.engine.connect() as connection:
            return list(connection.exec_driver_sql(text).all())

    def shards_of(self, hub: str) -> set[int]:
        alive = "until_ms > extract(epoch from clock_timestamp()) * 1000"
        found = self.query(f"select number from region.leases where kind = 'shard' and hub = '{hub}' and {alive}")
        return {int(str(row[0])) for row in found}

    async def until_shards(self, **wanted: int) -> float:
        """Wait until each hub (`hub_2` for `hub-2`) has so many shards; how many seconds that took."""
        began = time.monotonic()
        async with asyncio.timeout(BUSY_S):
            while {name: len(self.shards_of(name.replace("_", "-"))) for name in wanted} != wanted:
                await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def serve_agents(self, document: Path) -> list[AgentHandle]:
        """Have both hubs serve agents under this policy, or under the usual one in this folder."""
        document = policy(document) if document.is_dir() else document
        made = [await self.first.add_agent(name, self.bundle.path, document, QUICK) for name in AGENTS]
        await self.second.launch_hub()  # it reads at its start who is enrolled
        await self.until_shards(hub=128, hub_2=128)
        for agent in made:
            await self.first.start_agent(agent)
        served = {compute_shard(agent.device) for agent in made}
        assert served & self.shards_of("hub")
        assert served & self.shards_of("hub-2")
        return made

    def load(self, agents: list[AgentHandle]) -> "asyncio.Future[list[object]]":
        return asyncio.gather(*(burst(self.first, agent, self.bundle, samples(SAMPLES)) for agent in agents))

    async def until_answered(self, least: int) -> None:
        async with asyncio.timeout(BUSY_S):
            while int(str(self.query("select count(*) from questions.effects where ended_ms > 0")[0][0])) < least:
                await asyncio.sleep(0.02)

    def judge(self) -> None:
        report = judged(self.first)
        assert (report.lost, report.doubled) == (0, 0), report.format_text()
        assert self.query("select count(*) from questions.sealed") == [(0,)]


@pytest.fixture
async def pair(tmp_path: Path, bundle: Bundle, server: PostgresServer) -> AsyncIterator[Pair]:
    url = server.create_database()
    store = {"store": {"url": url}}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with ProcessHarness(tmp_path / "first") as first, ProcessHarness(tmp_path / "second") as second:
        one = await first.start_hub(bundle.path, store)
        broker = {"start": False, "port": one.broker_port}
        two = await second.configure_hub(bundle.path, {**store, "broker": broker, "hub": {"member": "hub-2"}})
        share_keys(one, two)
        yield Pair(first, second, url, bundle)


async def test_the_shards_of_a_hub_that_was_killed_are_served_by_the_other_and_nothing_is_lost(
    pair: Pair, tmp_path: Path
):
    agents = await pair.serve_agents(tmp_path)
    asking = pair.load(agents)
    await pair.until_answered(20)
    assert pair.second.hub is not None
    await pair.second.hub.child.kill()
    print(f"\nserved again after {await pair.until_shards(hub=256):.2f} s, lease 6 s")
    await asking
    await settle(pair.first)
    pair.judge()


async def test_a_hub_that_was_stopped_for_longer_than_its_lease_writes_nothing_of_what_it_lost(
    pair: Pair, tmp_path: Path
):
    agents = await pair.serve_agents(tmp_path)
    asking = pair.load(agents)
    await pair.until_answered(20)
    assert pair.second.hub is not None
    os.kill(pair.second.hub.child.pid, signal.SIGSTOP)
    try:
        await pair.until_shards(hub=256)
        await asking
        await settle(pair.first)
        before = pair.query("select count(*), sum(ended_ms), max(ended_ms) from questions.effects")
    finally:
        os.kill(pair.second.hub.child.pid, signal.SIGCONT)
    await pair.until_shards(hub=128, hub_2=128)  # it comes back as one that begins anew
    assert pair.query("select count(*), sum(ended_ms), max(ended_ms) from questions.effects") == before
    pair.judge()


async def test_a_hub_that_is_told_to_stop_gives_its_shards_away_and_nothing_is_lost(pair: Pair, tmp_path: Path):
    agents = await pair.serve_agents(tmp_path)
    asking = pair.load(agents)
    await pair.until_answered(20)
    assert pair.second.hub is not None
    await pair.second.hub.child.stop()
    assert pair.shards_of("hub-2") == set()
    await pair.until_shards(hub=256)
    await asking
    await settle(pair.first)
    pair.judge()
