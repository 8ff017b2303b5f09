"""95 % intervals of held-out figures: of a share, of a gain on the same samples, of an RMSE.

Rule: where samples come in groups (patients, users, machines), the groups are the units: a figure is about groups that
were never seen, and beats of one patient are no independent samples.

Sources: Wilson's score interval; Agresti & Min 2005 ("Simple improved confidence intervals for comparing matched
proportions"); Student's interval of a ratio estimate with groups as clusters (Cochran 1977, "Sampling techniques",
section 10); percentiles of 2,000 resamples of samples or groups for an RMSE.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student_t  # type: ignore[import-untyped]

from models.forge.evaluation.outcomes import Floats

_Z95 = 1.959964
_RESAMPLES = 2000
_SEED = 11
Groups = npt.NDArray[np.int64]
_NO_GROUPS: Groups = np.zeros(0, np.int64)


class Interval(NamedTuple):
    """A 95 % interval of a figure, in its unit."""

    low: float
    high: float


def share_interval(flags: npt.NDArray[Any], groups: Groups = _NO_GROUPS) -> Interval:
    """Interval of the share of samples that are 1 (or True), inside 0..1. `groups` `[n]`: empty for single samples.

    Wilson's score interval is honest for few samples and for shares near 1; groups only make it wider.
    """
    values = np.asarray(flags, np.float64)
    if not len(values):
        return Interval(0.0, 1.0)
    plain = _score_interval(float(values.mean()), len(values))
    if not len(groups):
        return plain
    wide = _cluster_interval(values, groups)
    return Interval(max(0.0, min(plain.low, wide.low)), min(1.0, max(plain.high, wide.high)))


def quality_interval(loss: Floats, groups: Groups = _NO_GROUPS, *, regressor: bool) -> Interval:
    """Interval of an accuracy, from samples that are wrong (0 or 1), or of an RMSE, from squared errors."""
    if not regressor:
        return share_interval(1 - loss, groups)
    return _percentiles(np.sqrt(_resample_means(loss[:, None], groups)[:, 0]))


def gain_interval(before: Floats, after: Floats, groups: Groups = _NO_GROUPS, *, regressor: bool) -> Interval:
    """Interval of what `after` gains over `before` on the same samples: in accuracy, or by how much its RMSE is lower.

    Both are losses per sample: wrong (0 or 1), or squared errors.
    """
    if regressor:
        means = np.sqrt(_resample_means(np.stack([before, after], 1), groups))
        return _percentiles(means[:, 0] - means[:, 1])
    samples = len(before) + 2  # half a pair is added to each cell
    mended = float(np.maximum(before - after, 0).sum()) + 0.5
    broken = float(np.maximum(after - before, 0).sum()) + 0.5
    middle = (mended - broken) / samples
    half = _Z95 * math.sqrt(mended + broken - (mended - broken) ** 2 / samples) / samples
    if not len(groups):
        return Interval(middle - half, middle + half)
    wide = _cluster_interval(before - after, groups)
    return Interval(min(middle - half, wide.low), max(middle + half, wide.high))


def measure_gain(before: Floats, after: Floats, *, regressor: bool) -> float:
    """What `after` gains over `before`, as `gain_interval` counts it."""
    one, other = float(before.mean()), float(after.mean())
    return math.sqrt(one) - math.sqrt(other) if regressor else one - other


def _score_interval(share: float, samples: int) -> Interval:
    """Wilson's score interval of a share."""
    z2 = _Z95**2 / samples
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z95 / (1 + z2) * math.sqrt(share * (1 - share) / samples + z2 / (4 * samples))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def _cluster_interval(values: Floats, groups: Groups) -> Interval:
    """Student's interval of the mean with groups as clusters; one group says nothing."""
    _, place = np.unique(groups, return_inverse=True)
    mean = float(values.mean())
    sums = np.bincount(place, values - mean)
    units = len(sums)
    if units < 2:
        return Interval(-math.inf, math.inf)
    error = math.sqrt(units / (units - 1) * float((sums**2).sum())) / len(values)
    half = float(student_t.ppf(0.975, units - 1)) * error
    return Interval(mean - half, mean + half)


def _resample_means(columns: Floats, groups: Groups) -> Floats:
    """Means `[2000, k]` of the columns `[n, k]` over resampled samples, or over resampled groups."""
    rng = np.random.default_rng(_SEED)
    if not len(groups):
        drawn = (rng.integers(0, len(columns), len(columns)) for _ in range(_RESAMPLES))
        return np.stack([columns[rows].mean(0) for rows in drawn])
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(place, column) for column in columns.T], 1)
    weights = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), _RESAMPLES)
    return np.asarray(weights @ sums / (weights @ sizes)[:, None])


def _percentiles(found: Floats) -> Interval:
    low, high = (float(q) for q in np.quantile(found, (0.025, 0.975)))
    return Interval(low, high)
