"""From logits to a confidence one may gate on: temperature, its error, a threshold, and what the pair gains by it.

Law: temperature and threshold are chosen on a calibration split; figures are taken on held-out samples. numpy only.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[np.int64]
_BINS = 15
_GOLDEN = (math.sqrt(5) - 1) / 2


class Gate(NamedTuple):
    """Accuracy as shares in 0..1 when samples below the threshold are answered by the hub."""

    edge: float
    pair: float
    asked: float


def probabilities(logits: Logits, temperature: float) -> npt.NDArray[np.float64]:
    """Softmax of `logits / temperature`, `[n, labels]`."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def temperature(logits: Logits, y: Labels) -> float:
    """The temperature of the lowest negative log-likelihood (Guo et al. 2017), by golden section on its logarithm.

    Samples of no label (-1) have no likelihood and do not count.
    """
    logits, y = logits[y >= 0], y[y >= 0]
    low, high = math.log(0.05), math.log(20.0)
    while high - low > 1e-4:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _loss(logits, y, math.exp(left)) < _loss(logits, y, math.exp(right)):
            high = right
        else:
            low = left
    return round(math.exp((low + high) / 2), 4)


def _loss(logits: Logits, y: Labels, value: float) -> float:
    chosen = probabilities(logits, value)[np.arange(len(y)), y]
    return -float(np.log(np.maximum(chosen, 1e-12)).mean())


def calibration_error(scores: npt.NDArray[np.float64], y: Labels) -> float:
    """Expected calibration error of the top label: mean |accuracy - confidence| over 15 equal bins, by their weight."""
    return confidence_error(scores.max(1), scores.argmax(1) == y)


def confidence_error(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    """The same for any confidence `[n]` in 0..1, a gate's or a regressor's."""
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((right[bins == b] - confidence[bins == b]).sum())) for b in np.unique(bins)]
    return sum(gaps) / len(right)


def threshold(scores: npt.NDArray[np.float64], ask_share: float) -> float:
    """The confidence below which about `ask_share` of these samples lie, in whole thousandths."""
    return math.floor(float(np.quantile(scores.max(1), ask_share)) * 1000) / 1000


def gate(scores: npt.NDArray[np.float64], hub_labels: Labels, y: Labels, below: float) -> Gate:
    """The edge alone, the pair, and the share asked, if every sample under `below` is the hub's."""
    own = scores.argmax(1)
    asked = scores.max(1) < below
    pair = np.where(asked, hub_labels, own)
    return Gate(accuracy(own, y), accuracy(pair, y), float(asked.mean()))


def accuracy(labels: npt.NDArray[Any], y: Labels) -> float:
    return float((labels == y).mean())
