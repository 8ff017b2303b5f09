"""Sample load of a live run: real pictures at the scenario's times, with the stated share of unsure ones.

Rule: what is asked follows from the model's own confidence in a real sample. The scenario says only from which pool the
next one is taken: those that the edge is sure of, or those under the policy's threshold.
"""

import asyncio
import time
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.core.records import AnswerRecord, DisabledError, Sample
from models.forge.data.digits import corrupt_pictures, load_heldout
from models.runtime.runner import Runner
from simulations.live.fleet.agents import LiveFleet
from simulations.scenario.arrivals import ArrivalProcess, ArrivalSlice, select_devices
from simulations.scenario.types import EventKind, Scenario

SLICE_S = 1.0
_DAMAGE = (0.0, 0.3, 0.6, 0.9)
_LEAST = 20  # of a pile: fewer would be the same few samples again and again


class SamplePools(NamedTuple):
    """Samples with their true labels, split by the edge model's confidence at the policy's threshold."""

    sure: list[tuple[npt.NDArray[Any], int]]
    unsure: list[tuple[npt.NDArray[Any], int]]


def load_sample_pools(runner: Runner, threshold: float) -> SamplePools:
    """Split the held-out digits, clean and damaged, by confidence. ValueError if the threshold leaves a pool empty."""
    clean, labels = load_heldout()
    found = SamplePools([], [])
    for number, share in enumerate(_DAMAGE):
        for x, label in zip(
            corrupt_pictures(clean, np.random.default_rng(number), share), labels.tolist(), strict=True
        ):
            sure = runner.infer_one(x).prediction.confidence >= threshold
            (found.sure if sure else found.unsure).append((x, label))
    if min(map(len, found)) < _LEAST:
        raise ValueError(f"threshold {threshold}: {len(found.sure)} samples above it, {len(found.unsure)} below")
    return found


class LoadDriver:
    """Hands each sample to its agent at its time.

    `truth`: label by answer id; `late_s`: how far it fell behind at worst.
    """

    def __init__(self, scenario: Scenario, found: SamplePools, crew: LiveFleet) -> None:
        self._scenario = scenario
        self._piles = found
        self._crew = crew
        self._rng = np.random.default_rng(scenario.seed)
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
            wait_s = at_s - (time.monotonic() - began)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self.late_s = max(self.late_s, -wait_s)
            self._feed_sample(at_s, number, data_class)
            if wait_s < -SLICE_S:
                await asyncio.sleep(0)  # far behind: the links must live all the same

    def _feed_sample(self, at_s: float, number: int, data_class: str) -> None:
        agent = self._crew.agents.get(number)
        if agent is None:
            return  # of another process; or a device that is down, which takes no sample
        self.samples += 1
        self.arrivals[int(at_s // self._scenario.step_s)] += 1
        pile = self._piles.unsure if self._draw_unsure(at_s, number) else self._piles.sure
        x, label = pile[int(self._rng.integers(len(pile)))]
        try:
            answer = agent.answer_now(Sample(x, data_class))
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
