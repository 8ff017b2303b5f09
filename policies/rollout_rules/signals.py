"""Behaviour comparison of canary and control devices: errors, escalations, confidence, latency, memory. Pure.

It needs no audits, so it also covers data classes that may not be audited. Each device is compared with the median
device of the control cohort, at the same time; then devices are counted, not sums: a device that lies has one voice.

Rule: more than half of the devices beyond a limit is harm; so few that liars could not hide the rest is none; in
between, it is disputed. A report with impossible numbers, or with numbers that never move, is no report.
"""

from collections.abc import Callable, Sequence
from math import isfinite, nan, nextafter
from statistics import median
from typing import NamedTuple

import msgspec

from wire.protocol.rollout import ClassSignals, DeviceSignals

MIN_ANSWERS = 50  # of a device, before its shares are looked at
MAJORITY_SHARE = 0.5
_P95_NOISE_US = 100.0  # slower by less than that, a cold cache or a timer explains, however many times it is


class BehaviourLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a candidate may differ from control: points of all answers (0..1), or a factor.

    Speed and memory must be beyond a factor *and* an amount: fractions of a millisecond are noise, and a device on
    trial holds both models. `p95_times`: so many times as slow counts whatever the amount. `liars`: the share of
    devices whose reports may be false.
    """

    escalated: float = 0.10
    errors: float = 0.01
    confidence: float = 0.10
    p95: float = 1.25
    rss: float = 1.2
    p95_least_us: float = 5000.0
    p95_times: float = 5.0
    rss_least_bytes: float = float(128 << 20)
    liars: float = 0.3


class BehaviourComparison(NamedTuple):
    """Result of the comparison. `harm`, `disputed`: measures in words. `missing`: why it could not be made."""

    harm: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()
    missing: str = ""


class _BehaviourMeasure(NamedTuple):
    """One measure of a device.

    `of` gives NaN where the device has too few answers; `limit` is the most it may be, given control's median.
    """

    name: str
    of: Callable[[DeviceSignals], float]
    limit: Callable[[float], float]


def compare_behaviour(
    canary: Sequence[DeviceSignals],
    control: Sequence[DeviceSignals],
    classes: tuple[str, ...],
    allowed: BehaviourLimits,
) -> BehaviourComparison:
    """Compare the canary with the control cohort. `classes`: data classes to look at one by one.

    A data class that too few devices can say anything of makes the whole comparison `missing`.
    """
    new, old = [s for s in canary if is_sound(s)], [s for s in control if is_sound(s)]
    harm, disputed = [], []
    for measure in _list_measures(allowed, classes):
        beyond = _share_beyond(measure, new, old)
        if beyond is None and measure.name.partition(" of ")[2] in classes:
            return BehaviourComparison(missing=f"too little is known of the {measure.name}")
        if beyond is not None and beyond > MAJORITY_SHARE:
            harm.append(f"{measure.name} beyond control in {beyond:.0%} of the devices")
        elif beyond is not None and beyond > MAJORITY_SHARE - allowed.liars:
            disputed.append(f"{measure.name} beyond control in {beyond:.0%} of the devices")
    return BehaviourComparison(tuple(harm), tuple(disputed))


def is_sound(signals: DeviceSignals) -> bool:
    """Whether a report is possible and from a working sensor: confidences that never differ are a stuck gauge."""
    s = signals
    return (
        s.inferences >= 0
        and 0 <= s.errors <= s.inferences
        and 0 <= s.escalated <= s.inferences
        and _has_spread(s.inferences, s.confidence, s.confidence_sq)
        and all(
            0 <= c.escalated <= c.answers and _has_spread(c.answers, c.confidence, c.confidence_sq) for c in s.classes
        )
    )


def _has_spread(answers: int, total: float, squares: float) -> bool:
    """Whether the sums are possible and, from `MIN_ANSWERS` on, not all of one value."""
    if not (isfinite(total) and isfinite(squares) and 0 <= squares <= answers and 0 <= total <= answers):
        return False
    return answers < MIN_ANSWERS or squares / answers - (total / answers) ** 2 > 1e-9


def _list_measures(allowed: BehaviourLimits, classes: tuple[str, ...]) -> list[_BehaviourMeasure]:
    """All measures with their limits, those of the data classes last."""
    by_class = [measure for name in classes for measure in _list_class_measures(name, allowed)]
    return [
        _BehaviourMeasure("errors", lambda s: _share_of(s.errors, s.inferences), lambda usual: usual + allowed.errors),
        _BehaviourMeasure(
            "escalations", lambda s: _share_of(s.escalated, s.inferences), lambda usual: usual + allowed.escalated
        ),
        _BehaviourMeasure(
            "p95 latency",
            lambda s: s.p95_us or nan,
            lambda usual: _limit_latency(usual, allowed),
        ),
        _BehaviourMeasure(
            "memory",
            lambda s: s.rss_bytes or nan,
            lambda usual: usual + max((allowed.rss - 1) * usual, allowed.rss_least_bytes),
        ),
        *by_class,
    ]


def _limit_latency(usual: float, allowed: BehaviourLimits) -> float:
    """The most that p95 may be, in microseconds, where control has `usual`; `p95_times` of it is beyond."""
    many_times = nextafter(max(allowed.p95_times, allowed.p95) * usual, 0.0)
    amount = usual + max((allowed.p95 - 1) * usual, allowed.p95_least_us)
    return min(amount, max(many_times, usual + _P95_NOISE_US))


def _list_class_measures(name: str, allowed: BehaviourLimits) -> tuple[_BehaviourMeasure, ...]:
    """Measures of one data class: escalations, and confidence in both directions."""

    def seen(signals: DeviceSignals) -> ClassSignals:
        return next((c for c in signals.classes if c.data_class == name), ClassSignals(name))

    def escalated(signals: DeviceSignals) -> float:
        return _share_of(seen(signals).escalated, seen(signals).answers)

    def confidence(signals: DeviceSignals) -> float:
        return _share_of(seen(signals).confidence, seen(signals).answers)

    return (
        _BehaviourMeasure(f"escalations of {name}", escalated, lambda usual: usual + allowed.escalated),
        _BehaviourMeasure(f"confidence of {name}", confidence, lambda usual: usual + allowed.confidence),
        _BehaviourMeasure(
            f"lost confidence of {name}", lambda s: -confidence(s), lambda usual: usual + allowed.confidence
        ),
    )


def _share_of(part: float, whole: int) -> float:
    """Share of the answers; NaN for fewer than `MIN_ANSWERS`."""
    return part / whole if whole >= MIN_ANSWERS else nan


def _share_beyond(
    measure: _BehaviourMeasure, canary: list[DeviceSignals], control: list[DeviceSignals]
) -> float | None:
    """Share of canary devices beyond what control allows; None if one side has no values."""
    new = [value for value in map(measure.of, canary) if value == value]  # noqa: PLR0124 - not a number
    old = [value for value in map(measure.of, control) if value == value]  # noqa: PLR0124
    if not new or not old:
        return None
    limit = measure.limit(median(old))
    return sum(value > limit for value in new) / len(new)
