"""The database that two hubs share fails under load: both say why, serve once it works again, and nothing is lost."""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from simulations.checking.databases import judge_run
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import BUSY_S, burst, samples, settle
from tests.live.region_faults.test_cut_off import until_ready
from tests.live.regions.test_leases import Pair, pair
from tests.live.regions.test_news import readiness
from tests.postgres import OWNER, PostgresServer, can_fill_disk, find_programs
from wire.protocol.topics import compute_shard

__all__ = ["pair"]

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]
Hamper = Callable[[Pair, PostgresServer], None]
DISK_MIB = 48
LOOKS = 30
EMPTY_ROUNDS = 3
NO_VACUUM = {"autovacuum": "off"}  # what is vacuumed away on a full disk is room again


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server of the test's own, which may be given how large the disk of its databases is."""
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    disk_mib = getattr(request, "param", 0)
    if disk_mib and not can_fill_disk():
        pytest.skip("this machine lets nobody make a small disk (name spaces of users)")
    with PostgresServer(NO_VACUUM if disk_mib else None, disk_mib) as started:
        yield started


@contextlib.asynccontextmanager
async def under_load(pair: Pair, agents: list[AgentHandle]) -> AsyncIterator[None]:
    """Callers of every agent who never rest; none of them may be refused an answer."""

    async def feed(agent: AgentHandle) -> None:
        while True:
            await burst(pair.first, agent, pair.bundle, samples(20), 2)

    tasks = [asyncio.create_task(feed(agent)) for agent in agents]
    try:
        yield
        assert not any(task.done() for task in tasks), "a caller was refused an answer"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def kill(_: Pair, server: PostgresServer) -> None:
    server.kill()


def start(_: Pair, server: PostgresServer) -> None:
    server.start()


def end_connections(pair: Pair) -> None:
    others = f"datname = '{pair.engine.url.database}' and pid <> pg_backend_pid()"
    pair.query(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}")


def set_read_only(value: str) -> Hamper:
    def change(pair: Pair, server: PostgresServer) -> None:
        server.run_statement(f"alter database {pair.engine.url.database} set default_transaction_read_only = {value}")
        end_connections(pair)

    return change


def fill_disk(pair: Pair, server: PostgresServer) -> None:
    """Write until there is room for nothing more: no other table's next page either.

    A hub that looks whether there is room holds some for that moment, and gives it back. Once a few rounds have found
    none, no look can have held any.
    """
    url = pair.engine.url.render_as_string(hide_password=False)
    server.run_statement("create table public.ballast (data text)", url)
    server.run_statement("alter table public.ballast alter data set storage external", url)
    fill_with(server, url, 1 << 20)
    empty = 0
    while empty < EMPTY_ROUNDS:
        found = sum(fill_with(server, url, size) for size in (1 << 13, 100))
        empty = 0 if found else empty + 1
        time.sleep(0.2)


def fill_with(server: PostgresServer, url: str, size: int) -> int:
    """Write rows of `size` bytes until there is no room for another; how many there was room for."""
    rows = 0
    with contextlib.suppress(sa.exc.OperationalError):
        while True:
            server.run_statement(f"insert into public.ballast values (repeat('x', {size}))", url)
            rows += 1
    return rows


def free_disk(pair: Pair, server: PostgresServer) -> None:
    server.run_statement("drop table public.ballast", pair.engine.url.render_as_string(hide_password=False))


def change_password(pair: Pair, server: PostgresServer) -> None:
    """Change the hubs' password and end their connections; they do not know the new one."""
    others = f"datname = '{pair.engine.url.database}' and pid <> pg_backend_pid()"
    with pair.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(f"alter role {OWNER} password 'another'")
        connection.exec_driver_sql(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}")
    assert server.pid


def restore_password(pair: Pair, server: PostgresServer) -> None:
    statement = f"alter role {OWNER} password '{pair.engine.url.password}'"
    server.run_statement(statement, server.url_of("postgres", "another"))


@pytest.mark.parametrize(
    ("server", "hamper", "mend", "reason"),
    [
        pytest.param(0, kill, start, "database", id="killed"),
        pytest.param(0, change_password, restore_password, "the database refuses this hub", id="refuses"),
        pytest.param(0, set_read_only("on"), set_read_only("off"), "the database is read-only", id="read-only"),
        pytest.param(DISK_MIB, fill_disk, free_disk, "the disk of the database is full", id="full"),
    ],
    indirect=["server"],
)
async def test_a_database_that_fails_is_named_by_both_hubs_and_costs_no_question(
    pair: Pair, server: PostgresServer, tmp_path: Path, hamper: Hamper, mend: Hamper, reason: str
):
    agents = await pair.serve_agents(tmp_path)
    async with under_load(pair, agents):
        await pair.until_answered(20)
        await asyncio.to_thread(hamper, pair, server)
        for stage in (pair.first, pair.second):
            assert reason in await until_ready(stage, 503)
        for _ in range(LOOKS):  # and goes on to say so, although what needs no room is still written
            for stage in (pair.first, pair.second):
                status, why = await readiness(stage)
                assert (status, bool(why)) == (503, True)
            await asyncio.sleep(0.1)
        await asyncio.to_thread(mend, pair, server)
        for stage in (pair.first, pair.second):
            assert await until_ready(stage, 200) == ""
        await pair.until_shards(hub=128, hub_2=128)
        answered = int(str(pair.query("select count(*) from questions.effects where ended_ms > 0")[0][0]))
        await pair.until_answered(answered + 40)
    await settle(pair.first)
    pair.judge()


async def test_a_lease_row_that_somebody_has_locked_stops_its_own_shard_alone_and_nothing_is_lost(
    pair: Pair, tmp_path: Path
):
    agents = await pair.serve_agents(tmp_path)
    shards = {agent.device: compute_shard(agent.device) for agent in agents}
    locked = agents[-1]
    alone = sum(number == shards[locked.device] for number in shards.values()) == 1
    assert alone, "the others share its shard"
    with pair.engine.connect() as connection:
        connection.exec_driver_sql(
            f"select * from region.leases where kind = 'shard' and number = {shards[locked.device]} for update"
        )
        held = {number for hub in ("hub", "hub-2") for number in pair.shards_of(hub)}
        async with asyncio.timeout(BUSY_S):
            while shards[locked.device] in held:  # its holder cannot renew it, and nobody takes it
                await asyncio.sleep(0.05)
                held = {number for hub in ("hub", "hub-2") for number in pair.shards_of(hub)}
        assert held == set(range(256)) - {shards[locked.device]}
        before = count_of(pair, locked)
        asking = asyncio.create_task(burst(pair.first, locked, pair.bundle, samples(5)))
        served = [burst(pair.first, agent, pair.bundle, samples(20)) for agent in agents[:-1]]
        await asyncio.gather(*served)
        await until_answered_to(pair, agents[:-1], 20)
        assert count_of(pair, locked) == before
        assert await until_ready(pair.first, 200) == await until_ready(pair.second, 200) == ""
        connection.rollback()
    await pair.until_shards(hub=128, hub_2=128)
    await asking
    await settle(pair.first)
    assert count_of(pair, locked) == before + 5
    pair.judge()


def count_of(pair: Pair, agent: AgentHandle) -> int:
    found = pair.query(f"select count(*) from questions.effects where device = '{agent.device}' and ended_ms > 0")
    return int(str(found[0][0]))


async def until_answered_to(pair: Pair, agents: list[AgentHandle], least: int) -> None:
    async with asyncio.timeout(BUSY_S):
        while min(count_of(pair, agent) for agent in agents) < least:
            await asyncio.sleep(0.05)


def run_tool(name: str, *words: str) -> None:
    programs = find_programs()
    assert programs is not None
    done = subprocess.run([programs / name, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_database_restored_from_yesterday_under_stopped_hubs_costs_no_answer(pair: Pair, tmp_path: Path):
    agents = await pair.serve_agents(tmp_path)
    hubs: tuple[ProcessHarness, ...] = (pair.first, pair.second)
    backup = str(tmp_path / "skerry.dump")
    where = pair.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    await pair.load(agents)
    await asyncio.to_thread(run_tool, "pg_dump", "--format=custom", f"--file={backup}", where)
    asking = pair.load(agents)
    known = int(str(pair.query("select count(*) from questions.effects")[0][0]))
    await pair.until_answered(known + 20)
    for stage in reversed(hubs):
        assert stage.hub is not None
        await stage.hub.child.stop()
    end_connections(pair)
    restored = ("--clean", "--if-exists", "--no-owner", "--single-transaction", f"--dbname={where}", backup)
    await asyncio.to_thread(run_tool, "pg_restore", *restored)
    assert int(str(pair.query("select count(*) from questions.effects")[0][0])) <= known
    for stage in hubs:
        await stage.launch_hub()
    await pair.until_shards(hub=128, hub_2=128)
    await asking
    await pair.load(agents)
    await settle(pair.first)
    assert pair.query("select count(*) from questions.sealed") == [(0,)]
    report = judge_run([agent.database for agent in agents], None)  # effects of answers since the backup are gone
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
