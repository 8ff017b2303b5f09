"""A whole hub whose state is in a real PostgreSQL server: served, killed, restarted, rolled out, erased, cut off."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests import ROOT
from tests.live.doubles.candidates import successor
from tests.live.doubles.fleet import BUSY_S, PATIENT_S, POLICY, QUICK, ask, burst, judged, policy, samples, settle
from tests.live.doubles.rolling import all_run, feeding, fleet, sets, typed
from tests.postgres import PostgresServer, find_programs
from wire.process.exit_codes import ExitCode

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]
SUBJECT = "CANARY-Ada Lovelace"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, since it is killed and hampered."""
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    with PostgresServer() as started:
        yield started


async def skerry(*words: str) -> Any:
    pipe, command = asyncio.subprocess.PIPE, (sys.executable, str(ROOT / "skerry.py"), *words)
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await child.communicate()
    assert child.returncode == 0, (out, err)
    return json.loads(out)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


async def infer(stage: ProcessHarness, bundle: Bundle, token: str) -> int:
    """One question of a tenant over the web; the status."""
    assert stage.hub is not None
    x, spec = samples(1)[0], bundle.manifest.input
    tensor = {"name": spec.name, "shape": [1, *x.shape], "datatype": "FP32", "data": x.ravel().tolist()}
    target = f"{stage.hub.url}/v2/models/{bundle.manifest.name}/infer"
    headers = {"Authorization": f"Bearer {token}"}
    async with stage.session.post(target, json={"inputs": [tensor]}, headers=headers) as response:
        return response.status


async def test_a_hub_keeps_everything_it_knows_over_a_kill_and_no_file_of_it_lies_beside_the_server(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, server: PostgresServer
):
    url = server.create_database()
    hub = await stage.start_hub(bundle.path, {"store": {"url": url}})
    wanted = {"name": "ward", "tenant": "demo", "scopes": ["infer"], "expires_s": 3600}
    token = (await stage.call_admin("POST", "/v1/admin/keys", wanted))["token"]
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), {**QUICK, "records": {"heads_every_s": 1}})
    await stage.start_agent(agent)
    assert await infer(stage, bundle, token) == 200
    feeding_it = asyncio.create_task(burst(stage, agent, bundle, samples(120)))
    await asyncio.to_thread(wait_for_rows, url, 5)
    await hub.child.kill()
    await feeding_it
    await stage.launch_hub()
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
    assert await infer(stage, bundle, token) == 200
    await stage.wait_for(agent, lambda status: status["ledger"].get("witnessed", 0) > 30, "not witnessed")
    known = await skerry("devices", "list", "--config", str(hub.child.config), "--json")
    assert [each["device"] for each in known] == ["demo--a"]
    assert rows(url, "select count(*) from questions.sealed") == [(0,)]
    assert list(hub.folder.glob("*.db*")) == []


def wait_for_rows(url: str, least: int) -> None:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        while connection.exec_driver_sql("select count(*) from questions.effects").scalar_one() < least:
            connection.rollback()
    engine.dispose()


async def test_a_stopped_hub_moves_to_a_server_with_everything_it_knows(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, server: PostgresServer
):
    hub = await stage.start_hub(bundle.path)
    config = ("--config", str(hub.child.config))
    wanted = {"name": "ward", "tenant": "demo", "scopes": ["infer"], "expires_s": 3600}
    token = (await stage.call_admin("POST", "/v1/admin/keys", wanted))["token"]
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    await stage.start_agent(agent)
    await burst(stage, agent, bundle, samples(20))
    await settle(stage)
    lists = (("devices", "list"), ("hub", "key", "list"), ("hub", "aggregates"))
    await hub.child.stop()
    before = [await skerry(*words, *config, "--json") for words in lists]
    hub.server = server.create_database()
    copied = await skerry("hub", "store", "copy", "--to", hub.server, *config, "--json")
    hub.child.config.write_text(hub.child.config.read_text() + f'\n[store]\nurl = "{hub.server}"\n')
    assert [await skerry(*words, *config, "--json") for words in lists] == before
    for table, count in copied["rows"].items():
        assert rows(hub.server, f"select count(*) from {table}") == [(count,)]
    assert copied["rows"]["questions.effects"] >= 20
    await stage.launch_hub()
    assert await infer(stage, bundle, token) == 200
    await burst(stage, agent, bundle, samples(20))
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()


async def test_a_subject_is_forgotten(stage: ProcessHarness, bundle: Bundle, tmp_path: Path, server: PostgresServer):
    url, document = server.create_database(), tmp_path / "policy.toml"
    text = POLICY.format(mode="hub_first", budget_s=PATIENT_S)
    document.write_text(text.replace('purpose = "test"', 'purpose = "test"\nsubject_field = "patient"'))
    await stage.start_hub(bundle.path, {"store": {"url": url}}, policies=(document,))
    agent = await stage.add_agent("a", bundle.path, document, QUICK)
    await stage.start_agent(agent)
    # a device that is not connected answers alone, and a new one sends nothing before it was told what it has spent
    await stage.wait_for(agent, lambda s: s["link"] == "up" and "mirrors" in s["counts"], "never connected")
    for x, who in zip(samples(3), (SUBJECT, SUBJECT, "somebody else"), strict=True):
        assert (await ask(stage, agent, bundle, x, parameters={"subject": who}))["source"] == "hub"
    await settle(stage)
    done = await skerry("erase", SUBJECT, "--dir", str(agent.folder), "--json")
    assert done["hubs"] == {"hub-1": 2}
    kept = rows(url, "select verdict is null, subject is null, refusal from questions.effects order by seq")
    assert kept == [(True, True, "expired"), (True, True, "expired"), (False, False, None)]
    assert rows(url, "select count(*) from questions.tombstones") == [(1,)]


async def test_a_rollout_commits_a_version(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, server: PostgresServer
):
    good = successor(tmp_path, bundle, 2)
    agents = await fleet(stage, bundle, [good], 1, {"store": {"url": server.create_database()}})
    async with feeding(stage, bundle, agents):
        told = await typed(stage, "start", str(good.path), "--watch", *sets())
        assert told.code is ExitCode.OK, told.out + told.err
        await all_run(stage, agents, "digits@2")


@asynccontextmanager
async def under_load(stage: ProcessHarness, bundle: Bundle, tmp_path: Path, url: str) -> AsyncIterator[None]:
    """A hub, and an agent whose callers never rest."""
    await stage.start_hub(bundle.path, {"store": {"url": url}})
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    await stage.start_agent(agent)

    async def feed() -> None:
        while True:
            await burst(stage, agent, bundle, samples(40), 4)

    task = asyncio.create_task(feed())
    try:
        yield
        assert not task.done(), "a caller was refused an answer"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def readiness(stage: ProcessHarness) -> tuple[int, str]:
    assert stage.hub is not None
    async with stage.session.get(f"{stage.hub.url}/readyz") as response:
        return response.status, (await response.json())["reason"]


async def until_ready(stage: ProcessHarness, status: int) -> str:
    """Wait until the hub says so; with what reason."""
    async with asyncio.timeout(BUSY_S):
        while (found := await readiness(stage))[0] != status:
            await asyncio.sleep(0.05)
    return found[1]


async def test_a_killed_server_costs_no_question_and_the_hub_serves_as_soon_as_it_is_back(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, server: PostgresServer
):
    url = server.create_database()
    async with under_load(stage, bundle, tmp_path, url):
        for _ in range(2):
            await asyncio.to_thread(server.kill)
            reason = await until_ready(stage, 503)
            assert "database" in reason, reason
            await asyncio.to_thread(server.start)
            assert await until_ready(stage, 200) == ""
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()


async def test_a_server_that_became_read_only_takes_nothing_new_and_says_why(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, server: PostgresServer
):
    url = server.create_database()
    name = sa.make_url(url).database
    async with under_load(stage, bundle, tmp_path, url):
        server.run_statement(f"alter database {name} set default_transaction_read_only = on")
        cut_off(server, url)
        reason = await until_ready(stage, 503)
        assert "read-only" in reason, reason
        server.run_statement(f"alter database {name} set default_transaction_read_only = off")
        cut_off(server, url)
        assert await until_ready(stage, 200) == ""
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()


FILL_DISK = """
create function public.refuse() returns trigger language plpgsql as
$$ begin raise exception 'no space left on device' using errcode = 'disk_full'; end $$;
create trigger full_disk before insert or update or delete on questions.effects
for each statement execute function public.refuse();
create trigger full_disk before update on questions.meta for each statement execute function public.refuse()
"""  # what a server says whose disk is full, said by one whose disk is not
FREE_DISK = "drop function public.refuse cascade"


async def test_a_server_whose_disk_is_full_takes_nothing_new_and_says_so_until_it_has_room(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, server: PostgresServer
):
    url = server.create_database()
    async with under_load(stage, bundle, tmp_path, url):
        await asyncio.to_thread(wait_for_rows, url, 5)
        server.run_statement(FILL_DISK, url)
        reason = await until_ready(stage, 503)
        assert "disk of the database is full" in reason, reason
        server.run_statement(FREE_DISK, url)
        assert await until_ready(stage, 200) == ""
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report.format_text()


def cut_off(server: PostgresServer, url: str) -> None:
    """End every connection to a database, as its server's restart would."""
    mine = f"datname = '{sa.make_url(url).database}' and pid <> pg_backend_pid()"
    server.run_statement(f"select pg_terminate_backend(pid) from pg_stat_activity where {mine}")
