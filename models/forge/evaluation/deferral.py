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

    `value`, `oracle`: accuracy or RMSE of this gate and of the oracle; `recovered`: share of the gap between edge and
    hub.
    """

    share: float
    threshold: float
    value: float
    recovered: float
    oracle: float


class DeferralFrontier(NamedTuple):
    """Deferral figures of one gate over all escalated shares. NaN for shares of a gap that is not there.

    `oracle`: the best any gate could do, escalating `oracle_share`. `apgr`: mean share of the gap recovered over all
    escalated shares; `cpt50`, `cpt80`: least share escalated that recovers half, and four fifths, of the gap (Ong et
    al.
    2024, "RouteLLM"). A random gate has 0.5, 0.5 and 0.8.
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


def compute_frontier(outcomes: Outcomes, shares: tuple[float, ...] = SHARES) -> DeferralFrontier:
    """Deferral figures at `shares` (0..1) and their summary.

    Where the hub is no better than the edge there is no gap, and what is counted in gaps is NaN.
    """
    ours, best = pair_curve(outcomes), oracle_curve(outcomes)
    recovered = gap_recovered(ours, outcomes.metric)
    count = len(outcomes)
    asked = [min(count, round(share * count)) for share in shares]
    points = (
        DeferralPoint(
            k / count, threshold_for_count(outcomes.confidence, k), float(ours[k]), float(recovered[k]), float(best[k])
        )
        for k in asked
    )
    return DeferralFrontier(
        outcomes.metric,
        count,
        float(ours[0]),
        float(ours[-1]),
        float(best[-1]),
        float((outcomes.hub_loss < outcomes.edge_loss).mean()),
        tuple(points),
        float(np.trapezoid(recovered, dx=1 / count)),
        _least_share(recovered, 0.5),
        _least_share(recovered, 0.8),
    )


def pair_curve(outcomes: Outcomes) -> Floats:
    """Accuracy or RMSE of the pair `[n + 1]` when the k least confident samples are escalated, k = 0..n."""
    _, group, sizes = np.unique(outcomes.confidence, return_inverse=True, return_counts=True)
    gain = outcomes.edge_loss - outcomes.hub_loss
    shared = np.bincount(group, gain) / sizes  # samples of equal confidence share their mean gain
    return _to_metric_values(outcomes, np.repeat(shared, sizes))


def oracle_curve(outcomes: Outcomes) -> Floats:
    """As `pair_curve`, for a gate that knows both losses and escalates at most k samples, the best ones."""
    gain = np.sort(outcomes.edge_loss - outcomes.hub_loss)[::-1]
    return _to_metric_values(outcomes, np.maximum(gain, 0))


def _to_metric_values(outcomes: Outcomes, gains: Floats) -> Floats:
    total = outcomes.edge_loss.sum() - np.concatenate(([0.0], np.cumsum(gains)))
    loss = np.maximum(total, 0) / len(outcomes)  # below 0 only by rounding
    return np.asarray(np.sqrt(loss) if outcomes.metric is QualityMetric.RMSE else 1 - loss)


def gap_recovered(values: Floats, metric: QualityMetric) -> Floats:
    """Share of the edge-hub gap recovered along a `pair_curve`: 0 = edge alone, 1 = hub alone.

    NaN everywhere if the hub is no better than the edge.
    """
    won = values[0] - values if metric is QualityMetric.RMSE else values - values[0]
    return won / won[-1] if won[-1] > _NO_GAP else np.full(len(values), np.nan)


def _least_share(recovered: Floats, wanted: float) -> float:
    """Least share escalated that recovers `wanted` of the gap.

    The end of the curve recovers all of it, but for rounding.
    """
    if math.isnan(recovered[0]):
        return math.nan
    reached = recovered >= wanted
    return float(reached.argmax() / (len(recovered) - 1)) if reached.any() else 1.0


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
