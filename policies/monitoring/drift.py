"""Drift detection on a device: a sequential test of novelty and confidence against the calibration samples. Pure.

For each of eight events whose share on the calibration samples is known from its deciles ("more novel than nine in ten
of them", "more confident than half of them") it keeps one number, and reports drift when one cannot be chance.

Each number is an e-detector of the CUSUM kind (Shin, Ramdas, Rinaldo 2022, "E-detectors: a nonparametric framework for
sequential change detection"; Page 1954): M = L * max(M, 1), where L = q/p if the event happened and (1-q)/(1-p) if
not. While the event is no more probable than p given the past, E[L] <= 1, so that P(M >= c within n samples) <= n/c.
With c = 8e6 and eight events, false alarms come in at most 1 % of all stretches of 10,000 samples. p lies above the
event's share on the calibration samples, because these were a sample too, and a shift too small to matter is none. Only
strict inequalities count: where deciles fall together, the events become rarer and never more frequent.

The bound holds for exchangeable samples. A camera that looks at one thing for an hour sends one sample many times: that
it no longer looks like the calibration samples is then true, and is reported.
"""

from math import log
from typing import NamedTuple

DECILES = 9  # the inner ones
WITHIN = 10_000  # samples
FALSE_ALARMS = 0.01  # at most this share of all stretches of so many samples


class CalibrationDeciles(NamedTuple):
    """The nine inner deciles of the calibration samples' novelty and confidence; () where there are none."""

    novelty: tuple[float, ...] = ()
    confidence: tuple[float, ...] = ()


class _Event(NamedTuple):
    """`usual`: its probability without drift, at most; `suspected`: the one it is tested against."""

    usual: float
    suspected: float


_EVENTS = (
    _Event(0.16, 0.4),  # above the last decile
    _Event(0.6, 0.75),  # above the middle
    _Event(0.6, 0.75),  # below it
    _Event(0.16, 0.4),  # below the first
)
# of each: what it adds if it did not happen, and if it did
_STEPS = tuple((log((1 - e.suspected) / (1 - e.usual)), log(e.suspected / e.usual)) for e in _EVENTS)
_ALARM = log(2 * len(_EVENTS) * WITHIN / FALSE_ALARMS)
_MOST = 1.5 * _ALARM  # so that a drift that has ended is forgotten in reasonable time
_CALM = (0.0,) * len(_EVENTS)


class DriftMonitor(NamedTuple):
    """State of the detectors: number of samples, the logarithm of each detector, and whether there is drift.

    An alarm ends when the worst detector is down at a quarter of the alarm level.
    """

    samples: int = 0
    novelty: tuple[float, ...] = _CALM
    confidence: tuple[float, ...] = _CALM
    alarm: bool = False

    @property
    def statistic(self) -> float:
        """Worst detector, scaled: 0 = nothing speaks for drift, 1 = alarm."""
        return max(self.novelty + self.confidence) / _ALARM


def observe_answer(
    drift: DriftMonitor, calibrated: CalibrationDeciles, novelty: float, confidence: float
) -> DriftMonitor:
    """Update the detectors with one more answer.

    What was not calibrated, or the model does not report (novelty below 0), is left out; so is NaN.
    """
    strange = _update_detectors(drift.novelty, calibrated.novelty, novelty) if novelty >= 0 else drift.novelty
    unsure = _update_detectors(drift.confidence, calibrated.confidence, confidence)
    worst = max(strange + unsure)
    alarm = worst >= _ALARM or (drift.alarm and worst > _ALARM / 4)
    return DriftMonitor(drift.samples + 1, strange, unsure, alarm)


def _update_detectors(logs: tuple[float, ...], deciles: tuple[float, ...], value: float) -> tuple[float, ...]:
    """Update the four detectors of one figure with its value; unchanged without deciles or for NaN."""
    if not deciles or value != value:  # noqa: PLR0124 - not a number
        return logs
    middle = deciles[DECILES // 2]
    far, above, below, near = logs
    (far_not, far_so), (above_not, above_so), (below_not, below_so), (near_not, near_so) = _STEPS
    far += far_so if value > deciles[-1] else far_not
    above += above_so if value > middle else above_not
    below += below_so if value < middle else below_not
    near += near_so if value < deciles[0] else near_not
    # bounds written out: every answer passes here, and calls of a function would cost as much as all the rest
    return (
        0.0 if far <= 0.0 else far if far < _MOST else _MOST,  # noqa: FURB136
        0.0 if above <= 0.0 else above if above < _MOST else _MOST,  # noqa: FURB136
        0.0 if below <= 0.0 else below if below < _MOST else _MOST,  # noqa: FURB136
        0.0 if near <= 0.0 else near if near < _MOST else _MOST,  # noqa: FURB136
    )
