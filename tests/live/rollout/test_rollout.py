"""A fleet gets a good version and a bad one: real hub, broker, repository and agents; people type at a terminal."""

import time
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests.live.doubles.candidates import confused, confused_as_one, renamed, successor
from tests.live.doubles.fleet import judged, settle
from tests.live.doubles.rolling import all_run, feeding, fleet, models, sets, typed
from wire.process.exit_codes import ExitCode

pytestmark = pytest.mark.live


@pytest.mark.timeout(600)
async def test_a_good_version_reaches_all_and_one_that_answers_worse_is_taken_back_from_its_first_wave(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    good, bad = successor(tmp_path, bundle, 2), confused_as_one(tmp_path, bundle, 3)
    agents = await fleet(stage, bundle, [good, bad], 3)
    async with feeding(stage, bundle, agents) as feed:
        told = await typed(stage, "start", str(good.path), "--watch", *sets())
        assert told.code is ExitCode.OK, told.out + told.err
        assert "successfully rolled out" in told.out
        await all_run(stage, agents, "digits@2")
        told = await typed(stage, "start", str(bad.path), "--watch", *sets())
        assert told.code is ExitCode.STOPPED, told.out + told.err
        assert "aborted" in told.out
        assert len(feed.ran(3)) == 1, "the first wave is one device"
        await all_run(stage, agents, "digits@2")
    shown = await typed(stage, "status", "--json")
    assert shown.json["state"] == "aborted"
    assert shown.json["exposed"] == 1


@pytest.mark.timeout(600)
async def test_a_bundle_of_another_input_reaches_nobody_and_no_caller_is_refused(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    other = renamed(tmp_path, bundle, 2)
    agents = await fleet(stage, bundle, [other], 1)
    async with feeding(stage, bundle, agents) as feed:
        told = await typed(stage, "start", str(other.path), "--watch", *sets())
        assert told.code in {ExitCode.STOPPED, ExitCode.WAITING}, told.out + told.err
        shown = (await typed(stage, "status", "--json")).json
        assert shown["waves"][0]["incompatible"] == 1
        assert feed.ran(2) == set()
    assert await models(stage, agents) == {"digits@1"}


@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_twenty_agents_get_a_good_version_in_three_waves_and_a_bad_one_reaches_one_of_them(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    good, bad = successor(tmp_path, bundle, 2), confused(tmp_path, bundle, 3)
    slow = sets(probation_s=10, min_inferences=60)  # twenty callers share this machine: few answers a second of each
    began = time.monotonic()
    agents = await fleet(stage, bundle, [good, bad], 20)
    async with feeding(stage, bundle, agents, pause_s=0.2) as feed:
        told = await typed(stage, "start", str(good.path), "--watch", *slow)
        assert told.code is ExitCode.OK, told.out + told.err
        assert "wave 3 of 3" in told.out
        await all_run(stage, agents, "digits@2")
        told = await typed(stage, "start", str(bad.path), "--watch", *slow)
        assert told.code is ExitCode.STOPPED, told.out + told.err
        assert len(feed.ran(3)) == 1, "the first wave is one device"
        (ran,) = feed.ran(3)
        guinea_pig = next(agent for agent in agents if agent.name == ran)
        await stage.wait_for(guinea_pig, lambda s: s["updates"]["model"] == "digits@2", "it did not go back")
        assert await models(stage, agents) == {"digits@2"}
    print(f"whole story: {time.monotonic() - began:.0f} s")
    history = (await typed(stage, "history", "--json")).json
    assert [each["what"] for each in history][-2:] == ["aborting", "aborted"]
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0)
