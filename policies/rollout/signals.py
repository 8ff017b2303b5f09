"""Does the candidate *behave* like the committed model? By what devices see alone, for what nobody may audit.

Law: pure. Each device is compared with the middle device of the control cohort, at the same time; then devices are
counted, not sums: whoever lies has one voice. More than half of the devices beyond an allowance is harm; so few that
liars could not hide the rest is none; in between, nothing is said. A number that is not one, or that never moves, is
no report.
"""

from collections.abc import Callable, Sequence
from math import isfinite, nan
from statistics import median
from typing import NamedTuple

import msgspec

from wire.protocol.rollout import ClassSignals, Signals

LEAST_ANSWERS = 50  # of a device, before its shares are looked at
HALF = 0.5


class Allowances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By so much a candidate may differ from control: points of all answers (0..1), or a factor.

    Speed and memory must be beyond a factor *and* an amount: fractions of a millisecond are noise, and a device on
    trial holds both models. `liars`: the share of devices whose reports may be false.
    """

    escalated: float = 0.10
    errors: float = 0.01
    confidence: float = 0.10
    p95: float = 1.25
    rss: float = 1.2
    p95_least_us: float = 5000.0
    rss_least_bytes: float = float(128 << 20)
    liars: float = 0.3


class Behaviour(NamedTuple):
    """`harm`, `disputed`: measures in words. `missing`: it could not be looked at, and why."""

    harm: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()
    missing: str = ""


class _Measure(NamedTuple):
    """`of` gives NaN where a device has too little to say; `limit` what it may be at the most, given control's."""

    name: str
    of: Callable[[Signals], float]
    limit: Callable[[float], float]


def compare(
    canary: Sequence[Signals], control: Sequence[Signals], classes: tuple[str, ...], allowed: Allowances
) -> Behaviour:
    """`classes`: data classes to look at one by one."""
    new, old = [s for s in canary if sound(s)], [s for s in control if sound(s)]
    harm, disputed = [], []
    for measure in _measures(allowed, classes):
        beyond = _beyond(measure, new, old)
        if beyond is None and measure.name.partition(" of ")[2] in classes:
            return Behaviour(missing=f"too little is known of the {measure.name}")
        if beyond is not None and beyond > HALF:
            harm.append(f"{measure.name} beyond control in {beyond:.0%} of the devices")
        elif beyond is not None and beyond > HALF - allowed.liars:
            disputed.append(f"{measure.name} beyond control in {beyond:.0%} of the devices")
    return Behaviour(tuple(harm), tuple(disputed))


def sound(signals: Signals) -> bool:
    """Possible, and of a thing that lives: confidences that never differ are a stuck gauge."""
    s = signals
    return (
        s.inferences >= 0
        and 0 <= s.errors <= s.inferences
        and 0 <= s.escalated <= s.inferences
        and _moves(s.inferences, s.confidence, s.confidence_sq)
        and all(0 <= c.escalated <= c.answers and _moves(c.answers, c.confidence, c.confidence_sq) for c in s.classes)
    )


def _moves(answers: int, total: float, squares: float) -> bool:
    if not (isfinite(total) and isfinite(squares) and 0 <= squares <= answers and 0 <= total <= answers):
        return False
    return answers < LEAST_ANSWERS or squares / answers - (total / answers) ** 2 > 1e-9


def _measures(allowed: Allowances, classes: tuple[str, ...]) -> list[_Measure]:
    by_class = [measure for name in classes for measure in _of_class(name, allowed)]
    return [
        _Measure("errors", lambda s: _share(s.errors, s.inferences), lambda usual: usual + allowed.errors),
        _Measure("escalations", lambda s: _share(s.escalated, s.inferences), lambda usual: usual + allowed.escalated),
        _Measure(
            "p95 latency",
            lambda s: s.p95_us or nan,
            lambda usual: usual + max((allowed.p95 - 1) * usual, allowed.p95_least_us),
        ),
        _Measure(
            "memory",
            lambda s: s.rss_bytes or nan,
            lambda usual: usual + max((allowed.rss - 1) * usual, allowed.rss_least_bytes),
        ),
        *by_class,
    ]


def _of_class(name: str, allowed: Allowances) -> tuple[_Measure, ...]:
    def seen(signals: Signals) -> ClassSignals:
        return next((c for c in signals.classes if c.data_class == name), ClassSignals(name))

    def escalated(signals: Signals) -> float:
        return _share(seen(signals).escalated, seen(signals).answers)

    def confidence(signals: Signals) -> float:
        return _share(seen(signals).confidence, seen(signals).answers)

    return (
        _Measure(f"escalations of {name}", escalated, lambda usual: usual + allowed.escalated),
        _Measure(f"confidence of {name}", confidence, lambda usual: usual + allowed.confidence),
        _Measure(f"lost confidence of {name}", lambda s: -confidence(s), lambda usual: usual + allowed.confidence),
    )


def _share(part: float, whole: int) -> float:
    return part / whole if whole >= LEAST_ANSWERS else nan


def _beyond(measure: _Measure, canary: list[Signals], control: list[Signals]) -> float | None:
    """The share of canary devices that lie beyond what control allows; None if one side has nothing to say."""
    new = [value for value in map(measure.of, canary) if value == value]  # noqa: PLR0124 - not a number
    old = [value for value in map(measure.of, control) if value == value]  # noqa: PLR0124
    if not new or not old:
        return None
    limit = measure.limit(median(old))
    return sum(value > limit for value in new) / len(new)
