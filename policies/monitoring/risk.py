"""Risk monitor of a calibrated threshold: a sequential test on audited answers that its error rates still hold. Pure.

Of the audited answers that were kept (at or above the threshold) at most a calibrated share disagrees with the hub, and
of all of them too: both shares were measured when the threshold was chosen. Each is watched by an e-detector of the
CUSUM kind (as in `drift`): while the share holds, an alarm within 10,000 audits comes in at most 1 % of all stretches.

Rule: an alarm is final: a threshold that has failed is not trusted again because things look better today.
"""

from math import log
from typing import NamedTuple

WITHIN = 10_000
FALSE_ALARMS = 0.01
SLACK = 0.02  # a promise was measured on a sample too: so much more is no breach
_ALARM = log(2 * WITHIN / FALSE_ALARMS)
_MOST = 0.95


class RiskBound(NamedTuple):
    """Calibrated error rates of a threshold.

    `kept_wrong`: share of answers at or above `threshold`, `wrong`: of all, that may disagree with the hub (0..1).
    """

    threshold: float
    kept_wrong: float
    wrong: float


class RiskMonitor(NamedTuple):
    """State of the monitor: audits seen, and the logarithm of each detector; `broken`: the bound has failed."""

    audits: int = 0
    kept: float = 0.0
    all: float = 0.0
    broken: bool = False

    @property
    def level(self) -> float:
        """Worst detector, scaled: 0 = nothing speaks against the bound, 1 = broken."""
        return max(self.kept, self.all) / _ALARM


def observe_audit(seen: RiskMonitor, promise: RiskBound, confidence: float, *, agrees: bool) -> RiskMonitor:
    """Update the monitor with one more audited answer; `agrees`: the hub said the same.

    A confidence that is NaN counts as kept.
    """
    sure = not confidence < promise.threshold
    every = _update_detector(seen.all, promise.wrong, agrees=agrees)
    kept = _update_detector(seen.kept, promise.kept_wrong, agrees=agrees) if sure else seen.kept
    return RiskMonitor(seen.audits + 1, kept, every, seen.broken or max(every, kept) >= _ALARM)


def _update_detector(before: float, promised: float, *, agrees: bool) -> float:
    """Add the log likelihood ratio against twice the calibrated share; never below zero."""
    usual = min(_MOST - SLACK, max(0.0, promised) + SLACK)
    suspected = min(_MOST, 2.0 * usual)
    step = log((1.0 - suspected) / (1.0 - usual)) if agrees else log(suspected / usual)
    return max(0.0, before + step)
