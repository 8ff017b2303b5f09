"""A fleet gets a good version and a bad one: real hub, broker, repository and agents; people type at a terminal."""

from pathlib import Path

import pytest

from models.bundle import Bundle
from simulations.stage import Stage
from tests.live.candidates import confused_as_one, successor
from tests.live.rolling import feeding, fleet, models, sets, typed
from wire.exits import Exit

pytestmark = pytest.mark.live


async def test_a_good_version_reaches_all_and_one_that_answers_worse_is_taken_back_from_its_first_wave(
    stage: Stage, bundle: Bundle, tmp_path: Path
):
    good, bad = successor(tmp_path, bundle, 2), confused_as_one(tmp_path, bundle, 3)
    agents = await fleet(stage, bundle, [good, bad], 3)
    async with feeding(stage, bundle, agents) as feed:
        told = await typed(stage, "start", str(good.path), "--watch", *sets())
        assert told.code is Exit.OK, told.out + told.err
        assert "successfully rolled out" in told.out
        assert await models(stage, agents) == {"digits@2"}
        told = await typed(stage, "start", str(bad.path), "--watch", *sets())
        assert told.code is Exit.STOPPED, told.out + told.err
        assert "aborted" in told.out
        assert len(feed.ran(3)) == 1, "the first wave is one device"
        for agent in agents:
            await stage.wait_for(agent, lambda s: s["updates"]["model"] == "digits@2", "it did not go back")
    shown = await typed(stage, "status", "--json")
    assert shown.json["state"] == "aborted"
    assert shown.json["exposed"] == 1
