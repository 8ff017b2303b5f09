"""The clock of one of two hubs is set a day wrong: it says so, and no question is lost, refused, or kept too short."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.live.doubles.fleet import policy, settle
from tests.live.doubles.wrong_clock import DAY_S, WrongClock
from tests.live.region_faults.test_cut_off import until_ready
from tests.live.regions.test_leases import SAMPLES, Pair, pair, server
from wire.process.exit_codes import ExitCode

__all__ = ["pair", "server"]

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]
RIGHT = "extract(epoch from clock_timestamp()) * 1000"
MINUTES_MS = 600_000
SAID = "this machine's clock is 86"  # 86,400 s, as far as a busy machine can tell


def short_policy(folder: Path) -> Path:
    """A policy under which nothing is kept for longer than the clock is wrong."""
    document = policy(folder)
    document.write_text(document.read_text().replace('purpose = "test"', 'purpose = "test"\nkeep_days = 1'))
    return document


async def refuse_start(pair: Pair) -> tuple[int, str]:
    """Start the second hub, which has to end by itself: its exit code, and the last line that it said."""
    assert pair.second.hub is not None
    child = pair.second.hub.child
    await child.start()
    assert child.process is not None
    code = await asyncio.wait_for(child.process.wait(), 120)
    return code, child.log.read_text().splitlines()[-1]


async def type_invite(pair: Pair, clock: WrongClock) -> tuple[int, str]:
    """`skerry hub invite` on the machine of the second hub: its exit code, and what it said."""
    assert pair.second.hub is not None
    words = (sys.executable, str(ROOT / "skerry.py"), "hub", "invite", "cam-9")
    child = await asyncio.create_subprocess_exec(
        *words, "--config", str(pair.second.hub.child.config),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **clock.environment},
    )  # fmt: skip
    said = (await child.communicate())[1].decode()
    return child.returncode or 0, said


@pytest.mark.parametrize("off_s", [DAY_S, -DAY_S], ids=["ahead", "behind"])
async def test_a_hub_whose_clock_is_set_a_day_wrong_says_so_and_every_time_is_that_of_the_region(
    pair: Pair, tmp_path: Path, off_s: int
):
    clock = WrongClock.build(tmp_path)
    assert pair.second.hub is not None
    child = pair.second.hub.child
    child.environment = clock.environment
    agents = await pair.serve_agents(short_policy(tmp_path))
    asking = pair.load(agents)
    await pair.until_answered(20)
    clock.set_off(off_s)
    assert SAID in await until_ready(pair.second, 503)
    assert await until_ready(pair.first, 200) == ""
    await asking
    await settle(pair.first)
    await child.kill()
    await pair.until_shards(hub=256)  # the other one takes over what it kept, and the devices that it served
    await pair.load(agents)
    await settle(pair.first)
    pair.judge()
    answered = 2 * SAMPLES * len(agents)
    assert pair.query("select count(*), count(verdict) from questions.effects") == [(answered, answered)]
    far = f"abs(kept_ms - {RIGHT}) > {MINUTES_MS} or abs(ended_ms - {RIGHT}) > {MINUTES_MS}"
    assert pair.query(f"select count(*) from questions.effects where {far}") == [(0,)]

    code, last = await refuse_start(pair)
    assert (code, SAID in last, "set it right" in last) == (ExitCode.CLOCK, True, True), last
    invited = await type_invite(pair, clock)  # nor does a command write its own time, where no hub runs that could
    assert (invited[0], SAID in invited[1]) == (ExitCode.CLOCK, True), invited
    clock.set_off(0)
    await pair.second.launch_hub()
    await pair.until_shards(hub=128, hub_2=128)
