"""A hub with one device: a version that answers worse is not kept, with traffic, without it, or while nobody looks."""

from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests.live.doubles.candidates import confused, successor
from tests.live.doubles.rolling import all_run, feeding, fleet, models, sets, typed
from wire.process.exit_codes import ExitCode

pytestmark = pytest.mark.live


@pytest.mark.timeout(300)
async def test_a_fleet_of_one_keeps_a_good_version_and_takes_a_worse_one_back(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    good, bad = successor(tmp_path, bundle, 2), confused(tmp_path, bundle, 3)
    agents = await fleet(stage, bundle, [good, bad], 1)
    async with feeding(stage, bundle, agents):
        told = await typed(stage, "start", str(good.path), "--watch", *sets())
        assert told.code is ExitCode.OK, told.out + told.err
        await all_run(stage, agents, "digits@2")
        told = await typed(stage, "start", str(bad.path), "--watch", *sets())
        assert told.code is ExitCode.STOPPED, told.out + told.err
        await stage.wait_for(agents[0], lambda s: s["updates"]["model"] == "digits@2", "it did not go back")
    shown = (await typed(stage, "status", "--json")).json
    assert (shown["state"], shown["states"].get("succeeded", 0)) == ("aborted", 0)


@pytest.mark.timeout(300)
async def test_a_device_that_nobody_asks_keeps_no_version_that_never_answered(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    bad = confused(tmp_path, bundle, 2)
    agents = await fleet(stage, bundle, [bad], 1)
    idle = sets(probation_s=1, soak_first_s=1, max_soak_s=8, min_inferences=1)
    told = await typed(stage, "start", str(bad.path), "--watch", *idle)
    assert told.code is ExitCode.WAITING, told.out + told.err
    assert "no device of wave 1 is left" in told.out
    assert await models(stage, agents) == {"digits@1"}
