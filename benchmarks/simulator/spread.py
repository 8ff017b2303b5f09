"""Compares two ways of running one scenario over several seeds: every figure of one inside the spread of the other.

Rule: reads outcomes alone, and leaves out nothing but how a run was made: kernel events, cost, `bulk.` counts.
"""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from policies.model.reasons import DecisionReason
from simulations.report.expectations import FIGURES, compute_figure, select_window
from simulations.report.outcome import PER_OCTAVE, Outcome

_SHARES = ("share", "accuracy", "why.")
_OF_THE_WAY = "count.bulk."


class FigureSpread(msgspec.Struct, frozen=True):
    """One figure over several seeds: its least, mean and greatest value one way, its mean the other way.

    `grain`: below it two values are not told apart: what one question makes of a figure, or the bin of a latency.
    """

    name: str
    least: float
    mean: float
    most: float
    other: float
    grain: float

    @property
    def is_inside(self) -> bool:
        """Whether the mean of the other way lies within the spread of the one, give or take one question."""
        slack = self.grain + 1e-9 * abs(self.other)
        return self.least - slack <= self.other <= self.most + slack


def compare_spreads(one: Sequence[Outcome], other: Sequence[Outcome]) -> list[FigureSpread]:
    """Compare every figure that any of the runs has: the named ones, reasons of answers, counts."""
    names = [*FIGURES, *(f"why.{why}" for why in DecisionReason), *_list_counts([*one, *other])]
    found = (_compare_figure(name, one, other) for name in names)
    return [each for each in found if each is not None]


def _list_counts(outcomes: Sequence[Outcome]) -> list[str]:
    names = sorted({f"count.{name}" for outcome in outcomes for name in outcome.counts})
    return [name for name in names if not name.startswith(_OF_THE_WAY)]


def _compare_figure(name: str, one: Sequence[Outcome], other: Sequence[Outcome]) -> FigureSpread | None:
    values, others = (_list_values(name, outcomes) for outcomes in (one, other))
    if not values or not others or not any((*values, *others)):
        return None
    answers = min(outcome.samples for outcome in one)
    grain = 1.0 if name.startswith("count.") else 1 / answers if any(part in name for part in _SHARES) else 0.0
    if name.endswith("_s"):
        grain = max(values) * (1 - 2 ** (-1 / PER_OCTAVE))
    return FigureSpread(name, min(values), fmean(values), max(values), fmean(others), grain)


def _list_values(name: str, outcomes: Sequence[Outcome]) -> list[float]:
    found = (compute_figure(select_window(outcome), name) for outcome in outcomes)
    return [value for value in found if value is not None]
