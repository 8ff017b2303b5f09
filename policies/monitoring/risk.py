"""Does a calibrated threshold still keep what was promised for it? Two shares of audited answers, watched one by one.

Law: pure. Of the audited answers that were kept (at or above the threshold) at most so many disagree with the hub, and
of all of them too: both were measured when the threshold was chosen. Each is watched by an e-detector of the CUSUM kind
(as in `drift`): while the share is what was promised, an alarm within 10,000 audits comes in at most 1 % of all
stretches. An alarm is for good: a threshold that has failed is not trusted again because things look better today.
"""

from math import log
from typing import NamedTuple

WITHIN = 10_000
FALSE_ALARMS = 0.01
SLACK = 0.02  # a promise was measured on a sample too: so much more is no breach
_ALARM = log(2 * WITHIN / FALSE_ALARMS)
_MOST = 0.95


class Promise(NamedTuple):
    """`kept_wrong`: of answers at or above `threshold`, `wrong`: of all, what may disagree with the hub (0..1)."""

    threshold: float
    kept_wrong: float
    wrong: float


class Kept(NamedTuple):
    """What was seen so far: audits, and the logarithm of each detector."""

    audits: int = 0
    kept: float = 0.0
    all: float = 0.0
    broken: bool = False

    @property
    def level(self) -> float:
        """0 = nothing speaks against it, 1 = broken."""
        return max(self.kept, self.all) / _ALARM


def observe(seen: Kept, promise: Promise, confidence: float, *, agrees: bool) -> Kept:
    """One more audited answer, and whether the hub said the same. What is no confidence counts as kept and wrong."""
    sure = not confidence < promise.threshold
    every = _moved(seen.all, promise.wrong, agrees=agrees)
    kept = _moved(seen.kept, promise.kept_wrong, agrees=agrees) if sure else seen.kept
    return Kept(seen.audits + 1, kept, every, seen.broken or max(every, kept) >= _ALARM)


def _moved(before: float, promised: float, *, agrees: bool) -> float:
    """A likelihood ratio against twice the share that was promised, never below nothing."""
    usual = min(_MOST - SLACK, max(0.0, promised) + SLACK)
    suspected = min(_MOST, 2.0 * usual)
    step = log((1.0 - suspected) / (1.0 - usual)) if agrees else log(suspected / usual)
    return max(0.0, before + step)
