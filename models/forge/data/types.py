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
    """Inputs, targets, sensitive columns and groups of one part of the data.

    `x`: one array `[n, ...]` per input of the model; `y`: `[n]` int64 labels (-1 = out of scope) or float32 values.
    `sensitive`: named columns `[n]` of whole numbers (speaker, patient, user) that the features must not reveal.
    `groups`: whole numbers `[n]` that say which samples belong together (patient, user, machine): what is promised of
    the threshold is then promised of groups that were never seen, and no group is in two parts. None: every sample
    stands for itself.
    """

    x: tuple[Values, ...]
    y: Values
    sensitive: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    groups: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)


def select_rows(part: DataPart, rows: npt.NDArray[Any]) -> DataPart:
    """The chosen samples of a part with all that belongs to them. `rows`: indices, or a mask `[n]`."""
    columns = {name: column[rows] for name, column in part.sensitive.items()}
    groups = None if part.groups is None else part.groups[rows]
    return DataPart(tuple(one[rows] for one in part.x), part.y[rows], columns, groups)


@dataclass(frozen=True)
class Data:
    """Training, calibration and held-out parts, and the names of the labels; no `labels` means a regressor.

    `heldout` is the published test set wherever there is one.
    """

    training: DataPart
    calibration: DataPart
    heldout: DataPart
    labels: tuple[str, ...] = ()
