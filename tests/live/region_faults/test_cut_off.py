"""One of two hubs is cut off: from the database, from the broker, or from both; it says so, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness, find_free_port
from tests.live.doubles.fleet import BUSY_S, settle
from tests.live.doubles.proxy import Proxy, proxied
from tests.live.regions.test_leases import Pair
from tests.live.regions.test_news import readiness, share_keys
from tests.postgres import PostgresServer, find_programs

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]
DATABASE, BROKER = "database", "broker"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that listens at a port, so that a proxy can stand before it."""
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    with PostgresServer({"listen_addresses": "127.0.0.1", "port": str(find_free_port())}) as started:
        yield started


@pytest.fixture
async def ways(server: PostgresServer) -> AsyncIterator[dict[str, Proxy]]:
    """The ways of the second hub to the database and, once its port is known, to the broker."""
    async with proxied(server.port) as database, proxied(0) as broker:
        yield {DATABASE: database, BROKER: broker}


@pytest.fixture
async def pair(tmp_path: Path, bundle: Bundle, server: PostgresServer, ways: dict[str, Proxy]) -> AsyncIterator[Pair]:
    url = server.create_database()
    direct = sa.make_url(url)
    far = direct.set(host="127.0.0.1", port=ways[DATABASE].port, query={"sslmode": "disable"})
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with ProcessHarness(tmp_path / "first") as first, ProcessHarness(tmp_path / "second") as second:
        one = await first.start_hub(bundle.path, {"store": {"url": url}})
        ways[BROKER].target = one.broker_port
        broker = {"start": False, "port": ways[BROKER].port}
        store = {"url": far.render_as_string(hide_password=False)}
        two = await second.configure_hub(bundle.path, {"store": store, "broker": broker, "hub": {"member": "hub-2"}})
        share_keys(one, two)
        yield Pair(first, second, url, bundle)


async def until_ready(stage: ProcessHarness, status: int) -> str:
    """Wait until a hub says so; with what reason."""
    async with asyncio.timeout(BUSY_S):
        while (found := await readiness(stage))[0] != status:
            await asyncio.sleep(0.05)
    return found[1]


@pytest.mark.parametrize("cut", [(DATABASE,), (BROKER,), (DATABASE, BROKER)], ids="-and-".join)
async def test_a_hub_that_is_cut_off_says_from_what_and_nothing_is_lost(
    pair: Pair, ways: dict[str, Proxy], tmp_path: Path, cut: tuple[str, ...]
):
    agents = await pair.serve_agents(tmp_path)
    asking = pair.load(agents)
    await pair.until_answered(20)
    for name in cut:
        ways[name].cut()
    reason = await until_ready(pair.second, 503)
    assert any(name in reason for name in cut), reason
    if DATABASE in cut:  # its leases end, and the other hub answers everything
        await pair.until_shards(hub=256)
        await asking
    assert await until_ready(pair.first, 200) == ""
    for name in cut:
        ways[name].mend()
    assert await until_ready(pair.second, 200) == ""
    await pair.until_shards(hub=128, hub_2=128)
    await asking
    await settle(pair.first)
    pair.judge()
