"""Deferral frontier: quality of the edge-hub pair at every escalated share, beside edge alone, hub alone and an oracle.

Rule: numpy only, on outcomes. Samples of equal confidence are escalated together or not at all, so between them the
frontier is what escalating some at random would give; nothing depends on the order of the samples.
"""

import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from models.bundle.measurements import QualityMetric
from models.forge.evaluation.outcomes import Floats, Outcomes

SHARES = tuple(number / 100 for number in range(5, 55, 5))
_NO_GAP = 1e-9


class DeferralPoint(NamedTuple):
    """The pair at one escalated share of the samples.

    `value`, `oracle`: accuracy or RMSE of this gate and of the oracle; `recovered`: share of the gap between the edge
    and the given model, `lossless`: what it would be if the given model itself answered the same questions.
    """

    share: float
    threshold: float
    value: float
    recovered: float
    oracle: float
    lossless: float = math.nan


class DeferralFrontier(NamedTuple):
    """Deferral figures of one gate over all escalated shares. NaN for shares of a gap that is not there.

    The gap is that between `edge` and `given`, the given model on raw samples: what asking could bring if nothing were
    lost on the way. `hub`: the pair if every sample is escalated. (`given` is the hub itself where the given model was
    not run.) `oracle`: the best any gate could do, escalating `oracle_share`. `apgr`: mean share of the gap recovered
    over all escalated shares; `cpt50`, `cpt80`: least share escalated that recovers half, and four fifths, of the gap,
    NaN if none does (Ong et al. 2024, "RouteLLM"). A random gate before a lossless hub has 0.5, 0.5 and 0.8.
    """

    metric: QualityMetric
    samples: int
    edge: float
    hub: float
    oracle: float
    oracle_share: float
    points: tuple[DeferralPoint, ...]
    apgr: float
    cpt50: float
    cpt80: float
    given: float


def compute_frontier(outcomes: Outcomes, shares: tuple[float, ...] = SHARES) -> DeferralFrontier:
    """Deferral figures at `shares` (0..1) and their summary.

    Where the given model is no better than the edge there is no gap, and what is counted in gaps is NaN.
    """
    ours, best = pair_curve(outcomes), oracle_curve(outcomes)
    given = quality_of_loss(outcomes.loss_to_reach, outcomes.metric)
    recovered = gap_recovered(ours, outcomes.metric, given)
    lossless = gap_recovered(_curve_to(outcomes, outcomes.loss_to_reach), outcomes.metric, given)
    count = len(outcomes)
    points = []
    for asked in (min(count, round(share * count)) for share in shares):
        threshold = threshold_for_count(outcomes.confidence, asked)
        figures = (float(line[asked]) for line in (ours, recovered, best, lossless))
        points.append(DeferralPoint(asked / count, threshold, *figures))
    return DeferralFrontier(
        metric=outcomes.metric,
        samples=count,
        edge=float(ours[0]),
        hub=float(ours[-1]),
        oracle=float(best[-1]),
        oracle_share=float((outcomes.hub_loss < outcomes.edge_loss).mean()),
        points=tuple(points),
        apgr=float(np.trapezoid(recovered, dx=1 / count)),
        cpt50=_least_share(recovered, 0.5),
        cpt80=_least_share(recovered, 0.8),
        given=given,
    )


def pair_curve(outcomes: Outcomes) -> Floats:
    """Accuracy or RMSE of the pair `[n + 1]` when the k least confident samples are escalated, k = 0..n."""
    return _curve_to(outcomes, outcomes.hub_loss)


def _curve_to(outcomes: Outcomes, loss: Floats) -> Floats:
    """As `pair_curve`, for a hub of this loss per sample."""
    _, place, sizes = np.unique(outcomes.confidence, return_inverse=True, return_counts=True)
    shared = np.bincount(place, outcomes.edge_loss - loss) / sizes  # samples of equal confidence share their mean gain
    return _to_metric_values(outcomes, np.repeat(shared, sizes))


def oracle_curve(outcomes: Outcomes) -> Floats:
    """As `pair_curve`, for a gate that knows both losses and escalates at most k samples, the best ones."""
    gain = np.sort(outcomes.edge_loss - outcomes.hub_loss)[::-1]
    return _to_metric_values(outcomes, np.maximum(gain, 0))


def _to_metric_values(outcomes: Outcomes, gains: Floats) -> Floats:
    total = outcomes.edge_loss.sum() - np.concatenate(([0.0], np.cumsum(gains)))
    loss = np.maximum(total, 0) / len(outcomes)  # below 0 only by rounding
    return np.asarray(np.sqrt(loss) if outcomes.metric is QualityMetric.RMSE else 1 - loss)


def quality_of_loss(loss: Floats, metric: QualityMetric) -> float:
    """Accuracy or RMSE of losses per sample: wrong (0 or 1), or squared errors."""
    mean = float(loss.mean())
    return math.sqrt(mean) if metric is QualityMetric.RMSE else 1 - mean


def gap_recovered(values: Floats, metric: QualityMetric, given: float) -> Floats:
    """Share of the gap between the edge and the given model recovered along a `pair_curve`: 0 = edge, 1 = given model.

    `given`: accuracy or RMSE of the given model on raw samples. NaN everywhere if it is no better than the edge. A pair
    whose questions lose something stays below 1, and one that asks where it hurts falls below 0.
    """
    sign = -1 if metric is QualityMetric.RMSE else 1
    gap = sign * (given - values[0])
    return sign * (values - values[0]) / gap if gap > _NO_GAP else np.full(len(values), np.nan)


def _least_share(recovered: Floats, wanted: float) -> float:
    """Least share escalated that recovers `wanted` of the gap, NaN if none does."""
    reached = recovered >= wanted - _NO_GAP
    return float(reached.argmax() / (len(recovered) - 1)) if reached.any() else math.nan


def threshold_for_count(confidence: Floats, count: int) -> float:
    """The shortest decimal threshold below which `count` of the confidences lie, or fewer if some of them are equal."""
    ranked: list[float] = np.sort(confidence).tolist()
    if count >= len(ranked):
        return 1.0
    high = ranked[count]
    below = bisect_left(ranked, high)
    low = ranked[below - 1] if below else -1.0
    for digits in range(2, 10):
        found = math.floor(high * 10.0**digits) / 10.0**digits
        if low < found <= high:
            return found
    return high
