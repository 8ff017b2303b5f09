"""Hub processes over a real PostgreSQL: tasks of one that was killed are done by another, and its status says so."""

import asyncio
import json
import sys
from typing import Any

import pytest

from simulations.processes import ProcessHarness
from tests import ROOT
from tests.live.doubles.fleet import BUSY_S
from tests.live.regions.test_leases import Pair, pair, server

__all__ = ["pair", "server"]

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]

TASKS = {"retirements", "schema", "rollouts", "keeper", "rotation"}


async def ask_status(stage: ProcessHarness) -> dict[str, dict[str, Any]]:
    """What `skerry hub status` says of each hub of the region."""
    assert stage.hub is not None
    words = (sys.executable, str(ROOT / "skerry.py"), "hub", "status", "--json")
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *words, "--config", str(stage.hub.child.config), stdout=pipe, stderr=pipe
    )
    out, err = await child.communicate()
    assert child.returncode == 0, err.decode()
    return {hub["member"]: hub for hub in json.loads(out)["hubs"]}


def tasks_of(hub: dict[str, Any]) -> set[str]:
    return {each["task"] for each in hub["tasks"]}


async def test_the_tasks_of_a_hub_that_was_killed_are_done_by_the_other_and_its_status_says_so(pair: Pair):
    await pair.second.launch_hub()
    await pair.until_shards(hub=128, hub_2=128)
    async with asyncio.timeout(BUSY_S):
        while True:
            found = await ask_status(pair.first)
            if found.keys() == {"hub", "hub-2"} and all(map(tasks_of, found.values())):
                break
    assert tasks_of(found["hub"]) | tasks_of(found["hub-2"]) == TASKS
    assert not tasks_of(found["hub"]) & tasks_of(found["hub-2"])
    assert pair.second.hub is not None
    await pair.second.hub.child.kill()
    async with asyncio.timeout(BUSY_S):
        while True:
            found = await ask_status(pair.first)
            if tasks_of(found["hub"]) == TASKS:
                break
    assert found["hub-2"]["state"] == "gone"
    assert (found["hub-2"]["shards"], tasks_of(found["hub-2"])) == (0, set())
