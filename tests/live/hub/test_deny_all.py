"""`skerry hub deny-all`: at once, through restarts, until a published policy clears it; no replay brings it back."""

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.repository.publish import publish_policy
from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests import ROOT
from tests.live.doubles.fleet import PATIENT_S, POLICY, QUICK, ask, samples, the_hub_answers

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


async def deny_all(stage: ProcessHarness, *words: str) -> dict[str, Any]:
    assert stage.hub is not None
    config = str(stage.folder / "hub/hub.toml")
    command = (str(ROOT / "skerry.py"), "hub", "deny-all", *words, "--json", "--config", config)
    child = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    assert child.returncode == 0
    return dict(json.loads(out))


async def test_a_notice_acts_at_once_survives_restarts_and_ends_with_a_policy_that_clears_it(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    document = tmp_path / "policy.toml"
    text = POLICY.format(mode="hub_first", budget_s=PATIENT_S)
    document.write_text(text)
    hub = await stage.start_hub(bundle.path, policies=(document,))
    agent = await stage.add_agent("a", bundle.path, "tuf:live", {**QUICK, "updates": {"every_s": 5.0}})
    await stage.start_agent(agent)
    await stage.wait_for(agent, lambda status: bool(status["policy"]), "no policy")
    x = samples(1)[0]
    assert (await ask(stage, agent, bundle, x))["source"] == "hub"

    told = await deny_all(stage, "--why", "a leak in region north")
    assert told["told"] == 1
    await stage.wait_for(agent, lambda status: status.get("notice") == told["counter"], "the notice was not heard")
    denied = await ask(stage, agent, bundle, x)
    assert (denied["source"], denied["reason"]) == ("local", "denied_notice")

    await agent.child.stop()
    await hub.child.stop()
    config = stage.folder / "hub/hub.toml"
    config.write_text(config.read_text().replace(str(document), "tuf:live"))  # from now on what is published counts
    await hub.child.start()
    await stage._wait_until_ready(hub.child, f"{hub.url}/readyz")
    await stage.start_agent(agent)
    denied = await ask(stage, agent, bundle, x)
    assert (denied["source"], denied["reason"]) == ("local", "denied_notice")

    cleared = text.replace("version = 1", f"version = 2\nclears_notice = {told['counter']}")
    await asyncio.to_thread(publish_policy, stage.repository, cleared.encode(), datetime.now(UTC))
    await stage.wait_for(agent, lambda status: not status["notice"], "still denied")
    assert await the_hub_answers(stage, agent, bundle)
    await agent.child.stop()
    await stage.start_agent(agent)  # the hub says its notice again at the hello, and it stays over
    assert await the_hub_answers(stage, agent, bundle)
