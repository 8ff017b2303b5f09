"""Sources with a device behind them: one bounded queue, everything counted, restarted whatever happens."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.question.records import DisabledError
from edge_agent.sources.counts import DropReason, SourceCounts, SourceState
from edge_agent.sources.feed import PreparationError, SampleFeed
from edge_agent.sources.source import Intake, Overflow, Reading, SourceError
from edge_agent.sources.supervisor import RestartPauses, SourceSupervisor, SupervisedSource
from models.bundle.manifest import InputSpec
from models.runtime.runner import SampleError
from tests.edge_agent.doubles.api_double import MemoryAgent
from wire.process.logging import JsonLog

GOOD = np.array([0.1, 0.9, 0], np.float32)


class ScriptedSource:
    """A source that plays one script after the other, one for each start, and then waits."""

    def __init__(self, *scripts: Callable[[Intake], Awaitable[None]], overflow: Overflow = Overflow.WAIT) -> None:
        self.name = "scripted"
        self.overflow = overflow
        self.queue_size = 2
        self.parallel = 1
        self.starts = 0
        self._scripts = scripts

    async def run(self, intake: Intake) -> None:
        self.starts += 1
        if self.starts > len(self._scripts):
            await asyncio.Event().wait()
        await self._scripts[self.starts - 1](intake)


class SlowAgent(MemoryAgent):
    """Answers one sample for each `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.release = asyncio.Semaphore(0)

    async def infer(self, sample):
        await self.release.acquire()
        return await super().infer(sample)


def reading(x=GOOD) -> Reading:
    return Reading(lambda _spec: x)


def raising(error: Exception) -> Reading:
    def parse(_spec: InputSpec) -> np.ndarray:
        raise error

    return Reading(parse)


class World:
    def __init__(self, source, agent=None) -> None:
        self.agent = agent or MemoryAgent()
        self.log = io.StringIO()
        self.answers: list[str] = []
        self.supervisor = SourceSupervisor(
            JsonLog(self.log), lambda name, _record: self.answers.append(name), RestartPauses(0.001, 0.002)
        )
        self.supervisor.add(source, SampleFeed(self.agent, "private"))
        (self.one,) = self.supervisor.sources

    async def run_until(self, done: Callable[[SupervisedSource], bool]) -> None:
        running = asyncio.create_task(self.supervisor.run())
        try:
            async with asyncio.timeout(60):
                while not done(self.one):
                    assert not running.done()
                    await asyncio.sleep(0.001)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.getvalue().splitlines()) if line["event"] == event]


async def test_what_a_source_gives_is_answered_in_its_data_class():
    async def script(intake):
        await intake.put(reading())
        await intake.put(Reading(lambda _spec: GOOD, "door"))
        await asyncio.Event().wait()

    world = World(ScriptedSource(script))
    await world.run_until(lambda one: one.counts.answered == 2)
    assert [sample.data_class for sample in world.agent.samples] == ["private", "door"]
    assert world.answers == ["scripted"] * 2
    assert world.supervisor.status_fields()["sources"]["scripted"] == {
        "state": "up", "error": "", "waiting": 0, "received": 2, "answered": 2, "dropped": {}, "restarts": 0,
        "size_changes": 0,
    }  # fmt: skip


async def test_a_device_that_goes_away_is_an_alarm_one_line_and_a_restart():
    async def away(_intake):
        raise SourceError("refused")

    async def back(intake):
        await intake.put(reading())
        await asyncio.Event().wait()

    world = World(ScriptedSource(away, away, away, back))
    await world.run_until(lambda one: one.state is SourceState.AWAY)
    assert world.supervisor.alarms() == {"source_away"}
    await world.run_until(lambda one: one.counts.answered == 1)
    assert world.supervisor.alarms() == set()
    assert world.one.counts.restarts == 3
    assert [line["error"] for line in world.lines("source_away")] == ["refused"]
    assert len(world.lines("source_up")) == 1


async def test_the_words_of_a_library_stand_in_the_log_and_in_a_status_that_can_be_sent():
    async def away(_intake):
        raise SourceError("connection\nended")

    world = World(ScriptedSource(away))
    await world.run_until(lambda one: one.state is SourceState.AWAY)
    assert [line["error"] for line in world.lines("source_away")] == ["connection ended"]
    sent = msgspec.json.decode(msgspec.json.encode(world.supervisor.status_fields()))
    assert sent["sources"]["scripted"]["error"] == "connection ended"


async def test_a_defect_of_a_source_and_its_end_are_restarts_too():
    async def broken(_intake):
        raise ZeroDivisionError

    async def ended(intake):
        await intake.put(reading())

    world = World(ScriptedSource(broken, ended))
    await world.run_until(lambda one: one.counts.restarts == 2)
    assert world.lines("source_defect")[0]["error"].startswith("ZeroDivisionError@")
    assert world.one.last_error == "ended"
    assert world.one.counts.answered == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SampleError("3, the model takes 4"), DropReason.UNFIT),
        (PreparationError("nobody says how"), DropReason.UNPREPARED),
        (DisabledError(), DropReason.DISABLED),
        (ZeroDivisionError(), DropReason.DEFECT),
    ],
)
async def test_a_reading_that_is_not_answered_is_counted_with_its_reason_and_the_next_is_answered(error, reason):
    async def script(intake):
        for _ in range(3):
            await intake.put(raising(error))
        await intake.put(reading())
        await asyncio.Event().wait()

    world = World(ScriptedSource(script))
    await world.run_until(lambda one: one.counts.answered == 1)
    assert world.one.counts.dropped == {reason.value: 3}
    assert len(world.lines("source_unfit")) == (1 if isinstance(error, SampleError) else 0)


async def test_a_camera_that_is_quicker_than_answering_drops_what_is_old():
    async def script(intake):
        for number in range(10):
            await intake.put(reading(np.array([number / 10, 0, 0], np.float32)))
        await asyncio.Event().wait()

    agent = SlowAgent()
    world = World(ScriptedSource(script, overflow=Overflow.NEWEST), agent)
    for _ in range(10):
        agent.release.release()
    await world.run_until(lambda one: one.counts.answered + one.counts.dropped["newer"] == 10)
    assert world.one.counts.received == 10
    assert [round(float(sample.x[0]), 1) for sample in agent.samples][-2:] == [0.8, 0.9]


async def test_a_sensor_that_is_quicker_than_answering_is_made_to_wait():
    put = 0

    async def script(intake):
        nonlocal put
        for _ in range(10):
            await intake.put(reading())
            put += 1
        await asyncio.Event().wait()

    agent = SlowAgent()
    world = World(ScriptedSource(script), agent)
    await world.run_until(lambda _one: put == 3)  # two wait, one is in hand
    for _ in range(50):
        await asyncio.sleep(0)
    assert put == 3
    assert world.one.to_json()["waiting"] <= 3


@given(st.lists(st.sampled_from(["put", "take", "skip"]), max_size=40), st.sampled_from(Overflow), st.integers(1, 4))
def test_whatever_happens_all_that_was_received_is_accounted_for(steps, overflow, size):
    async def story() -> None:
        counts = SourceCounts()
        intake = Intake(counts, overflow, size)
        taken = 0
        for step in steps:
            if step == "skip":
                intake.skip(DropReason.STILL, 2)
            elif step == "put" and (overflow is Overflow.NEWEST or len(intake) < size):
                await intake.put(reading())
            elif step == "take" and len(intake):
                await intake.take()
                taken += 1
            assert counts.received == taken + len(intake) + sum(counts.dropped.values())
            assert len(intake) <= size

    asyncio.run(story())


def test_two_sources_of_one_name_are_refused():
    supervisor = SourceSupervisor(JsonLog(io.StringIO()))
    supervisor.add(ScriptedSource(), SampleFeed(MemoryAgent(), ""))
    with pytest.raises(ValueError, match="scripted"):
        supervisor.add(ScriptedSource(), SampleFeed(MemoryAgent(), ""))
