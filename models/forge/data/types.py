"""What the forge is given beside a model: arrays of samples and targets, in three parts that share nothing.

Law: numpy only. `training` teaches, `calibration` chooses every number (temperature, threshold, gate), `heldout` is
only ever measured on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

OUT_OF_SCOPE = -1  # the target of a classifier's sample that belongs to no label
Values = npt.NDArray[Any]


class ForgeError(Exception):
    """The data, the model or the wish cannot make a bundle; one line: what is wrong and what to try."""


@dataclass(frozen=True)
class Part:
    """`x`: one array `[n, ...]` per input of the model; `y`: `[n]` int64 labels (-1 = out of scope) or float32 values.

    `sensitive`: named columns `[n]` of whole numbers (speaker, patient, user) that the features must not tell.
    """

    x: tuple[Values, ...]
    y: Values
    sensitive: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Data:
    """`labels` empty = a regressor. `heldout` as published wherever there is a published test set."""

    training: Part
    calibration: Part
    heldout: Part
    labels: tuple[str, ...] = ()
