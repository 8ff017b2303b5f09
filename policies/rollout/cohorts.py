"""Audit and feedback counts of the canary and control cohorts, checked for plausibility, weighted and capped. Pure.

Rule: a sample that was audited with probability p stands for 1/p answers (inverse probability weighting), up to a cap;
a device counts for a limited multiple of the median device, however much it says it has seen. An impossible report is
no report.
"""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from statistics import median
from typing import NamedTuple

import msgspec

from policies.rollout.confidence import Crowd, Profile, Tally, crowd
from policies.rollout.gate_rules import GateRules
from policies.rollout.signals import sound
from wire.protocol.rollout import MOST_CELLS, Agreement, Quality, Signals

FEWEST_ALIKE = 5  # so many devices that report exactly the same of so many audits each count as a stuck gauge
LEAST_CAP = 10.0  # audits of a device that always count in full

Counts = tuple[float, float, float]  # worse, same, better
_Pick = Callable[[Agreement], Counts]


class DeviceQuality(msgspec.Struct, frozen=True):
    """What one device of a cohort has reported; None = nothing was received, or it may not be reported."""

    device: str
    quality: Quality | None = None
    signals: Signals | None = None


class Audits(NamedTuple):
    """Audit counts of both cohorts.

    `paired`: candidate against committed model on the same samples, in the canary; `classes`: the same by data class.
    The others say where a model disagreed with the verdict (worse) and where not (same): the candidate in the canary,
    the committed model there, and the committed model in the control cohort.
    """

    paired: Crowd
    classes: dict[str, Crowd]
    candidate: Crowd
    committed: Crowd
    control: Crowd


class Told(NamedTuple):
    """Human feedback: answers of the canary and of control, wrong (worse) or not; `paired`: both models' answers."""

    canary: Crowd
    control: Crowd
    paired: Crowd


def reporting(cohort: Sequence[DeviceQuality]) -> list[DeviceQuality]:
    """Devices whose reports are plausible and not empty."""
    return [device for device in cohort if _says_something(device)]


def stuck(devices: Sequence[DeviceQuality]) -> bool:
    """Whether several devices audited enough and all report exactly the same."""
    seen = [d.quality.cells for d in devices if d.quality and _audited(d.quality.cells) >= FEWEST_ALIKE]
    return len(seen) >= FEWEST_ALIKE and len(set(seen)) == 1


def unaudited(canary: Sequence[DeviceQuality]) -> tuple[str, ...]:
    """Data classes that devices answered and may not audit."""
    return tuple(sorted({name for device in canary if device.quality for name in device.quality.unaudited}))


def audits(canary: Sequence[DeviceQuality], control: Sequence[DeviceQuality], rules: GateRules) -> Audits:
    """Count audits, weighted. Both cohorts: devices that `reporting` let through."""
    new, old = _cells(canary), _cells(control)
    weigh = _Weigher([*new, *old], rules)
    names = sorted({cell.data_class for cells in new for cell in cells})
    paired = weigh.crowd(new, _paired)
    if len(names) == 1:
        classes = {names[0]: paired}
    else:
        classes = {name: weigh.crowd([_of(cells, name) for cells in new], _paired) for name in names}
    return Audits(
        paired,
        classes,
        weigh.crowd(new, _served),
        weigh.crowd(new, _committed),
        weigh.crowd(old, _served),
    )


def told(canary: Sequence[DeviceQuality], control: Sequence[DeviceQuality], rules: GateRules) -> Told:
    """Count human feedback, unweighted. Both cohorts: devices that `reporting` let through."""
    new, old = ([cells for cells in _cells(cohort) if any(c.told for c in cells)] for cohort in (canary, control))
    weigh = _Weigher([], rules)
    return Told(weigh.crowd(new, _judged), weigh.crowd(old, _judged), weigh.crowd(new, _judged_both))


class _Weigher:
    """Weights of audits by the shares that all cells were drawn with; without any, all weigh the same."""

    def __init__(self, devices: Iterable[tuple[Agreement, ...]], rules: GateRules) -> None:
        shares = [cell.share for cells in devices for cell in cells if cell.audited]
        self._most = rules.weight_cap / max(shares) if shares else 0.0
        self._heaviest = min(self._most, 1.0 / min(shares)) if shares else 0.0
        self._device_cap = rules.device_cap

    def crowd(self, devices: Sequence[tuple[Agreement, ...]], pick: _Pick) -> Crowd:
        """Weigh the counts of all devices, cap each device, and group equal ones."""
        sizes = [size for cells in devices if (size := sum(sum(pick(cell)) for cell in cells))]
        most = max(LEAST_CAP, self._device_cap * median(sizes)) if sizes else 0.0
        return crowd(self._profile(cells, pick, most) for cells in devices)

    def _profile(self, cells: tuple[Agreement, ...], pick: _Pick, most: float) -> Profile:
        """Weighted counts of one device, scaled down to at most `most` samples."""
        picked = [(self._weight(cell), pick(cell)) for cell in cells]
        size = sum(sum(counts) for _, counts in picked)
        part = min(1.0, most / size) if size else 0.0
        return tuple(Tally(w, a * part, b * part, c * part) for w, (a, b, c) in picked if a + b + c)

    def _weight(self, cell: Agreement) -> float:
        """Weight of a cell, 1 for the heaviest: inverse of its audit share, capped."""
        return min(self._most, 1.0 / cell.share) / self._heaviest if self._heaviest else 1.0


def _says_something(device: DeviceQuality) -> bool:
    """Whether a report is plausible and counts anything."""
    quality, signals = device.quality, device.signals
    if quality is None or not _sound(quality) or (signals is not None and not sound(signals)):
        return False
    return _audited(quality.cells) > 0 or (signals is not None and signals.inferences > 0)


def _sound(quality: Quality) -> bool:
    return len(quality.cells) <= MOST_CELLS and all(map(_possible, quality.cells))


def _possible(cell: Agreement) -> bool:
    """Whether the counts of a cell agree with each other."""
    c = cell
    return (
        isfinite(c.share)
        and 0.0 < c.share <= 1.0
        and min(c.audited, c.agreed, c.worse, c.better, c.told, c.told_wrong, c.told_worse, c.told_better) >= 0
        and c.better <= c.agreed <= c.audited - c.worse
        and c.told_wrong <= c.told
        and c.told_worse + c.told_better <= c.told
    )


def _cells(devices: Sequence[DeviceQuality]) -> list[tuple[Agreement, ...]]:
    return [device.quality.cells if device.quality else () for device in devices]


def _of(cells: tuple[Agreement, ...], name: str) -> tuple[Agreement, ...]:
    return tuple(cell for cell in cells if cell.data_class == name)


def _audited(cells: Iterable[Agreement]) -> int:
    return sum(cell.audited for cell in cells)


def _paired(cell: Agreement) -> Counts:
    """Candidate against the committed model: worse, same, better."""
    return cell.worse, cell.audited - cell.worse - cell.better, cell.better


def _served(cell: Agreement) -> Counts:
    """What serves against the verdict: disagreed, agreed."""
    return cell.audited - cell.agreed, cell.agreed, 0


def _committed(cell: Agreement) -> Counts:
    """The committed model against the verdict: disagreed, agreed."""
    agreed = cell.agreed - cell.better + cell.worse
    return cell.audited - agreed, agreed, 0


def _judged(cell: Agreement) -> Counts:
    """Human feedback: wrong, right."""
    return cell.told_wrong, cell.told - cell.told_wrong, 0


def _judged_both(cell: Agreement) -> Counts:
    """Human feedback where both models' answers are known: worse, better."""
    return cell.told_worse, 0, cell.told_better
