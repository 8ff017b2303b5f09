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

from policies.rollout_rules.confidence import DeviceCounts, DeviceGroups, WeightedCounts, group_devices
from policies.rollout_rules.gate_parameters import GateRules
from policies.rollout_rules.signals import is_sound
from wire.protocol.rollout import MAX_AUDIT_CELLS, AuditAgreement, AuditQuality, DeviceSignals

MIN_STUCK_DEVICES = 5  # so many devices that report exactly the same of so many audits each count as a stuck gauge
MIN_DEVICE_CAP = 10.0  # audits of a device that always count in full

SampleCounts = tuple[float, float, float]  # worse, same, better
_CountsGetter = Callable[[AuditAgreement], SampleCounts]


class DeviceQuality(msgspec.Struct, frozen=True):
    """What one device of a cohort has reported; None = nothing was received, or it may not be reported."""

    device: str
    quality: AuditQuality | None = None
    signals: DeviceSignals | None = None


class AuditGroups(NamedTuple):
    """Audit counts of both cohorts.

    `paired`: candidate against committed model on the same samples, in the canary; `classes`: the same by data class.
    The others say where a model disagreed with the verdict (worse) and where not (same): the candidate in the canary,
    the committed model there, and the committed model in the control cohort.
    """

    paired: DeviceGroups
    classes: dict[str, DeviceGroups]
    candidate: DeviceGroups
    committed: DeviceGroups
    control: DeviceGroups


class FeedbackCounts(NamedTuple):
    """Human feedback: answers of the canary and of control, wrong (worse) or not; `paired`: both models' answers."""

    canary: DeviceGroups
    control: DeviceGroups
    paired: DeviceGroups


def select_reporting(cohort: Sequence[DeviceQuality]) -> list[DeviceQuality]:
    """Devices whose reports are plausible and not empty."""
    return [device for device in cohort if _has_report(device)]


def are_stuck(devices: Sequence[DeviceQuality]) -> bool:
    """Whether several devices audited enough and all report exactly the same."""
    seen = [d.quality.cells for d in devices if d.quality and _count_audited(d.quality.cells) >= MIN_STUCK_DEVICES]
    return len(seen) >= MIN_STUCK_DEVICES and len(set(seen)) == 1


def list_unaudited(canary: Sequence[DeviceQuality]) -> tuple[str, ...]:
    """Data classes that devices answered and may not audit."""
    return tuple(sorted({name for device in canary if device.quality for name in device.quality.unaudited}))


def count_audits(canary: Sequence[DeviceQuality], control: Sequence[DeviceQuality], rules: GateRules) -> AuditGroups:
    """Count audits, weighted. Both cohorts: devices that `select_reporting` let through."""
    new, old = _list_cells(canary), _list_cells(control)
    weigh = _DeviceWeights([*new, *old], rules)
    names = sorted({cell.data_class for cells in new for cell in cells})
    paired = weigh.group_counts(new, _paired_counts)
    if len(names) == 1:
        classes = {names[0]: paired}
    else:
        classes = {
            name: weigh.group_counts([_select_class(cells, name) for cells in new], _paired_counts) for name in names
        }
    return AuditGroups(
        paired,
        classes,
        weigh.group_counts(new, _served_counts),
        weigh.group_counts(new, _committed_counts),
        weigh.group_counts(old, _served_counts),
    )


def count_feedback(
    canary: Sequence[DeviceQuality], control: Sequence[DeviceQuality], rules: GateRules
) -> FeedbackCounts:
    """Count human feedback, unweighted. Both cohorts: devices that `select_reporting` let through."""
    new, old = ([cells for cells in _list_cells(cohort) if any(c.told for c in cells)] for cohort in (canary, control))
    weigh = _DeviceWeights([], rules)
    return FeedbackCounts(
        weigh.group_counts(new, _judged_counts),
        weigh.group_counts(old, _judged_counts),
        weigh.group_counts(new, _judged_both),
    )


class _DeviceWeights:
    """Weights of audits by the shares that all cells were drawn with; without any, all weigh the same."""

    def __init__(self, devices: Iterable[tuple[AuditAgreement, ...]], rules: GateRules) -> None:
        shares = [cell.share for cells in devices for cell in cells if cell.audited]
        self._most = rules.weight_cap / max(shares) if shares else 0.0
        self._heaviest = min(self._most, 1.0 / min(shares)) if shares else 0.0
        self._device_cap = rules.device_cap

    def group_counts(self, devices: Sequence[tuple[AuditAgreement, ...]], pick: _CountsGetter) -> DeviceGroups:
        """Weigh the counts of all devices, cap each device, and group equal ones."""
        sizes = [size for cells in devices if (size := sum(sum(pick(cell)) for cell in cells))]
        most = max(MIN_DEVICE_CAP, self._device_cap * median(sizes)) if sizes else 0.0
        return group_devices(self._weigh_device(cells, pick, most) for cells in devices)

    def _weigh_device(self, cells: tuple[AuditAgreement, ...], pick: _CountsGetter, most: float) -> DeviceCounts:
        """Weighted counts of one device, scaled down to at most `most` samples."""
        picked = [(self._weight(cell), pick(cell)) for cell in cells]
        size = sum(sum(counts) for _, counts in picked)
        part = min(1.0, most / size) if size else 0.0
        return tuple(WeightedCounts(w, a * part, b * part, c * part) for w, (a, b, c) in picked if a + b + c)

    def _weight(self, cell: AuditAgreement) -> float:
        """Weight of a cell, 1 for the heaviest: inverse of its audit share, capped."""
        return min(self._most, 1.0 / cell.share) / self._heaviest if self._heaviest else 1.0


def _has_report(device: DeviceQuality) -> bool:
    """Whether a report is plausible and counts anything."""
    quality, signals = device.quality, device.signals
    if quality is None or not _is_sound(quality) or (signals is not None and not is_sound(signals)):
        return False
    return _count_audited(quality.cells) > 0 or (signals is not None and signals.inferences > 0)


def _is_sound(quality: AuditQuality) -> bool:
    return len(quality.cells) <= MAX_AUDIT_CELLS and all(map(_is_possible, quality.cells))


def _is_possible(cell: AuditAgreement) -> bool:
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


def _list_cells(devices: Sequence[DeviceQuality]) -> list[tuple[AuditAgreement, ...]]:
    return [device.quality.cells if device.quality else () for device in devices]


def _select_class(cells: tuple[AuditAgreement, ...], name: str) -> tuple[AuditAgreement, ...]:
    return tuple(cell for cell in cells if cell.data_class == name)


def _count_audited(cells: Iterable[AuditAgreement]) -> int:
    return sum(cell.audited for cell in cells)


def _paired_counts(cell: AuditAgreement) -> SampleCounts:
    """Candidate against the committed model: worse, same, better."""
    return cell.worse, cell.audited - cell.worse - cell.better, cell.better


def _served_counts(cell: AuditAgreement) -> SampleCounts:
    """What serves against the verdict: disagreed, agreed."""
    return cell.audited - cell.agreed, cell.agreed, 0


def _committed_counts(cell: AuditAgreement) -> SampleCounts:
    """The committed model against the verdict: disagreed, agreed."""
    agreed = cell.agreed - cell.better + cell.worse
    return cell.audited - agreed, agreed, 0


def _judged_counts(cell: AuditAgreement) -> SampleCounts:
    """Human feedback: wrong, right."""
    return cell.told_wrong, cell.told - cell.told_wrong, 0


def _judged_both(cell: AuditAgreement) -> SampleCounts:
    """Human feedback where both models' answers are known: worse, better."""
    return cell.told_worse, 0, cell.told_better
