"""Both client libraries against a real agent, broker and hub: a correction over a killed device, a job, node beside."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

import skerry_client
from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests import ROOT
from tests.clients.typescript import WORKSPACE, compile_client, run
from tests.live.doubles.fleet import PATIENT_S, QUICK, policy, samples

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


async def start(stage: ProcessHarness, bundle: Bundle, tmp_path: Path) -> AgentHandle:
    """A hub, and a device whose callers never wait for it."""
    await stage.start_hub(bundle.path)
    agent = await stage.add_agent("cam-1", bundle.path, policy(tmp_path, "answer_now"), QUICK)
    await stage.start_agent(agent)
    return agent


async def test_corrections_go_on_over_a_killed_device_and_each_comes_once(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    device = await start(stage, bundle, tmp_path)
    async with skerry_client.AsyncAgent(device.folder) as agent:
        first = await agent.ask_batch(samples(40), mode="now")
        owed = {answer.answer_id for answer in first if answer.may_be_corrected}
        assert owed
        seen: list[str] = []
        corrections = agent.answers.corrections(after=first[0], patience_s=120)
        async for correction in corrections:
            seen.append(correction.answer_id)
            if len(seen) == 1:
                await device.child.kill()
                await device.child.start()
                await stage.wait_ready(device)
            if len(seen) == len(owed):
                break
        assert sorted(seen) == sorted(owed)
        best = await agent.answers.get(seen[0])
        assert (best.kind, best.source) == ("correction", "hub")
        assert (await agent.answers.why(best)).facts["ledger"]


def ask_blocking(folder: Path) -> list[skerry_client.Answer]:
    with skerry_client.Agent(folder) as agent:
        return agent.ask_batch(samples(8), wait_s=PATIENT_S)


async def test_the_blocking_client_and_a_hubs_jobs(stage: ProcessHarness, bundle: Bundle, tmp_path: Path):
    device = await start(stage, bundle, tmp_path)
    answers = await asyncio.to_thread(ask_blocking, device.folder)
    assert not [answer for answer in answers if answer.may_be_corrected]
    assert stage.hub is not None
    async with skerry_client.AsyncHub(stage.hub.url, token=stage.hub.token) as hub:
        job = await hub.jobs.submit("digits", samples(1)[0])
        assert (await hub.jobs.wait(job, wait_s=PATIENT_S)).predictions[0].label_name
        batch = await hub.batches.submit("digits", samples(5))
        assert (await hub.batches.wait(batch, wait_s=PATIENT_S)).jobs["answered"] == 5
        assert [answer.line async for answer in hub.batches.answers(batch)] == [1, 2, 3, 4, 5]
        assert [each.device for each in await hub.devices.list()] == ["demo--cam-1"]
        assert [version.model for version in await hub.models.list()] == [bundle.manifest.model]
        assert (await hub.costs()).costs
        assert await hub.rollouts.list() == ()
    await device.child.stop()
    with pytest.raises(skerry_client.SkerryError, match="no agent runs with this state folder"):
        skerry_client.Agent(device.folder)


async def test_node_asks_the_device_and_reads_the_hubs_correction(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    await asyncio.to_thread(compile_client)
    device = await start(stage, bundle, tmp_path)
    grey = [str(value) for value in np.full(64, 0.5)]
    script = str(ROOT / "tests" / "clients" / "ask.mjs")
    told = await asyncio.to_thread(run, "node", script, str(WORKSPACE / "dist" / "index.js"), device.url, *grey)
    found = json.loads(told)
    assert (found["correction"], found["streamed"], found["refused"]) == ("correction", True, 400)
