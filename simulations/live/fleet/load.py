"""Sample load of a live run: real pictures at the scenario's times, with the stated share of unsure ones.

Rule: what is asked follows from the model's own confidence in a real sample. The scenario says only from which pool the
next one is taken: those that the edge is sure of, or those under the policy's threshold.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from edge_agent.question.records import AnswerRecord, DisabledError, Sample
from simulations.live.fleet.agents import LiveFleet
from simulations.scenario.arrivals import ArrivalProcess, ArrivalSlice, select_devices
from simulations.scenario.types import EventKind, Scenario

SLICE_S = 1.0


class SamplePool(NamedTuple):
    """Samples, one a row, with their true labels."""

    x: npt.NDArray[Any]
    labels: list[int]


class SamplePools(NamedTuple):
    """Samples that the edge model is sure of, and those below the policy's threshold."""

    sure: SamplePool
    unsure: SamplePool

    def save(self, file: Path) -> None:
        """Write them for the processes of agents."""
        arrays: dict[str, Any] = {}
        for name, pool in self._asdict().items():
            arrays |= {f"{name}_x": pool.x, f"{name}_labels": np.array(pool.labels)}
        np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what `save` wrote."""
        with np.load(file, allow_pickle=False) as told:
            return cls(*(SamplePool(told[f"{name}_x"], told[f"{name}_labels"].tolist()) for name in cls._fields))


class LoadDriver:
    """Hands each sample to its agent at its time, as far as the agent is one of this process.

    `process`: number of this process. Each draws the arrivals of all, so that they are the same whatever their number.
    `truth`: label by answer id; `late_s`: how far it fell behind at worst.
    """

    def __init__(self, scenario: Scenario, found: SamplePools, crew: LiveFleet, process: int = 0) -> None:
        self._scenario = scenario
        self._piles = found
        self._crew = crew
        self._rng = np.random.default_rng((scenario.seed, 0, process))
        self._arrivals = ArrivalProcess(scenario, 0, np.random.default_rng((scenario.seed, 1)))
        self._storms = [each for each in scenario.events if each.kind is EventKind.STORM]
        self.truth: dict[str, int] = {}
        self.arrivals: Counter[int] = Counter()  # by bucket
        self.counts: Counter[str] = Counter()
        self.samples = 0
        self.late_s = 0.0

    async def run(self, began: float) -> None:
        """Run until the scenario's load ends. `began`: monotonic seconds."""
        at_s = 0.0
        while at_s < self._scenario.duration_s:
            await self._feed_slice(self._arrivals.draw_between(at_s, at_s + SLICE_S), began)
            at_s += SLICE_S

    async def _feed_slice(self, slice_: ArrivalSlice, began: float) -> None:
        for at_s, number, data_class in zip(*slice_, strict=True):
            if number not in self._crew.agents:
                continue  # of another process
            wait_s = at_s - (time.monotonic() - began)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self.late_s = max(self.late_s, -wait_s)
            self._feed_sample(at_s, number, data_class)
            if wait_s < -SLICE_S:
                await asyncio.sleep(0)  # far behind: the links must live all the same

    def _feed_sample(self, at_s: float, number: int, data_class: str) -> None:
        agent = self._crew.agents[number]
        if agent is None:
            return  # a device that is down takes no sample
        self.samples += 1
        self.arrivals[int(at_s // self._scenario.step_s)] += 1
        pile = self._piles.unsure if self._draw_unsure(at_s, number) else self._piles.sure
        drawn = int(self._rng.integers(len(pile.labels)))
        label = pile.labels[drawn]
        try:
            answer = agent.answer_now(Sample(pile.x[drawn], data_class))
        except DisabledError:
            self.counts["disabled"] += 1
            return
        if isinstance(answer, AnswerRecord):
            self.truth[answer.id] = label
        else:
            answer.add_done_callback(lambda done: self._record_truth(done, label))

    def _record_truth(self, done: "asyncio.Future[AnswerRecord]", label: int) -> None:
        if not done.cancelled() and done.exception() is None:
            self.truth[done.result().id] = label

    def _draw_unsure(self, at_s: float, number: int) -> bool:
        devices = range(self._scenario.devices)
        if any(each.at_s <= at_s < each.ends_s and number in select_devices(each, devices) for each in self._storms):
            return True
        return bool(self._rng.random() < self._scenario.model.unsure_share)
