"""Boundaries of the production core's decision for one data class, found by asking it (`EdgeCore.evaluate_sample`).

Rule: nothing of the policy is read here. The decision is taken to change at one confidence and at one audit draw; that
is tried at random points before it is believed, and a class of another shape is left to the full path.
"""

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from edge_agent.question.commands import Answer, RandomDraws, SampleAttributes
from edge_agent.question.decide import EdgeCore
from policies.decisions.escalation import EscalationAction
from policies.model.reasons import DecisionReason
from wire.protocol.messages import Prediction

CELLS = 4  # sure or unsure, each audited or not: 2 * unsure + audited
_ALMOST_ONE = 1.0 - 2.0**-53
_TRIED = 256
_ID = "0" * 32


class CellDecision(msgspec.Struct, frozen=True):
    """Decision of the core for all samples of one cell: `action` KEEP = answered locally with the reason `why`."""

    action: EscalationAction
    why: DecisionReason
    audit: bool = False

    @property
    def asks(self) -> bool:
        """Whether a hub is asked."""
        return self.action is not EscalationAction.KEEP


class ClassBoundaries(msgspec.Struct, frozen=True):
    """Boundaries for one data class: unsure below `unsure_below`, audited if the draw is below `audited_below`.

    `cells`: the decision of each of the four cells.
    """

    unsure_below: float
    audited_below: float
    cells: tuple[CellDecision, ...]

    def find_cells(self, confidence: npt.NDArray[np.float64], audit: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Cell number of each sample."""
        return 2 * (confidence < self.unsure_below) + (audit < self.audited_below)


def decide_sample(core: EdgeCore, data_class: str, confidence: float, audit: float) -> CellDecision:
    """Decision of the production core for one sample. `core`: at rest; nothing in it changes."""
    local = Prediction(0, confidence, (confidence,), "")
    found = core.evaluate_sample(local, SampleAttributes(data_class), RandomDraws(_ID, audit), 0.0)
    if isinstance(found, Answer):
        return CellDecision(EscalationAction.KEEP, found.why)
    decision = found[1]
    return CellDecision(decision.action, decision.why, decision.audit)


def find_boundaries(core: EdgeCore, data_class: str, rng: np.random.Generator) -> ClassBoundaries | None:
    """Find the boundaries for a data class; None if the decision has another shape than one boundary each way."""

    def decide(confidence: float, audit: float) -> CellDecision:
        return decide_sample(core, data_class, confidence, audit)

    unsure_below = _find_edge(lambda confidence: decide(confidence, _ALMOST_ONE))
    audited_below = max(_find_edge(partial(decide, sure)) for sure in (0.0, 1.0))
    cells = tuple(
        decide(0.0 if unsure else 1.0, 0.0 if audited else _ALMOST_ONE) for unsure in (0, 1) for audited in (0, 1)
    )
    found = ClassBoundaries(unsure_below, audited_below, cells)
    return found if _holds(found, decide, rng) else None


def _find_edge(decide: Callable[[float], CellDecision]) -> float:
    """The least number of [0, 1] that is decided as 1 is, if there is one boundary; 0 if all are."""
    low, high, above = 0.0, 1.0, decide(_ALMOST_ONE)
    if decide(low) == above:
        return 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if decide(middle) == above else (middle, high)
    return high


def _holds(found: ClassBoundaries, decide: Callable[[float, float], CellDecision], rng: np.random.Generator) -> bool:
    """Whether the core decides as the boundaries say, at random points and on both sides of each boundary."""
    edges = (found.unsure_below, found.audited_below)
    sides = [(np.nextafter(edge, -1.0), edge, np.nextafter(edge, 2.0)) for edge in edges]
    near = [(a, b) for a in sides[0] for b in sides[1] if 0.0 <= a <= 1.0 and 0.0 <= b < 1.0]
    points = np.array([*near, *rng.random((_TRIED, 2)), *(rng.random((_TRIED, 2)) * [1.0, 2 * edges[1]])])
    cells = found.find_cells(points[:, 0], points[:, 1])
    return all(
        decide(float(confidence), float(audit)) == found.cells[cell]
        for (confidence, audit), cell in zip(points, cells, strict=True)
    )
