"""Upgrade of a fleet from the release before to this tree, with data and under load, also cut off at any moment."""

import asyncio
import contextlib
import os
import random
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from edge_agent.storage.schema import SCHEMA
from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import QUICK, ask, judged, policy, samples, settle
from tests.live.doubles.release import find_release, install_release

pytestmark = [pytest.mark.live, pytest.mark.heavy, pytest.mark.timeout(1500)]
AGENTS = int(os.environ.get("SKERRY_UPGRADE_AGENTS", "20"))
PAUSE_S = 0.25  # of each device's caller, between two answers
CUT_OFF = 4  # devices whose new release is killed while it starts, several times


@contextlib.asynccontextmanager
async def under_load(stage: ProcessHarness, bundle: Bundle) -> AsyncIterator[list[int]]:
    """A caller at each device, who tries again while its agent is away. Counts what was answered."""
    answered = [0]

    async def call(agent: AgentHandle, xs: list[Any]) -> None:
        while True:
            for x in xs:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    await ask(stage, agent, bundle, x)
                    answered[0] += 1
                await asyncio.sleep(PAUSE_S)

    callers = [asyncio.create_task(call(agent, samples(40, seed))) for seed, agent in enumerate(stage.agents)]
    try:
        yield answered
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


async def upgrade(stage: ProcessHarness, agent: AgentHandle, chance: random.Random, *, cut_off: bool) -> None:
    """The one command of a machine: its new release is there, `systemctl restart`."""
    await agent.child.stop()
    agent.child.python = sys.executable
    for _ in range(3 if cut_off else 0):  # and the power goes at any moment of the first starts
        await agent.child.start()
        await asyncio.sleep(chance.uniform(0.2, 2.5))
        await agent.child.kill()
    await agent.child.start()
    await stage.wait_ready(agent)


def read_schema(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return int(db.execute("pragma user_version").fetchone()[0])


async def test_a_fleet_with_data_is_upgraded_under_load_and_nothing_is_lost_or_doubled(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    release = find_release()
    old = str(install_release(release, tmp_path_factory.mktemp("release")))
    hub = await stage.configure_hub(bundle.path)
    hub.child.python = old
    await stage.launch_hub()
    rules = policy(tmp_path, "answer_now")
    for number in range(AGENTS):
        agent = await stage.add_agent(f"cam-{number}", bundle.path, rules, QUICK)
        agent.child.python = old
        await stage.start_agent(agent)
    before = read_schema(stage.agents[0].database)
    chance = random.Random(7)
    async with under_load(stage, bundle) as answered:
        while answered[0] < 10 * AGENTS:
            await asyncio.sleep(0.1)
        begun, data = time.monotonic(), answered[0]
        for number, agent in enumerate(stage.agents[: AGENTS // 2]):  # new devices, old hub
            await upgrade(stage, agent, chance, cut_off=number < CUT_OFF)
        await hub.child.stop()
        hub.child.python = sys.executable
        await stage.launch_hub()
        for agent in stage.agents[AGENTS // 2 :]:  # old devices, new hub
            await upgrade(stage, agent, chance, cut_off=False)
        took, during = time.monotonic() - begun, answered[0] - data
        last = answered[0]
        while answered[0] < last + AGENTS:
            await asyncio.sleep(0.1)
    await settle(stage)
    assert {read_schema(agent.database) for agent in stage.agents} == {len(SCHEMA)}
    report = judged(stage)
    print(
        f"\n{release} (schema {before}) to this tree (schema {len(SCHEMA)}): {AGENTS} agents in {took:.0f} s, "
        f"{during} answers meanwhile; {report.format_text()}"
    )
    assert (report.lost, report.doubled) == (0, 0), report.format_text()
