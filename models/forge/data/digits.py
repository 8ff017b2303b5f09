"""The demo's data set: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels (UCI, Alpaydin & Kaynak 1998).

Rule: the split is fixed; nothing is ever trained, tuned or chosen on what `load_heldout` returns. No torch is imported
here.
"""

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from models.forge.data.augment import Pictures, corrupt_pictures

__all__ = ["CORRUPTED", "HELDOUT", "corrupt_pictures", "load_calibration", "load_heldout", "load_training"]

HELDOUT = 500
CALIBRATION = 260
CORRUPTED = 0.4  # share of held-out samples that the demo and the manifest's figures damage
_SPLIT_SEED = 7
_TOP = 16.0  # a pixel counts the ink in a 4 x 4 block

Digits = tuple[Pictures, npt.NDArray[np.int64]]


def load_heldout() -> Digits:
    """The test part: 500 clean samples `[n, 1, 8, 8]` float32 in 0..1 and their digits `[n]` int64."""
    x, y = _load_shuffled()
    return x[:HELDOUT], y[:HELDOUT]


def load_calibration() -> Digits:
    """The calibration part: 260 other samples in the same form, for choosing temperatures and thresholds."""
    x, y = _load_shuffled()
    return x[HELDOUT : HELDOUT + CALIBRATION], y[HELDOUT : HELDOUT + CALIBRATION]


def load_training() -> Digits:
    """The training part: the other 1,037 samples in the same form."""
    x, y = _load_shuffled()
    return x[HELDOUT + CALIBRATION :], y[HELDOUT + CALIBRATION :]


def _load_shuffled() -> Digits:
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(digits))
    pictures = (pixels[order] / _TOP).astype(np.float32).reshape(-1, 1, 8, 8)
    return pictures, digits[order].astype(np.int64)
