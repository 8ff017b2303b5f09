"""Confidence calibration: softmax temperature scaling and expected calibration error.

Rule: the temperature is chosen on a calibration split; figures are taken on held-out samples. numpy only.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[np.int64]
_BINS = 15
_GOLDEN = (math.sqrt(5) - 1) / 2


def softmax_probabilities(logits: Logits, temperature: float) -> npt.NDArray[np.float64]:
    """Softmax of `logits / temperature`, `[n, labels]`."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def fit_temperature(logits: Logits, y: Labels) -> float:
    """The temperature of the lowest negative log-likelihood (Guo et al. 2017), by golden section on its logarithm.

    Samples of no label (-1) have no likelihood and do not count.
    """
    logits, y = logits[y >= 0], y[y >= 0]
    low, high = math.log(0.05), math.log(20.0)
    while high - low > 1e-4:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _log_loss(logits, y, math.exp(left)) < _log_loss(logits, y, math.exp(right)):
            high = right
        else:
            low = left
    return round(math.exp((low + high) / 2), 4)


def _log_loss(logits: Logits, y: Labels, value: float) -> float:
    chosen = softmax_probabilities(logits, value)[np.arange(len(y)), y]
    return -float(np.log(np.maximum(chosen, 1e-12)).mean())


def expected_calibration_error(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error of a confidence `[n]` in 0..1: mean gap to the accuracy over 15 bins."""
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((right[bins == b] - confidence[bins == b]).sum())) for b in np.unique(bins)]
    return sum(gaps) / len(right)
