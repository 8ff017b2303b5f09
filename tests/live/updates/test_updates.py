"""A new model on its way to running agents: real hub, broker, repository over HTTP, errands in their own processes."""

import asyncio
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud_hub.repository.publish import publish_bundle, revoke_published
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.version import rewrite_version
from models.signing.roles import model_path
from simulations.demo.acts import POLICY
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import QUICK, ask, judged, samples, settle

pytestmark = pytest.mark.live
NEWEST: dict[str, dict[str, Any]] = {**QUICK, "updates": {"follow": "newest"}}  # nobody assigns here
AT_ONCE = 4
PAUSE_S = 0.01  # of a caller between two samples


def successor(folder: Path, bundle: Bundle, version: int) -> Bundle:
    """The same model under a higher version."""
    manifest = msgspec.structs.replace(bundle.manifest, version=version)
    return rewrite_version(bundle, manifest, folder / f"digits-{version}")


async def started(stage: ProcessHarness, bundle: Bundle, folder: Path) -> AgentHandle:
    """A hub that serves versions 1 and 2 and has published 1, and an agent that lives by its repository."""
    await stage.start_hub(bundle.path, policies=[POLICY], also=[successor(folder, bundle, 2).path])
    agent = await stage.add_agent("a", f"tuf:{bundle.manifest.name}", "tuf:demo", NEWEST)
    await stage.start_agent(agent)
    return agent


def publish(stage: ProcessHarness, folder: Path, version: int) -> None:
    publish_bundle(stage.repository, folder / f"digits-{version}", datetime.now(UTC))


async def asked_until(
    stage: ProcessHarness, agent: AgentHandle, bundle: Bundle, stop: asyncio.Event
) -> list[dict[str, Any]]:
    """Answers to samples, one after the other, until `stop` and a few more."""
    found, rest = [], 20
    for x in cycle(samples(500)):
        found.append(await ask(stage, agent, bundle, x))
        rest -= stop.is_set()
        if not rest:
            break
        await asyncio.sleep(PAUSE_S)
    return found


async def test_a_new_version_reaches_a_running_agent_by_a_hint_and_no_question_is_lost(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    agent = await started(stage, bundle, tmp_path)
    assert (await stage.fetch_status(agent))["updates"]["model"] == "digits@1"
    swapped = asyncio.Event()
    asking = [asyncio.create_task(asked_until(stage, agent, bundle, swapped)) for _ in range(AT_ONCE)]
    await asyncio.to_thread(publish, stage, tmp_path, 2)
    await stage.wait_for(agent, lambda status: status["model"] == "digits@2", "version 2 never came")
    swapped.set()
    answers = [answer for answers in await asyncio.gather(*asking) for answer in answers]
    await settle(stage)
    versions = [answer["model_version"] for answer in answers]
    assert {"1", "2"} <= set(versions)
    report = judged(stage)
    assert (report.lost, report.doubled, report.refused) == (0, 0, 0)
    assert report.accepted == sum(bool(answer["escalation_id"]) for answer in answers)
    assert (await stage.fetch_status(agent))["counts"]["hints"] >= 1


async def test_a_tampered_target_is_refused_and_the_old_model_serves_on(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    agent = await started(stage, bundle, tmp_path)
    publish(stage, tmp_path, 2)
    (file,) = (stage.repository.shelf.targets / "models" / "digits").glob("*.digits-2.skb")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    await refresh(stage, agent)
    await stage.wait_for(agent, lambda status: status["updates"]["failures"], "it was not refused")
    status = await stage.fetch_status(agent)
    assert (status["model"], status["alarms"]) == ("digits@1", ["update_refused"])
    assert status["updates"]["failures"][0].startswith("integrity: ")
    assert (await ask(stage, agent, bundle, samples(1)[0]))["model_version"] == "1"
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    await refresh(stage, agent)
    await stage.wait_for(agent, lambda status: status["model"] == "digits@2", "it never healed")


async def refresh(stage: ProcessHarness, agent: AgentHandle) -> None:
    async with stage.session.post(f"{agent.url}/v1/refresh") as response:
        assert response.status == 202


async def test_without_a_hub_an_agent_serves_installs_nothing_and_recovers_in_one_poll(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    agent = await started(stage, bundle, tmp_path)
    hub = stage.hub
    assert hub is not None
    await hub.child.stop()
    await agent.child.stop()
    await agent.child.start()  # and not even its start needs one
    await stage.wait_ready(agent)
    assert (await ask(stage, agent, bundle, samples(1)[0]))["model_version"] == "1"
    await stage.wait_for(agent, lambda status: status["updates"]["failures"], "nothing failed")
    assert (await stage.fetch_status(agent))["updates"]["failures"][0].startswith("network: ")
    await asyncio.to_thread(publish, stage, tmp_path, 2)
    await hub.child.start()
    await stage._wait_until_ready(hub.child, f"{hub.url}/readyz")
    await stage.wait_for(agent, lambda status: status["link"] == "up", "no link")
    polls = (await stage.fetch_status(agent))["updates"]["polls"]
    await refresh(stage, agent)
    await stage.wait_for(agent, lambda status: status["model"] == "digits@2", "it did not recover")
    status = await stage.fetch_status(agent)
    assert not status["updates"]["failures"]
    assert status["updates"]["polls"] - polls <= 2, "one poll; another may have been under way"


async def test_a_revoked_model_is_left_for_the_previous_one(stage: ProcessHarness, bundle: Bundle, tmp_path: Path):
    agent = await started(stage, bundle, tmp_path)
    await asyncio.to_thread(publish, stage, tmp_path, 2)
    await stage.wait_for(agent, lambda status: status["model"] == "digits@2", "version 2 never came")
    await asyncio.to_thread(revoke_published, stage.repository, model_path("digits", 2), datetime.now(UTC))
    await stage.wait_for(agent, lambda status: status["model"] == "digits@1", "it never left version 2")
    assert (await ask(stage, agent, bundle, samples(1)[0]))["model_version"] == "1"
    assert (await stage.fetch_status(agent))["alarms"] == []


def test_a_successor_differs_by_its_version_alone(bundle: Bundle, tmp_path: Path):
    assert open_bundle(successor(tmp_path, bundle, 2).path).manifest.model == "digits@2"
