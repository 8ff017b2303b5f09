"""Thresholds of what is out of domain, for the device's novelty and for the hub's logits, with their false alarms.

Rule: score and threshold are chosen on the calibration part; false alarms and recall are measured on the held-out part.
A threshold is a split-conformal quantile (Vovk et al. 2005): for samples drawn alike, the promised share holds.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta  # type: ignore[import-untyped]
from sklearn.metrics import roc_auc_score

from models.bundle.measurements import DomainFigures, DomainScore
from models.forge.data.types import OUT_OF_SCOPE
from models.forge.training.novelty import LEAST_OUTSIDE, group_classes
from models.runtime.novelty import score_logits

Values = npt.NDArray[Any]
_HUB_SCORES = (DomainScore.ENERGY, DomainScore.COLD_ENERGY, DomainScore.PEAK, DomainScore.SOFTMAX)


def measure_edge_domain(novelty: Sequence[Values | None], labels: Sequence[Values], aim: float) -> DomainFigures | None:
    """Figures of the device's novelty, on the calibration and the held-out part; None if the graph gives none.

    `labels` `[n]`: `OUT_OF_SCOPE` where a sample has none (of a regressor all are in scope: pass zeros).
    """
    chosen_on, measured_on = novelty
    if chosen_on is None or measured_on is None:
        return None
    return measure_domain(DomainScore.NOVELTY, (chosen_on.reshape(-1), measured_on.reshape(-1)), labels, aim)


def measure_hub_domain(logits: Sequence[Values], labels: Sequence[Values], aim: float) -> DomainFigures | None:
    """Figures of the hub's logits `[n, labels]` on both parts, with the score that `choose_hub_score` takes."""
    score = choose_hub_score(logits[0], labels[0], aim)
    return measure_domain(score, [score_logits(part, score) for part in logits], labels, aim)


def measure_domain(
    score: DomainScore, scores: Sequence[Values], labels: Sequence[Values], aim: float
) -> DomainFigures | None:
    """Figures of one half, on the calibration and the held-out part.

    None if fewer calibration samples are in scope than a share of `aim` needs. `scores` `[n]`: the higher the less
    usual. `aim`: share of in-scope samples that may lie above the threshold.
    """
    usual = np.sort(scores[0][labels[0] != OUT_OF_SCOPE].astype(np.float64))
    place = math.ceil((len(usual) + 1) * (1 - aim))
    if not 0 < place <= len(usual):
        return None
    threshold = float(usual[place - 1])
    above, y = scores[1].astype(np.float64) > threshold, labels[1]
    inside, outside = above[y != OUT_OF_SCOPE], above[y == OUT_OF_SCOPE]
    low, high = share_interval(int(inside.sum()), len(inside))
    return DomainFigures(
        score=score,
        threshold=threshold,
        aim=aim,
        false_alarm=round(float(inside.mean()), 4) if len(inside) else 0.0,
        low95=low,
        high95=high,
        samples=len(inside),
        recall=round(float(outside.mean()), 4) if len(outside) else 0.0,
        outside=len(outside),
    )


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a share by Clopper & Pearson 1934, its ends rounded outwards to four digits."""
    low = float(beta.ppf(0.025, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, count - hits)) if hits < count else 1.0
    return math.floor(low * 1e4) / 1e4, math.ceil(high * 1e4) / 1e4


def choose_hub_score(logits: Values, y: Values, aim: float) -> DomainScore:
    """The score of the hub's logits that tells apart best what is out of scope in the calibration part.

    Told apart by the area under the ROC curve up to a share `aim` of false alarms (McClish 1989). With too few such
    samples there, classes are held back in turn: their samples, without their logits, count as out of scope. The
    energy where neither is possible.
    """
    outside = y == OUT_OF_SCOPE
    if min(outside.sum(), (~outside).sum()) >= LEAST_OUTSIDE:
        trials = [(logits, outside)]
    else:
        groups = group_classes(y, logits.shape[1])
        trials = [(np.delete(logits, group, axis=1)[~outside], np.isin(y, group)[~outside]) for group in groups]
    if not trials:
        return DomainScore.ENERGY
    areas = [
        np.mean([roc_auc_score(novel, score_logits(z, score), max_fpr=aim) for z, novel in trials])
        for score in _HUB_SCORES
    ]
    return _HUB_SCORES[int(np.argmax(areas))]
