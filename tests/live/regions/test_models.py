"""Two hubs and the models that devices use: what one has heard the other knows, what one retires is gone at both."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import BUSY_S, ask, samples, settle
from tests.live.regions.test_leases import AGENTS, Pair, pair, server
from wire.process.exit_codes import ExitError

__all__ = ["pair", "server"]

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]


async def until_models(stage: ProcessHarness, wanted: list[int]) -> str:
    """Wait until a hub's versions are used by so many devices each; the name of the first one."""
    async with asyncio.timeout(BUSY_S):
        while True:
            models: list[dict[str, Any]] = (await stage.call_admin("GET", "/v1/admin/models"))["models"]
            if [each["speaking"] for each in models] == wanted:
                return str(models[0]["model"]) if models else ""
            await asyncio.sleep(0.05)


async def test_a_version_that_devices_of_another_hub_use_is_retired_only_by_force_and_then_at_both(
    pair: Pair, tmp_path: Path
):
    agents = await pair.serve_agents(tmp_path)
    for hub in (pair.first, pair.second):
        model = await until_models(hub, [len(AGENTS)])  # though each of them hears a part of the devices
    path = f"/v1/admin/models/{model.replace('@', '%40')}/retire"
    with pytest.raises(ExitError, match="still used by demo--a, demo--b, demo--c, demo--d"):
        await pair.second.call_admin("POST", path, {})
    gone = await pair.second.call_admin("POST", path, {"force": True})
    assert len(gone["spoke"]) == len(AGENTS)
    for hub in (pair.first, pair.second):
        await until_models(hub, [])
    answers = [await ask(pair.first, agent, pair.bundle, samples(1)[0]) for agent in agents]
    assert {each["source"] for each in answers} == {"local"}
    await settle(pair.first)
    report = pair.query("select count(*) from questions.effects where verdict is not null")
    assert report == [(0,)]
