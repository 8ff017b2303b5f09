"""The round's timer: the unexpected waits for nobody, a busy hub gathers, and any other flush takes it along."""

import asyncio
import time
from math import inf

import pytest

from cloud_hub.runtime.rounds import RoundTimer
from tests.cloud_hub.doubles.bench import Bench

NOW = 1_000.0


class Rig:
    """A timer over a real core; `flushes` counts the rounds that it ended."""

    def __init__(self, bench: Bench, busy: float) -> None:
        self.core, self.flushes, self.ended = bench.core, 0, asyncio.Event()
        self.now = NOW
        self.timer = RoundTimer(self.core, lambda: self.now, self.flush)
        self.timer._busy, self.timer._seen_s = busy, time.monotonic() + 1e6  # no sample is taken meanwhile

    def flush(self) -> None:
        self.flushes += 1
        self.core.round.close()
        self.ended.set()

    def ask(self, *devices: str, deadline: float = inf) -> None:
        for device in devices:
            self.core.round.add(device, deadline, NOW)
        self.timer.end_or_wait()

    def make_expected(self) -> None:
        """Many devices have asked lately."""
        for number in range(8):
            self.core.round.add(f"demo--{number}", inf, NOW)
        self.core.round.close()


async def test_messages_without_a_question_end_the_round_at_once(bench):
    rig = Rig(bench, busy=1.0)
    rig.timer.end_or_wait()
    assert rig.flushes == 1


async def test_a_single_question_is_flushed_at_once_however_busy_the_hub_is(bench):
    rig = Rig(bench, busy=1.0)
    rig.ask("demo--a")
    assert rig.flushes == 1


@pytest.mark.parametrize("calm", [0.0, 0.2])
async def test_a_calm_hub_flushes_at_once(bench, calm):
    rig = Rig(bench, busy=calm)
    rig.make_expected()
    rig.ask("demo--a")
    assert rig.flushes == 1


async def test_a_busy_hub_gathers_and_ends_the_round_by_itself(bench):
    rig = Rig(bench, busy=1.0)
    rig.make_expected()
    rig.ask("demo--a")
    rig.ask("demo--b")
    assert rig.flushes == 0
    assert rig.timer.is_gathering
    await asyncio.wait_for(rig.ended.wait(), 60)
    assert rig.flushes == 1
    assert not rig.timer.is_gathering


async def test_a_round_that_is_full_does_not_wait_for_its_timer(bench):
    rig = Rig(bench, busy=1.0)
    rig.make_expected()
    rig.ask("demo--a")
    rig.ask(*(f"demo--{number}" for number in range(8)))
    assert rig.flushes == 1
    assert not rig.timer.is_gathering


async def test_what_somebody_else_flushed_is_not_flushed_again(bench):
    rig = Rig(bench, busy=1.0)
    rig.make_expected()
    rig.ask("demo--a")
    rig.core.round.close()
    rig.timer.on_flushed()
    await asyncio.sleep(0.03)
    assert rig.flushes == 0


async def test_a_clock_that_is_set_back_an_hour_holds_no_round(bench):
    rig = Rig(bench, busy=1.0)
    rig.make_expected()
    rig.now = NOW - 3600.0
    rig.ask("demo--a")
    await asyncio.wait_for(rig.ended.wait(), 60)


async def test_an_urgent_question_brings_the_end_forward(bench):
    rig = Rig(bench, busy=1.0)
    rig.make_expected()
    rig.ask("demo--a")
    assert rig.timer._timer is not None
    before = rig.timer._timer.when()
    rig.ask("demo--b", deadline=NOW + 0.05)
    assert rig.timer._timer.when() < before
    await asyncio.wait_for(rig.ended.wait(), 60)
    assert rig.flushes == 1
