"""Who is online: a device that connects, is stopped, or is killed, as the real broker's last will tells the hub."""

import asyncio

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import PATIENT_S, POLICY, QUICK

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


async def wait_online(stage: ProcessHarness, agent: AgentHandle, *, online: bool) -> None:
    """Until the hub's list of devices says so."""
    async with asyncio.timeout(60):
        while (await stage.call_admin("GET", f"/v1/admin/devices/{agent.device}"))["online"] is not online:
            await asyncio.sleep(0.1)


async def test_a_device_is_online_while_it_runs_and_not_after_a_stop_or_a_kill(stage: ProcessHarness, bundle: Bundle):
    await stage.start_hub(bundle.path)
    policy = stage.folder / "policy.toml"
    policy.write_text(POLICY.format(mode="hub_first", budget_s=PATIENT_S))
    agent = await stage.add_agent("a", bundle.path, policy, QUICK)
    for end in (agent.child.stop, agent.child.kill):
        await stage.start_agent(agent)
        await wait_online(stage, agent, online=True)
        await end()
        await wait_online(stage, agent, online=False)
    async with asyncio.timeout(60):  # what a device uses is written down some moments after it was heard
        while (shown := await stage.call_admin("GET", f"/v1/admin/devices/{agent.device}"))["models"] != [
            bundle.manifest.model
        ]:
            await asyncio.sleep(0.1)
    assert shown["last_seen_ms"] > shown["enrolled_ms"]
