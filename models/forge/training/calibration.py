"""Confidence calibration: softmax temperature scaling, a regressor's tolerance, and expected calibration error.

Rule: the temperature is chosen on a calibration split; figures are taken on held-out samples. numpy only.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[np.int64]
_BINS = 15
_TOLERANCE_SHARE = 0.7
_GOLDEN = (math.sqrt(5) - 1) / 2


def softmax_probabilities(logits: Logits, temperature: float) -> npt.NDArray[np.float64]:
    """Softmax of `logits / temperature`, `[n, labels]`."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def fit_temperature(logits: Logits, y: Labels) -> float:
    """The temperature of the lowest negative log-likelihood (Guo et al. 2017), by golden section on its logarithm.

    Targets are smoothed as Platt (1999) does: of n samples each counts `(n + 1) / (n + 2)` for its label and the rest
    evenly for the others, as if one more answer had been right and one wrong. So a model that makes no error on these
    samples has a best temperature too, where plain likelihood only falls towards 0; with thousands of samples nothing
    changes. Samples of no label (-1) have no likelihood and do not count; 1.0 if none is left.
    """
    logits, y = logits[y >= 0], y[y >= 0]
    if not len(y):
        return 1.0
    low, high = math.log(0.05), math.log(20.0)
    while high - low > 1e-4:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _smoothed_log_loss(logits, y, math.exp(left)) < _smoothed_log_loss(logits, y, math.exp(right)):
            high = right
        else:
            low = left
    return round(math.exp((low + high) / 2), 4)


def _smoothed_log_loss(logits: Logits, y: Labels, temperature: float) -> float:
    """Mean cross entropy of the smoothed targets."""
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(1, keepdims=True)
    logs = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
    labels = logs.shape[1]
    rest = 1 / (len(y) + 2)
    own = logs[np.arange(len(y)), y]
    others = (logs.sum(1) - own) / max(1, labels - 1)
    return -float(((1 - rest) * own + rest * others).mean())


def fit_tolerance(hub_errors: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
    """The error of a regressor that still counts as right: the one that the hub stays under in seven of ten samples.

    `hub_errors`: answers minus targets `[n]`; `y`: targets, in whose units it is. More than 0, with four digits.
    """
    found = float(np.quantile(np.abs(hub_errors), _TOLERANCE_SHARE))
    return float(f"{max(found, 1e-6 * (float(np.ptp(y)) or 1.0)):.4g}")


def expected_calibration_error(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error of a confidence `[n]` in 0..1: mean gap to the accuracy over 15 bins."""
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((right[bins == b] - confidence[bins == b]).sum())) for b in np.unique(bins)]
    return sum(gaps) / len(right)
