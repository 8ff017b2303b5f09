"""Samples in any of the shapes people have them become one: `Data` of float32 and int64 arrays.

Law: nothing is dropped, scaled or reordered but by the one split of a fixed seed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.forge.data.merging_coerce_checked import lengths
from models.forge.data.types import Data, ForgeError, Part, Values

_SEED = 20
_SHARES = (0.7, 0.85)  # ends of training and of calibration, of samples that come in one piece
_PARTS = ("training", "calibration", "heldout")


def coerced(given: Any) -> Data:
    """Data of float32 and int64 arrays. ForgeError: no reading of `given` makes sense."""
    if all(hasattr(given, name) for name in _PARTS):
        return _in_parts(given)
    if isinstance(given, Mapping) or not isinstance(given, Sequence) or not 2 <= len(given) <= 4:
        raise ForgeError(f"data: {type(given).__name__} is not understood; return (x, y), (x, y, labels) or a Data")
    x, y, labels, sensitive = (*given, *((), {})[len(given) - 2 :]) if len(given) < 4 else given
    targets, names = _targets(y, tuple(labels or ()))
    return _split(_part(x, targets, sensitive or {}), names)


def _in_parts(given: Any) -> Data:
    names = tuple(str(label) for label in getattr(given, "labels", ()))
    raw = [getattr(given, name) for name in _PARTS]
    pairs = [_triple(part) for part in raw]
    every, found = _targets(np.concatenate([_array(y) for _, y, _ in pairs]), names)
    ends = np.cumsum([len(y) for _, y, _ in pairs])[:-1]
    targets = np.split(every, ends)
    training, calibration, heldout = (_part(x, y, kept) for (x, _, kept), y in zip(pairs, targets, strict=True))
    return Data(training, calibration, heldout, found)


def _triple(part: Any) -> tuple[Any, Any, Any]:
    """Of a Part, of anything like it, or of (x, y)."""
    if hasattr(part, "y"):
        return part.x, part.y, getattr(part, "sensitive", {})
    return part[0], part[1], {}


def _part(x: Any, y: Values, sensitive: Mapping[str, Any]) -> Part:
    inputs = tuple(_plain(one) for one in x) if _several(x, len(y)) else (_plain(_array(x)),)
    columns = {str(name): _column(name, column) for name, column in sensitive.items()}
    return Part(inputs, y, columns)


def _several(x: Any, count: int) -> bool:
    """A sequence of arrays that have a row per sample each: several inputs, not a list of samples."""
    if not isinstance(x, list | tuple) or not x:
        return False
    return all(isinstance(one, np.ndarray | Tensor) and one.ndim > 0 and len(one) == count for one in x)


def _array(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        return torch.stack(list(values)).detach().cpu().numpy()
    return np.asarray(values)


def _plain(values: Any) -> Values:
    array = _array(values)
    if array.dtype.kind in "iub":
        return np.ascontiguousarray(array, np.int64)
    if array.dtype.kind != "f":
        raise ForgeError(f"data: an input of {array.dtype} is no array of numbers; give every sample the same shape")
    return np.ascontiguousarray(array, np.float32)


def _column(name: str, values: Any) -> npt.NDArray[np.int64]:
    array = _array(values)
    numbers: npt.NDArray[Any] = array if array.dtype.kind in "iub" else np.unique(array, return_inverse=True)[1]
    if array.ndim != 1:
        raise ForgeError(f"data: sensitive column {name} has shape {list(array.shape)}; give one number per sample [n]")
    return numbers.astype(np.int64)


def _targets(y: Any, labels: tuple[Any, ...]) -> tuple[Values, tuple[str, ...]]:
    """(int64 labels, their names) of a classifier, (float32 values, ()) of a regressor."""
    array = _array(y)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    names = tuple(str(label) for label in labels)
    if array.ndim != 1:
        raise ForgeError(f"data: targets of shape {list(array.shape)}; give one label or value per sample [n]")
    if array.dtype.kind in "US":
        names = names or tuple(sorted(set(array.tolist())))
        unknown = sorted(set(array.tolist()) - set(names))
        if unknown:
            raise ForgeError(f"data: target {unknown[0]!r} is none of the labels; add it to them")
        return np.asarray([names.index(one) for one in array.tolist()], np.int64), names
    if array.dtype.kind == "f" and not (names and np.array_equal(array, np.round(array))):
        return array.astype(np.float32), names
    whole = array.astype(np.int64)
    return whole, names or tuple(str(i) for i in range(int(whole.max(initial=0)) + 1))


def _split(part: Part, labels: tuple[str, ...]) -> Data:
    count = len(part)
    lengths("data", part)
    order = np.random.default_rng(_SEED).permutation(count)
    pieces = np.split(order, [int(share * count) for share in _SHARES])
    training, calibration, heldout = (_rows(part, piece) for piece in pieces)
    return Data(training, calibration, heldout, labels)


def _rows(part: Part, rows: npt.NDArray[np.int64]) -> Part:
    columns = {name: column[rows] for name, column in part.sensitive.items()}
    return Part(tuple(one[rows] for one in part.x), part.y[rows], columns)
