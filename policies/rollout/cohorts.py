"""What the devices of two cohorts reported, as counts that may be weighed: sound reports only, weighted and capped.

Law: pure. A sample that was audited with probability p stands for 1/p answers, up to a cap; a device stands for one
device, however much it says it has seen. A report that is impossible is no report.
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

FEWEST_ALIKE = 5  # so many devices that say exactly the same of so many audits each are one gauge that does not move
LEAST_CAP = 10.0  # so many audits of a device always count in full

Counts = tuple[float, float, float]  # worse, same, better
_Pick = Callable[[Agreement], Counts]


class DeviceQuality(msgspec.Struct, frozen=True):
    """What is known of one device of a cohort that was told; None = nothing was heard, or it may not be said."""

    device: str
    quality: Quality | None = None
    signals: Signals | None = None


class Audits(NamedTuple):
    """`paired`: candidate against committed model on the same samples, in the canary; `classes`: the same by class.

    The others say where a model disagreed with the verdict (worse) and where not (same): the candidate in the canary,
    the committed model there, and the committed model in the control cohort.
    """

    paired: Crowd
    classes: dict[str, Crowd]
    candidate: Crowd
    committed: Crowd
    control: Crowd


class Told(NamedTuple):
    """What people said: answers of the canary and of control, wrong (worse) or not; and of both models' answers."""

    canary: Crowd
    control: Crowd
    paired: Crowd


def reporting(cohort: Sequence[DeviceQuality]) -> list[DeviceQuality]:
    """The devices whose reports are sound and say something."""
    return [device for device in cohort if _says_something(device)]


def stuck(devices: Sequence[DeviceQuality]) -> bool:
    """Several devices saw enough, and all say exactly the same."""
    seen = [d.quality.cells for d in devices if d.quality and _audited(d.quality.cells) >= FEWEST_ALIKE]
    return len(seen) >= FEWEST_ALIKE and len(set(seen)) == 1


def unaudited(canary: Sequence[DeviceQuality]) -> tuple[str, ...]:
    """Data classes that devices answered and may not audit."""
    return tuple(sorted({name for device in canary if device.quality for name in device.quality.unaudited}))


def audits(canary: Sequence[DeviceQuality], control: Sequence[DeviceQuality], rules: GateRules) -> Audits:
    """Of devices that `reporting` let through."""
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
    """Of devices that `reporting` let through."""
    new, old = ([cells for cells in _cells(cohort) if any(c.told for c in cells)] for cohort in (canary, control))
    weigh = _Weigher([], rules)
    return Told(weigh.crowd(new, _judged), weigh.crowd(old, _judged), weigh.crowd(new, _judged_both))


class _Weigher:
    """Weights from the shares that all cells were drawn with; without any, all weigh the same."""

    def __init__(self, devices: Iterable[tuple[Agreement, ...]], rules: GateRules) -> None:
        shares = [cell.share for cells in devices for cell in cells if cell.audited]
        self._most = rules.weight_cap / max(shares) if shares else 0.0
        self._heaviest = min(self._most, 1.0 / min(shares)) if shares else 0.0
        self._device_cap = rules.device_cap

    def crowd(self, devices: Sequence[tuple[Agreement, ...]], pick: _Pick) -> Crowd:
        sizes = [size for cells in devices if (size := sum(sum(pick(cell)) for cell in cells))]
        most = max(LEAST_CAP, self._device_cap * median(sizes)) if sizes else 0.0
        return crowd(self._profile(cells, pick, most) for cells in devices)

    def _profile(self, cells: tuple[Agreement, ...], pick: _Pick, most: float) -> Profile:
        picked = [(self._weight(cell), pick(cell)) for cell in cells]
        size = sum(sum(counts) for _, counts in picked)
        part = min(1.0, most / size) if size else 0.0
        return tuple(Tally(w, a * part, b * part, c * part) for w, (a, b, c) in picked if a + b + c)

    def _weight(self, cell: Agreement) -> float:
        return min(self._most, 1.0 / cell.share) / self._heaviest if self._heaviest else 1.0


def _says_something(device: DeviceQuality) -> bool:
    quality, signals = device.quality, device.signals
    if quality is None or not _sound(quality) or (signals is not None and not sound(signals)):
        return False
    return _audited(quality.cells) > 0 or (signals is not None and signals.inferences > 0)


def _sound(quality: Quality) -> bool:
    return len(quality.cells) <= MOST_CELLS and all(map(_possible, quality.cells))


def _possible(cell: Agreement) -> bool:
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
    return cell.worse, cell.audited - cell.worse - cell.better, cell.better


def _served(cell: Agreement) -> Counts:
    return cell.audited - cell.agreed, cell.agreed, 0


def _committed(cell: Agreement) -> Counts:
    agreed = cell.agreed - cell.better + cell.worse
    return cell.audited - agreed, agreed, 0


def _judged(cell: Agreement) -> Counts:
    return cell.told_wrong, cell.told - cell.told_wrong, 0


def _judged_both(cell: Agreement) -> Counts:
    return cell.told_worse, 0, cell.told_better
