"""Choice of the escalation threshold on calibration outcomes: how many are asked, and nobody where it gains nothing.

Rule: a share of the samples is asked only if the lower 95 % bound of what the pair gains by it is above zero, whatever
share was allowed. Where the samples come in groups (patients, users, machines), the groups are the units of every
bound, for the promise is about groups that are not here.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student_t  # type: ignore[import-untyped]

from models.bundle.measurements import QualityMetric, RiskGuarantee
from models.forge.data.types import ForgeError
from models.forge.evaluation.deferral import pair_curve, threshold_for_count
from models.forge.evaluation.outcomes import Floats, Outcomes
from models.forge.evaluation.risk_control import RiskGoal, RiskKind, prove_threshold
from models.forge.spec import ForgeSpec

ASK_SHARE = 0.25  # asked at most, if no goal is given
CONFIDENCE = 0.95  # of each one-sided bound here
_STEPS = 50  # shares that are compared
_FEWEST_GROUPS = 2  # fewer show no spread between groups


class AskingGain(NamedTuple):
    """What asking the `asked` least confident calibration samples gains.

    `threshold`: asks them; `share`: of all samples. `gain`: in the mean loss, accuracy (a share) or squared error;
    `low`: its lower 95 % bound.
    """

    asked: int
    threshold: float
    share: float
    gain: float
    low: float


class ThresholdChoice(NamedTuple):
    """The chosen threshold: the hub is asked below it.

    `guarantee`: the risk bound that it carries, if one was asked for. `asked_limit`: at most this share of samples is
    asked in expectation, 1 if nothing is promised; `groups`: of the calibration part, 0 if samples are the units.
    `best`: the asked share whose gain has the highest lower bound, None where the goal was not a share. `reason`: one
    line that says why nobody is asked, "" if somebody is.
    """

    threshold: float
    guarantee: RiskGuarantee | None = None
    asked_limit: float = 1.0
    groups: int = 0
    best: AskingGain | None = None
    reason: str = ""


def choose_threshold(found: Outcomes, wish: ForgeSpec, risk: RiskKind = RiskKind.LOCAL) -> ThresholdChoice:
    """Threshold by the specification's goal, on calibration outcomes. `risk`: what `max_risk` bounds.

    With a share as goal (the default), at most so much is asked, and of that only as much as is shown to gain: the
    share whose gain has the highest lower bound, nobody if none has one above zero. Raises ForgeError if the goal
    cannot be met on these outcomes.
    """
    if wish.max_risk is not None:
        promise = prove_threshold(found, RiskGoal(wish.max_risk, wish.confidence, risk), wish.seed)
        kept = RiskGuarantee(
            wish.max_risk, wish.confidence, promise.samples, promise.threshold, promise.method, promise.groups
        )
        return ThresholdChoice(promise.threshold, kept, groups=promise.groups)
    if wish.target_accuracy is not None:
        return ThresholdChoice(_find_target_threshold(found, wish.target_accuracy), groups=count_groups(found))
    limit = ASK_SHARE if wish.max_share is None else wish.max_share
    return _choose_gaining_share(found, limit)


def count_groups(found: Outcomes) -> int:
    """Number of groups of the samples, 0 where every sample stands for itself."""
    return len(np.unique(found.groups))


def measure_gains(found: Outcomes, most: int, steps: int = _STEPS) -> list[AskingGain]:
    """Gain of asking, for up to `steps` numbers of samples from 1 to `most`, with its lower 95 % bound.

    The gain of a sample is the edge's loss less the hub's, on the same sample (a paired estimate, without a model of
    either). Bounds are Student's; one more disagreement of the largest size is added to the variance, which makes them
    honest for a handful of disagreements (as half a pair in each cell does in Agresti & Min 2005). With groups the
    variance is that between groups (a ratio estimate with groups as clusters: Cochran 1977, section 10).
    """
    gains = found.edge_loss - found.hub_loss
    rows = []
    for threshold in _distinct_thresholds(found, most, steps):
        asked = found.confidence < threshold
        won = np.where(asked, gains, 0.0)
        half = _bound_factor(found) * _standard_error(won, found)
        mean = float(won.mean())
        rows.append(AskingGain(int(asked.sum()), threshold, float(asked.mean()), mean, mean - half))
    return rows


def _choose_gaining_share(found: Outcomes, limit: float) -> ThresholdChoice:
    """The share up to `limit` whose gain has the highest lower bound, or nobody."""
    groups = count_groups(found)
    rows = measure_gains(found, _count_allowed(found, limit))
    best = max(rows, key=lambda row: row.low, default=None)
    if best is not None and best.low > 0:
        return ThresholdChoice(best.threshold, None, limit, groups, best)
    return ThresholdChoice(0.0, None, limit, groups, best, _explain_silence(found, limit, rows))


def _explain_silence(found: Outcomes, limit: float, rows: list[AskingGain]) -> str:
    """One line: why nobody is asked."""
    units = f"{count_groups(found)} calibration groups" if len(found.groups) else f"{len(found)} calibration samples"
    if not rows:
        return f"nobody is asked: no share up to {limit:.0%} can be told apart by the confidence on {units}"
    most = max(rows, key=lambda row: row.gain)
    if most.gain <= 0:
        return f"nobody is asked: on {units} no share up to {limit:.0%} gains anything"
    points = (f"{value:.4g}" if found.tolerance else f"{100 * value:.2f} points" for value in (most.gain, most.low))
    gain, low = points
    what = "of mean squared error" if found.tolerance else "of accuracy"
    return (
        f"nobody is asked: on {units} the best share, {most.share:.1%}, gains {gain} {what}, with {CONFIDENCE:.0%} at "
        f"least {low}: bring more"
    )


def _distinct_thresholds(found: Outcomes, most: int, steps: int) -> list[float]:
    """Rising thresholds that ask different numbers of samples, `most` at most."""
    counts = np.unique(np.linspace(0, most, min(steps, max(most, 1)) + 1).round().astype(int))[1:]
    rising = sorted({threshold_for_count(found.confidence, int(count)) for count in counts if count})
    return [threshold for threshold in rising if bool((found.confidence < threshold).any())]


def _count_allowed(found: Outcomes, limit: float) -> int:
    """Most samples that may lie below the threshold, so that no more than `limit` is asked in expectation.

    With groups: the most for which the upper 95 % bound of the share, groups as units, stays within the limit.
    """
    if count_groups(found) < _FEWEST_GROUPS or limit >= 1:
        return math.floor(limit * len(found))
    allowed = 0
    for threshold in _distinct_thresholds(found, math.floor(limit * len(found)), 4 * _STEPS):
        asked = (found.confidence < threshold).astype(np.float64)
        if asked.mean() + _bound_factor(found) * _standard_error(asked, found) > limit:
            break
        allowed = int(asked.sum())
    return allowed


def _bound_factor(found: Outcomes) -> float:
    """Student's quantile for as many units as there are."""
    units = max(count_groups(found), _FEWEST_GROUPS) if len(found.groups) else len(found)
    return float(student_t.ppf(CONFIDENCE, max(1, units - 1)))


def _standard_error(values: Floats, found: Outcomes) -> float:
    """Standard error of the mean of `values` `[n]`, samples or groups as units."""
    size, spread = len(values), values - values.mean()
    extra = float((values**2).max())
    if not len(found.groups):
        return math.sqrt(float((spread**2).sum()) + extra) / size
    _, place = np.unique(found.groups, return_inverse=True)
    sums = np.bincount(place, spread)
    if len(sums) < _FEWEST_GROUPS:
        return math.inf if extra else 0.0
    return math.sqrt(len(sums) / (len(sums) - 1) * float((sums**2).sum()) + extra) / size


def _find_target_threshold(found: Outcomes, target: float) -> float:
    line = pair_curve(found)
    good = np.flatnonzero(line <= target if found.metric is QualityMetric.RMSE else line >= target)
    if not len(good):
        best = line.min() if found.metric is QualityMetric.RMSE else line.max()
        raise ForgeError(
            f"--target-accuracy {target:g}: the best this pair does is {best:.4g}; relax it or teach longer"
        )
    return float(threshold_for_count(found.confidence, int(good[0])))
