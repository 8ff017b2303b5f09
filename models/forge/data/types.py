"""The forge's data types: samples and targets in training, calibration and held-out parts that share no sample.

Rule: numpy only. `training` is learned from, `calibration` chooses every number (temperature, threshold, gate),
`heldout` is only ever measured on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

OUT_OF_SCOPE = -1  # the target of a classifier's sample that belongs to no label
Values = npt.NDArray[Any]


class ForgeError(Exception):
    """The data, the model or the specification cannot make a bundle; one line: what is wrong and what to try."""


@dataclass(frozen=True)
class DataPart:
    """Inputs, targets and sensitive columns of one part of the data.

    `x`: one array `[n, ...]` per input of the model; `y`: `[n]` int64 labels (-1 = out of scope) or float32 values.
    `sensitive`: named columns `[n]` of whole numbers (speaker, patient, user) that the features must not reveal.
    """

    x: tuple[Values, ...]
    y: Values
    sensitive: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Data:
    """Training, calibration and held-out parts, and the names of the labels; no `labels` means a regressor.

    `heldout` is the published test set wherever there is one.
    """

    training: DataPart
    calibration: DataPart
    heldout: DataPart
    labels: tuple[str, ...] = ()
