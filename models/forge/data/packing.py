"""Packing of a model with several inputs into one input: a row of numbers per sample.

Rule: exact. Whole numbers beside measured values are float32 in the row, and refused where float32 could not hold them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.forge.data.types import Data, DataPart, ForgeError, Values

_EXACT = 1 << 24  # whole numbers beyond this are not all float32


class PackedInputs(NamedTuple):
    """A model of one input and its data.

    `shapes`: of the user's inputs, one sample each, in the order in which they lie in a row.
    """

    model: nn.Module
    data: Data
    shapes: tuple[tuple[int, ...], ...]


class InputUnpacker(nn.Module):
    """Module that slices a row `[n, width]` back into the inputs of the user's model and casts each to its type.

    `ends`: per input the least and the largest number ever seen, or None. Category numbers in a row of measured values
    are
    clamped to them: the row's one range cannot say that there is no category -3.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[Values], ends: Sequence[tuple[int, int] | None]) -> None:
        super().__init__()
        self.model = model
        self._ends = list(ends)
        self._shapes = [tuple(one.shape[1:]) for one in inputs]
        self._dtypes = [torch.from_numpy(one[:0]).dtype for one in inputs]

    def forward(self, row: Tensor) -> Tensor:
        start, inputs = 0, []
        for shape, dtype, ends in zip(self._shapes, self._dtypes, self._ends, strict=True):
            end = start + math.prod(shape)
            piece = row[:, start:end].reshape(row.shape[0], *shape) if shape else row[:, start]
            inputs.append((piece.clamp(*ends) if ends else piece).to(dtype))
            start = end
        answer: Tensor = self.model(*inputs)
        return answer


def pack_inputs(model: nn.Module, data: Data) -> PackedInputs:
    """Model and data with one input: unchanged if there is one, else all inputs side by side.

    The row is int64 `[n, width]` if all inputs are whole numbers, else float32. Raises ForgeError for whole numbers
    that
    float32 cannot hold.
    """
    inputs = data.training.x
    shapes = tuple(tuple(one.shape[1:]) for one in inputs)
    if len(inputs) == 1:
        return PackedInputs(model, data, shapes)
    whole = all(one.dtype.kind == "i" for one in inputs)
    training, calibration, heldout = (
        _pack_row(part, whole=whole) for part in (data.training, data.calibration, data.heldout)
    )
    ends = [None if whole else _integer_range(data, at) for at in range(len(inputs))]
    return PackedInputs(
        InputUnpacker(model, inputs, ends).eval(), Data(training, calibration, heldout, data.labels), shapes
    )


def _integer_range(data: Data, at: int) -> tuple[int, int] | None:
    """Least and largest whole number of input `at` over all parts; None for measured values."""
    columns = [part.x[at] for part in (data.training, data.calibration, data.heldout)]
    if columns[0].dtype.kind != "i":
        return None
    return min(int(one.min()) for one in columns), max(int(one.max()) for one in columns)


def _pack_row(part: DataPart, *, whole: bool) -> DataPart:
    for i, one in enumerate(part.x):
        if not whole and one.dtype.kind == "i" and one.size and int(np.abs(one).max()) > _EXACT:
            raise ForgeError(f"data: input {i} has whole numbers over {_EXACT}; number its kinds from 0 instead")
    dtype = np.int64 if whole else np.float32
    row = np.concatenate([one.reshape(len(one), -1).astype(dtype) for one in part.x], axis=1)
    return replace(part, x=(row,))
