"""Checks of the bulk lane: one sample in 500 is decided by the production core too, and has to be equal.

Rule: a difference ends the run, since then the lane's boundaries are not the core's.
"""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge_agent.question.commands import IdleSnapshot, Store
from edge_agent.question.decide import EdgeCore
from policies.decisions.budget import BudgetSpend
from simulations.bulk.boundaries import decide_sample
from simulations.bulk.decisions import DecisionTable, deny_question
from simulations.bulk.resting_state import ChargedQuestions
from simulations.bulk.tariff import SpecimenSample, read_outcome
from simulations.nodes.fleet import SimulatedFleet
from simulations.nodes.predictions import PredictionArrays
from simulations.scenario.arrivals import ArrivalArrays

CHECKED_SHARE = 1 / 500
Whole = npt.NDArray[np.int64]


class LaneError(Exception):
    """The bulk lane has decided otherwise than the production core."""


class DrawnSamples(Protocol):
    """A portion of samples."""

    @property
    def some(self) -> ArrivalArrays:
        """When and where they were taken."""

    @property
    def drawn(self) -> PredictionArrays:
        """What the models say of them."""

    @property
    def luck(self) -> npt.NDArray[np.float64]:
        """Draws of each for audits and for retries."""


class LaneSamples(NamedTuple):
    """Samples with the codes of their decisions."""

    portion: DrawnSamples
    code: Whole


class LaneChecker:
    """Draws what is checked from `rng`. `checked`: samples so far."""

    def __init__(self, cores: SimulatedFleet, classes: tuple[str, ...], rng: np.random.Generator) -> None:
        self.checked = 0
        self._cores = cores
        self._classes = classes
        self._rng = rng

    def check_alone(self, samples: LaneSamples, which: Whole, table: DecisionTable) -> None:
        """Check the decisions of samples (places in the portion) that the lane answers locally."""
        for each in self._draw(which).tolist():
            self._check_decision(samples, each, int(samples.code[each]), table)

    def check_questions(
        self, samples: LaneSamples, which: Whole, order: Whole, charged: ChargedQuestions, table: DecisionTable
    ) -> None:
        """Check questions: the decision, number, charge and target that a core gives from the same numbers.

        `which`: places in the portion; `order`: places in `which`, in the order of `charged`.
        """
        for each in self._draw(np.flatnonzero(charged.lane)).tolist():
            place = int(order[each])
            code = int(samples.code[place])
            self._check_decision(samples, int(which[place]), code, table)
            self._check_store(self._read_sample(samples, int(which[place])), code, each, charged, table)

    def _draw(self, which: Whole) -> Whole:
        return which[self._rng.random(len(which)) < CHECKED_SHARE]

    def _read_sample(self, samples: LaneSamples, place: int) -> SpecimenSample:
        portion = samples.portion
        name = self._classes[portion.some.place[place]]
        return SpecimenSample(name, float(portion.drawn.confidence[place]), float(portion.luck[0][place]))

    def _check_decision(self, samples: LaneSamples, place: int, code: int, table: DecisionTable) -> None:
        self.checked += 1
        sample, wanted = self._read_sample(samples, place), table.cells[code]
        kind = table.kind_of(code)
        found = decide_sample(self._cores.resting_core(kind), *sample)
        if found.asks and not wanted.asks:
            found = deny_question(self._cores.fresh_core(kind), sample) or found
        if found != wanted:
            raise LaneError(f"of {sample} the lane says {wanted}, the core {found}")

    def _check_store(
        self, sample: SpecimenSample, code: int, place: int, charged: ChargedQuestions, table: DecisionTable
    ) -> None:
        core: EdgeCore = self._cores.fresh_core(table.kind_of(code))
        seq, day, spent = int(charged.seq[place]), int(charged.day[place]), int(charged.spent[place])
        core.resume_from(IdleSnapshot(0, seq, BudgetSpend.spent_bytes(day, spent), day))
        store, tariff = read_outcome(core, sample, day), table.tariffs[code]
        if not isinstance(store, Store):
            raise LaneError(f"of {sample} the lane asks question {seq}, the core none: {store.why}")
        found = store.seq, store.permit.spend.bytes, store.permit.targets[0].name, store.budget_s
        wanted = seq, spent + tariff.charge.amount, tariff.target, tariff.budget_s
        if found != wanted:
            raise LaneError(f"of {sample} the lane stores {wanted}, the core {found}")
