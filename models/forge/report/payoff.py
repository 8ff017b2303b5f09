"""Payoff of asking the hub: what the pair gains over the device alone, with intervals, and what a question costs.

Rule: taken from held-out samples alone; where they cannot tell, that is said too. Intervals hold with 95 % probability:
for accuracies Wilson's score interval, for a gain in accuracy Agresti & Min 2005 ("Simple improved confidence intervals
for comparing matched proportions"), for an RMSE the percentiles of 2,000 resamples.
"""

import math
from typing import NamedTuple

import numpy as np

from models.bundle.manifest import Manifest
from models.bundle.measurements import QualityMetric
from models.forge.evaluation.outcomes import Floats, Outcomes
from models.forge.export.manifest import ENVELOPE_BYTES

_Z95 = 1.959964
_RESAMPLES = 2000
_SEED = 11


class Interval(NamedTuple):
    """A 95 % interval of a figure, in its unit."""

    low: float
    high: float


class Payoff(NamedTuple):
    """What asking brings on the held-out samples.

    `edge`, `pair`: of the device alone and of the pair; `hub`: of the given model on raw samples, None for a regressor,
    whose single errors are not kept. `gain`: of the pair over the device alone, above 0 if the pair is better (a
    regressor: by how much its RMSE is lower), with its interval `gained`. `question_bytes`: one question, sealed;
    `raw_bytes`: the sample itself. `warnings`: a line for each reason why asking does not pay, none if it does.
    """

    samples: int
    edge: Interval
    pair: Interval
    hub: Interval | None
    gain: float
    gained: Interval
    question_bytes: int
    raw_bytes: int
    warnings: tuple[str, ...]


def judge_payoff(manifest: Manifest, found: Outcomes, raw_bytes: int) -> Payoff:
    """Judge whether asking pays. `found`: outcomes of the held-out samples; `raw_bytes`: size of one sample."""
    asked = found.confidence < manifest.calibration.threshold
    edge_loss, pair_loss = found.edge_loss, np.where(asked, found.hub_loss, found.edge_loss)
    regressor = found.metric is QualityMetric.RMSE
    if regressor:
        edge, pair, gained = _resample_errors(edge_loss, pair_loss)
        gain = math.sqrt(edge_loss.mean()) - math.sqrt(pair_loss.mean())
    else:
        edge, pair = (_score_interval(1 - float(loss.mean()), len(found)) for loss in (edge_loss, pair_loss))
        gain = float(edge_loss.mean() - pair_loss.mean())
        gained = _paired_interval(edge_loss, pair_loss)
    judged = Payoff(
        samples=len(found),
        edge=edge,
        pair=pair,
        hub=None if regressor else _score_interval(manifest.calibration.hub, len(found)),
        gain=float(gain),
        gained=gained,
        question_bytes=manifest.fixed_bytes + ENVELOPE_BYTES,
        raw_bytes=raw_bytes,
        warnings=(),
    )
    return judged._replace(warnings=_list_warnings(manifest, judged))


def _list_warnings(manifest: Manifest, judged: Payoff) -> tuple[str, ...]:
    """One line for each reason why asking the hub does not pay."""
    c, told = manifest.calibration, []
    alone, together, whole = (format_quality(c.metric, value) for value in (c.edge, c.pair, c.hub))
    figures = f"{alone} alone, {together} as a pair that asks {c.asked:.1%}, on {judged.samples} held-out samples"
    if judged.gain <= 0:
        better = c.hub < c.edge if c.metric == QualityMetric.RMSE else c.hub > c.edge
        why = (
            f"the given model reaches {whole}: the bottleneck loses it (--max-bytes, --effort, --cut)"
            if better
            else f"the given model itself reaches {whole}: no question can help"
        )
        told.append(f"asking the hub does not pay: {figures}; {why}")
    elif judged.gained.low <= 0:
        told.append(
            f"asking the hub is not shown to pay: {figures}; the gain of {format_gain(c.metric, judged.gain)} may be"
            f" {format_range(c.metric, judged.gained)}: bring more samples"
        )
    if judged.question_bytes >= judged.raw_bytes:
        told.append(
            f"a question takes {judged.question_bytes} B, sealed, for a raw sample of {judged.raw_bytes} B: it can save"
            " no bytes, only keep the sample to itself"
        )
    return tuple(told)


def format_quality(metric: QualityMetric, value: float) -> str:
    """An accuracy in percent, or an RMSE."""
    return f"{value:.4g} rmse" if metric == QualityMetric.RMSE else f"{value:.1%}"


def format_gain(metric: QualityMetric, value: float) -> str:
    """A gain in points of accuracy, or in units of the target."""
    return f"{value:.4g}" if metric == QualityMetric.RMSE else f"{100 * value:.1f} points"


def format_range(metric: QualityMetric, interval: Interval) -> str:
    """An interval as `93.1 to 99.2 %`, or in units of the target."""
    low, high = interval
    return f"{low:.4g} to {high:.4g}" if metric == QualityMetric.RMSE else f"{100 * low:.1f} to {100 * high:.1f} %"


def _score_interval(share: float, samples: int) -> Interval:
    """Wilson's score interval of a share, which stays inside 0..1 and is honest for few samples and shares near 1."""
    z2 = _Z95**2 / samples
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z95 / (1 + z2) * math.sqrt(share * (1 - share) / samples + z2 / (4 * samples))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def _paired_interval(before: Floats, after: Floats) -> Interval:
    """Interval of the difference of two shares of wrong answers on the same samples, half a pair added to each cell."""
    samples = len(before) + 2
    mended = float(np.maximum(before - after, 0).sum()) + 0.5
    broken = float(np.maximum(after - before, 0).sum()) + 0.5
    middle = (mended - broken) / samples
    half = _Z95 * math.sqrt(mended + broken - (mended - broken) ** 2 / samples) / samples
    return Interval(middle - half, middle + half)


def _resample_errors(edge: Floats, pair: Floats) -> tuple[Interval, Interval, Interval]:
    """Intervals of both RMSEs and of how much lower the second is, from squared errors on the same samples."""
    rng = np.random.default_rng(_SEED)
    found = np.empty((_RESAMPLES, 2))
    for number in range(_RESAMPLES):
        rows = rng.integers(0, len(edge), len(edge))
        found[number] = math.sqrt(edge[rows].mean()), math.sqrt(pair[rows].mean())
    columns = (found[:, 0], found[:, 1], found[:, 0] - found[:, 1])
    alone, together, gained = (Interval(*(float(q) for q in np.quantile(c, (0.025, 0.975)))) for c in columns)
    return alone, together, gained
