"""Decisions and tariffs of a region for every kind of device, data class and cell, in arrays to be indexed by samples.

Rule: what could not be found or measured is not usable, and goes the full path. Everything is asked again as soon as a
core would decide otherwise: when the policy or the terms that apply have changed.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edge_agent.question.commands import Answer
from edge_agent.question.decide import EdgeCore
from edge_agent.question.permissions import ClassPermissions
from policies.decisions.escalation import EscalationAction
from policies.model.reasons import DecisionReason
from simulations.bulk.boundaries import CELLS, CellDecision, ClassBoundaries, find_boundaries
from simulations.bulk.repeats import MEASURED
from simulations.bulk.tariff import QuestionTariff, SpecimenRegion, SpecimenSample, measure_tariff, read_outcome
from simulations.nodes.fleet import SimulatedFleet
from simulations.scenario.arrivals import ArrivalArrays

KINDS = 2  # of devices: on an unmetered and on a metered link
Whole = npt.NDArray[np.int64]


class DecisionTable:
    """Decisions of one moment. A code is (kind * classes + class) * 4 + cell.

    `usable`, `asks`, `budget_s`, `charge_bytes`, `limit_bytes`, `last_day`: by code; `repeats`: by code and case,
    whether a second copy is ordinary. `tariffs`, `cells`: of those that are usable.
    """

    def __init__(self, classes: int) -> None:
        rows, size = KINDS * classes, KINDS * classes * CELLS
        self._classes = classes
        self._unsure_below = np.zeros(rows)
        self._audited_below = np.zeros(rows)
        self.usable = np.zeros(size, np.bool_)
        self.asks = np.zeros(size, np.bool_)
        self.budget_s = np.zeros(size)
        self.charge_bytes = np.zeros(size, np.int64)
        self.limit_bytes = np.zeros(size, np.int64)
        self.last_day = np.zeros(size, np.int64)
        self.repeats = np.zeros((size, len(MEASURED)), np.bool_)
        self.cells: dict[int, CellDecision] = {}
        self.tariffs: dict[int, QuestionTariff] = {}

    def set_row(self, row: int, found: ClassBoundaries, tariffs: list[QuestionTariff | None]) -> None:
        """Set what holds for one kind and class. `tariffs`: by cell, None = it asks nothing or nothing ordinary."""
        self._unsure_below[row], self._audited_below[row] = found.unsure_below, found.audited_below
        for cell, (decision, tariff) in enumerate(zip(found.cells, tariffs, strict=True)):
            code = row * CELLS + cell
            self.cells[code] = decision
            self.usable[code] = tariff is not None or not decision.asks
            self.asks[code] = decision.asks
            if tariff is not None:
                self.tariffs[code] = tariff
                self.budget_s[code] = tariff.budget_s
                self.charge_bytes[code], self.limit_bytes[code] = tariff.charge.amount, tariff.charge.limit
                self.last_day[code] = tariff.last_day
                self.repeats[code, list(tariff.repeats)] = True

    def find_codes(
        self, kind: Whole, some: ArrivalArrays, confidence: npt.NDArray[np.float64], audit: npt.NDArray[np.float64]
    ) -> Whole:
        """Code of each sample. `kind`: of its device."""
        row = kind * self._classes + some.place
        unsure, audited = confidence < self._unsure_below[row], audit < self._audited_below[row]
        found: Whole = row * CELLS + 2 * unsure + audited
        return found

    def kind_of(self, code: int) -> int:
        """Kind of device that a code is about."""
        return code // (CELLS * self._classes)

    def why(self, code: int) -> DecisionReason:
        """Reason of a code's local answers."""
        return self.cells[code].why


class DecisionBook:
    """Finds the table that holds now; what was found and measured once is remembered by the terms that it holds for."""

    def __init__(
        self,
        classes: tuple[str, ...],
        cores: SimulatedFleet,
        specimen: Callable[[int], SpecimenRegion],
        rng: np.random.Generator,
    ) -> None:
        self._classes = classes
        self._cores = cores
        self._specimen = specimen
        self._rng = rng
        self._known: dict[tuple[object, ...], tuple[ClassBoundaries | None, list[QuestionTariff | None]]] = {}
        self._tables: dict[tuple[object, ...], DecisionTable] = {}

    def find_table(self) -> DecisionTable:
        """The table of this moment."""
        keys = [
            (kind, name, *_read_terms(self._cores.resting_core(kind), name))
            for kind in range(KINDS)
            for name in self._classes
        ]
        table = self._tables.get(tuple(keys))
        if table is None:
            table = self._tables[tuple(keys)] = DecisionTable(len(self._classes))
            for row, key in enumerate(keys):
                found, tariffs = self._find(key)
                if found is not None:
                    table.set_row(row, found, tariffs)
        return table

    def _find(self, key: tuple[object, ...]) -> tuple[ClassBoundaries | None, list[QuestionTariff | None]]:
        if key not in self._known:
            kind, name = int(str(key[0])), str(key[1])
            found = find_boundaries(self._cores.resting_core(kind), name, self._rng)
            self._known[key] = self._find_tariffs(kind, name, found) if found else (None, [])
        return self._known[key]

    def _find_tariffs(
        self, kind: int, name: str, found: ClassBoundaries
    ) -> tuple[ClassBoundaries, list[QuestionTariff | None]]:
        """Tariff of each cell, None where it asks nothing; cells whose question the policy denies are local ones."""
        cells, tariffs = list(found.cells), list[QuestionTariff | None]()
        for cell, decision in enumerate(found.cells):
            tariffs.append(None)
            sample = _pick_sample(name, found, cell) if decision.asks else None
            if sample is None:
                continue
            denied = deny_question(self._cores.fresh_core(kind), sample)
            if denied is not None:
                cells[cell] = denied
            else:
                tariffs[cell] = measure_tariff(self._specimen(kind), self._cores.fresh_core(kind), sample)
        return replace(found, cells=tuple(cells)), tariffs


def _pick_sample(name: str, found: ClassBoundaries, cell: int) -> SpecimenSample | None:
    """A sample in the middle of a cell; None if there is no such sample."""
    unsure, audited = divmod(cell, 2)
    confidence = found.unsure_below / 2 if unsure else (1.0 + found.unsure_below) / 2
    audit = found.audited_below / 2 if audited else (1.0 + found.audited_below) / 2
    empty = (unsure and not found.unsure_below) or (audited and not found.audited_below) or audit >= 1.0
    return None if empty else SpecimenSample(name, confidence, audit)


def deny_question(core: EdgeCore, sample: SpecimenSample) -> CellDecision | None:
    """The local answer where a core that has spent nothing may not ask, so that no device may; None if it may ask.

    `core`: of one's own; it is changed.
    """
    said = read_outcome(core, sample)
    return CellDecision(EscalationAction.KEEP, said.why) if isinstance(said, Answer) else None


def _read_terms(core: EdgeCore, data_class: str) -> tuple[str, str]:
    """What tells the terms that a core applies to a class now from all others."""
    class_permissions = core.permissions.for_class(data_class)
    policy = core.policy.hash if core.policy else ""
    if not isinstance(class_permissions, ClassPermissions):
        return policy, f"denied {class_permissions.why}"
    return policy, f"{class_permissions.terms.key} {class_permissions.denied.why if class_permissions.denied else ''}"
