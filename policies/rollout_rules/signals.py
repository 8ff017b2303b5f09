"""Behaviour comparison of canary and control devices: errors, escalations, confidence, latency, memory. Pure.

It needs no audits, so it also covers data classes that may not be audited. Each device is compared with the median
device of the control cohort, at the same time; then devices are counted, not sums: a device that lies has one voice.

Rule: more than half of the devices beyond a limit is harm; so few that liars could not hide the rest is none; in
between, it is disputed. A report with impossible numbers, or with numbers that never move, is no report.
"""

from collections.abc import Callable, Sequence
from math import hypot, isfinite, nan, nextafter, sqrt
from statistics import median
from typing import NamedTuple

import msgspec

from wire.protocol.rollout import ClassSignals, DeviceSignals

MIN_ANSWERS = 50  # of a device, before its shares are looked at
MAJORITY_SHARE = 0.5
_STANDARD_ERRORS = 3.0  # of a share of samples: every look compares again, and few answers differ much by chance
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

    `of` gives NaN where the device has too few answers; `limit` is the most it may be, given control's median. `error`:
    standard error of what `of` gives, of which chance may add three.
    """

    name: str
    of: Callable[[DeviceSignals], float]
    limit: Callable[[float], float]
    error: Callable[[DeviceSignals], float] = lambda _: 0.0


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
            "escalations",
            lambda s: _share_of(s.escalated, s.inferences),
            lambda usual: usual + allowed.escalated,
            lambda s: _error_of(s.escalated, s.inferences),
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
        _BehaviourMeasure(
            f"escalations of {name}",
            escalated,
            lambda usual: usual + allowed.escalated,
            lambda s: _error_of(seen(s).escalated, seen(s).answers),
        ),
        _BehaviourMeasure(f"confidence of {name}", confidence, lambda usual: usual + allowed.confidence),
        _BehaviourMeasure(
            f"lost confidence of {name}", lambda s: -confidence(s), lambda usual: usual + allowed.confidence
        ),
    )


def _share_of(part: float, whole: int) -> float:
    """Share of the answers; NaN for fewer than `MIN_ANSWERS`."""
    return part / whole if whole >= MIN_ANSWERS else nan


def _error_of(part: float, whole: int) -> float:
    """Standard error of a share; one hit and one miss are added, so that 0 of 50 is not known for certain."""
    share = (part + 1) / (whole + 2)
    return sqrt(share * (1 - share) / max(1, whole))


def _share_beyond(
    measure: _BehaviourMeasure, canary: list[DeviceSignals], control: list[DeviceSignals]
) -> float | None:
    """Share of canary devices beyond what control and chance allow; None if one side has no values."""
    new = [(value, measure.error(s)) for s in canary if (value := measure.of(s)) == value]
    old = [(value, measure.error(s)) for s in control if (value := measure.of(s)) == value]
    if not new or not old:
        return None
    limit = measure.limit(median(value for value, _ in old))
    errors = (median(error for _, error in cohort) / sqrt(len(cohort)) for cohort in (new, old))
    limit += _STANDARD_ERRORS * hypot(*errors)  # of what most devices of a cohort say together
    return sum(value > limit for value, _ in new) / len(new)
