"""Values as a user's function returned them: arrays of numbers or names, each fault with the row and column as given.

Rule: a fault is found before anything is split, copied or trained, and its line names the place in the user's own
arrays: rows and columns count from 0, and nothing is dropped or rounded without a word.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.forge.data.types import ForgeError, Values

_CHUNK_VALUES = 1 << 22  # looked at in one step, so that a file that is mapped is never copied whole
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_SHOWN_CHARS = 40


def to_array(values: Any, name: str = "data") -> npt.NDArray[Any]:
    """A numpy array from an array, a tensor, a data frame, a list of tensors or nested lists.

    `name`: what the values are, for errors. ForgeError for what is no array, and for masked or ragged rows.
    """
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        return torch.stack(list(values)).detach().cpu().numpy()
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        place = tuple(int(axis[0]) for axis in np.nonzero(np.ma.getmaskarray(values)))
        raise ForgeError(f"data: {_describe_place(name, place)} is masked; fill or drop it")
    try:
        array = np.asarray(values)
    except ValueError:
        raise ForgeError(_describe_ragged(values, name)) from None
    if array.dtype.kind == "O" and array.ndim == 0:
        kind = type(values).__name__
        raise ForgeError(f"data: {name} is a {kind}, no array; give numpy arrays (a sparse matrix: .toarray())")
    return array


def to_numbers(values: Any, name: str) -> Values:
    """An input as int64 or float32, rows in their order. ForgeError for anything but finite numbers of one shape."""
    array = to_array(values, name)
    if array.dtype.kind == "O" or array.dtype.kind in "US":
        array = _parse_objects(array, name)
    if array.dtype.kind in "ib":
        return np.ascontiguousarray(array, np.int64)
    if array.dtype.kind == "u":
        _refuse_first(array, array > np.uint64(np.iinfo(np.int64).max), name, "is too large for int64")
        return np.ascontiguousarray(array, np.int64)
    if array.dtype.kind != "f":
        place = _describe_place(name, (0,) * array.ndim)
        raise ForgeError(f"data: {place} is of {array.dtype}, no number; give every sample as numbers of one shape")
    check_finite(array, name)
    return np.ascontiguousarray(array, np.float32)


def check_finite(array: npt.NDArray[Any], name: str) -> None:
    """Check that floating-point values are finite, as float32 too. ForgeError names the first that is not."""
    rows = max(1, _CHUNK_VALUES // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        with np.errstate(invalid="ignore", over="ignore"):
            good = np.isfinite(part) & (np.abs(part) <= _FLOAT32_MAX)  # the limit itself is infinite in float16
        if not good.all():
            place = tuple(int(axis[0]) for axis in np.nonzero(~good))
            value = part[place]
            what = "NaN" if np.isnan(value) else "infinite" if np.isinf(value) else f"{value:g}, beyond float32"
            raise ForgeError(
                f"data: {_describe_place(name, (start + place[0], *place[1:]))} is {what}; fill or drop that row"
            )


def to_plain_targets(values: Any, name: str = "y") -> npt.NDArray[Any]:
    """Targets as numbers or strings: object arrays, as data frames give them, become the one or the other.

    ForgeError, with its row, for a value that is missing or of another kind than the first.
    """
    array = to_array(values, name)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1:
        raise ForgeError(f"data: targets of shape {list(array.shape)}; give one label or value per sample [n]")
    if array.dtype.kind == "O":
        array = _unify_targets(array, name)
    if array.dtype.kind not in "biufUS":
        raise ForgeError(f"data: row 0 of {name} is of {array.dtype}; give labels as whole numbers or names, or values")
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "f":
        check_finite(array, name)
    return array


def to_plain_column(values: Any, name: str) -> npt.NDArray[Any]:
    """A sensitive column or groups `[n]`, as numbers or strings. ForgeError, with its row, for a missing value."""
    array = to_array(values, name)
    if array.ndim != 1:
        raise ForgeError(f"data: {name} has shape {list(array.shape)}; give one number per sample [n]")
    if array.dtype.kind == "O":
        return _unify_targets(array, name)
    missing = np.isnat(array) if array.dtype.kind in "mM" else np.isnan(array) if array.dtype.kind in "fc" else None
    if missing is not None and missing.any():
        raise ForgeError(f"data: row {int(np.argmax(missing))} of {name} is missing; fill or drop that row")
    return array


def _unify_targets(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """An object array as strings or numbers, by its first value."""
    words = len(array) > 0 and isinstance(array[0], str)
    for row, value in enumerate(array.tolist()):
        if _is_missing(value):
            raise ForgeError(f"data: row {row} of {name} is missing ({value}); fill or drop that row")
        if isinstance(value, str) is not words or not isinstance(value, str | bool | int | float | np.generic):
            raise ForgeError(f"data: row {row} of {name} is {_show(value)}, of another kind than row 0")
    return array.astype(str) if words else np.asarray(array.tolist())


def _is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, and what pandas writes (NaT, NA)."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _parse_objects(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """An array of objects or strings as numbers. ForgeError names the first value that is none."""
    if array.dtype.kind == "O" and array.ndim == 1 and len(array) and np.ndim(array[0]):
        raise ForgeError(_describe_ragged(array, name))
    if array.dtype.kind == "O":
        try:
            found = np.asarray(array.tolist())
        except ValueError:
            raise ForgeError(_describe_ragged(array, name)) from None
        if found.dtype.kind in "biuf":
            return found
    for place, value in np.ndenumerate(array):
        if not isinstance(value, bool | int | float | np.number):
            advice = "fill or drop that row" if _is_missing(value) else "encode words as numbers"
            raise ForgeError(f"data: {_describe_place(name, place)} is {_show(value)}, no number; {advice}")
    return array.astype(np.float64)


def _refuse_first(array: npt.NDArray[Any], bad: npt.NDArray[Any], name: str, why: str) -> None:
    if bad.any():
        place = tuple(int(axis[0]) for axis in np.nonzero(bad))
        raise ForgeError(f"data: {_describe_place(name, place)} {why}: {array[place]}")


def _describe_place(name: str, place: tuple[int, ...]) -> str:
    """Place of a value as its owner counts: row, and column or position in the sample."""
    if len(place) < 2:
        return f"row {place[0]} of {name}" if place else name
    inside = f"column {place[1]}" if len(place) == 2 else f"position {list(place[1:])}"
    return f"row {place[0]}, {inside} of {name}"


def _describe_ragged(values: Any, name: str) -> str:
    """One line on rows of different shapes."""
    shapes = list(_iter_shapes(values))
    for row, shape in enumerate(shapes):
        if shape != shapes[0]:
            return f"data: row {row} of {name} has shape {list(shape)}, row 0 {list(shapes[0])}; give one shape"
    return f"data: {name} is no array of numbers of one shape; give numpy arrays"


def _iter_shapes(values: Any) -> Iterator[tuple[int, ...]]:
    for one in values:
        try:
            yield np.shape(one)
        except ValueError:
            yield (len(one),)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
