"""Sessions over real processes: keys of an hour between agent and hub, their loss, and lists of frames as evidence."""

import asyncio
import base64
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import BUSY_S, PATIENT_S, QUICK, burst, judged, policy, samples, settle, the_hub_answers
from tests.live.fleet.test_ledger import skerry

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
INVITING = {"sessions": {"classes": ["*"]}}


async def in_session(stage: ProcessHarness, agent: AgentHandle) -> None:
    await stage.wait_for(agent, lambda status: status["sessions"] == ["hub-1"], "no session", BUSY_S)


async def counters(stage: ProcessHarness) -> dict[str, int]:
    found: dict[str, int] = (await stage.call_admin("GET", "/v1/admin/status"))["counters"]
    return found


async def test_questions_of_sessions_are_answered_once_whoever_is_killed_and_their_lists_say_who_sealed_them(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    hub = await stage.start_hub(bundle.path, INVITING)
    often = {**QUICK, "records": {"heads_every_s": 1}}
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path, budget_s=PATIENT_S), often)
    await stage.start_agent(agent)
    await in_session(stage, agent)
    assert all(answer["source"] == "hub" for answer in await burst(stage, agent, bundle, samples(30)))

    for one in (hub.child, agent.child):
        feeding = asyncio.create_task(burst(stage, agent, bundle, samples(40), at_once=16))
        await asyncio.sleep(0.15)  # in the middle of it, or nearly
        await one.kill()
        if one is hub.child:
            await stage.launch_hub()
            await feeding
        else:
            await asyncio.gather(feeding, return_exceptions=True)
            await stage.start_agent(agent)
        assert await the_hub_answers(stage, agent, bundle)  # a status may still name the session of before the kill
        await in_session(stage, agent)
        assert {answer["source"] for answer in await burst(stage, agent, bundle, samples(10))} == {"hub"}
    await settle(stage)
    report = judged(stage)
    assert report.ok, report.format_text()

    seen = await counters(stage)
    assert seen["sessions.opened"] >= 1
    assert seen.get("sessions.unlisted", 0) == 0
    known = await stage.call_admin("GET", f"/v1/admin/devices/{agent.device}/questions")
    newest = known["questions"][0]["digest"]
    await _listed(stage, newest, agent)
    heads, config = str(tmp_path / "heads.json"), str(hub.folder.parent / "hub.toml")
    await skerry(tmp_path, "devices", "heads", agent.device, "--config", config, "-o", heads)
    await agent.child.stop()
    assert "as the ledger has them" in await skerry(
        tmp_path, "ledger", "verify", "--dir", str(agent.folder), "--heads", heads
    )
    said = await skerry(tmp_path, "ledger", "find-frame", newest, "--heads", heads)
    assert f"{agent.device}, key" in said
    await skerry(tmp_path, "ledger", "find-frame", "00" * 32, "--heads", heads, code=40)


async def _listed(stage: ProcessHarness, digest: str, agent: AgentHandle) -> None:
    """Until the hub has a list that names this frame."""
    async with asyncio.timeout(BUSY_S):
        while True:
            export = await stage.call_admin("GET", f"/v1/admin/ledger/{agent.device}")
            frames = [base64.b64decode(each["frame"]) for each in export["lists"]]
            if any(bytes.fromhex(digest) in frame for frame in frames):
                return
            await asyncio.sleep(0.2)
