"""Conversion of users' samples (numpy, torch, nested lists) to the forge's `Data`, and validation of that data.

Rule: nothing is dropped, scaled or reordered but by the one split of a fixed seed.

Rule: validation comes before any work and reports the first fault in one line: where, what, and what to try.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from models.forge.data.given_values import to_numbers, to_plain_column, to_plain_targets
from models.forge.data.types import OUT_OF_SCOPE, Data, DataPart, ForgeError, Values, select_rows

Whole = npt.NDArray[np.int64]
_COMPARED = 256  # samples at once
_MOST_LABELS = 100_000  # that are numbers without names
_FEWEST = 10  # samples of any part: below this no figure means anything


def check_data(data: Data, max_risk: float | None = None, confidence: float = 0.95) -> Data:
    """Validate all three parts; returns the same data.

    `max_risk`, `confidence`: of a risk guarantee, which needs a least number of calibration samples. Raises ForgeError
    for
    lengths or shapes that differ, NaN, labels out of range, or too few samples.
    """
    for name, part in _list_parts(data):
        check_lengths(name, part)
        _check_inputs(name, part)
        _check_same_form(name, part, data.training)
        if data.labels:
            _check_labels(name, part, data.labels)
        else:
            _check_values(name, part)
    if data.labels:
        _check_classes(data)
    _check_groups(data)
    if max_risk is not None:
        _check_sample_count(data, max_risk, confidence)
    return data


def check_outputs(outputs: int, data: Data) -> None:
    """Check that the model has one output per label, or one in all for a regressor. `outputs`: numbers per sample.

    Raises ForgeError otherwise.
    """
    wanted = len(data.labels) or 1
    if outputs != wanted:
        what = f"the data has {wanted} labels" if data.labels else "a regressor has one value"
        raise ForgeError(f"model: it has {outputs} outputs, but {what}; change its last layer or give the labels")


def minimum_samples(max_risk: float, confidence: float) -> int:
    """Least number of calibration samples that can bound a risk at all, for use before any model has run.

    With no error among n samples the exact upper bound is 1 - (1 - confidence)^(1/n). `max_risk`, `confidence`: in
    0..1.
    Source: Clopper and Pearson 1934 (for no error of n, the "rule of three").
    """
    return math.ceil(math.log(1 - confidence) / math.log(1 - max_risk))


def check_lengths(name: str, part: DataPart) -> None:
    """Raise ForgeError unless inputs, targets and sensitive columns of a part have one row per sample, ten or more."""
    count = len(part)
    if not part.x:
        raise ForgeError(f"data: {name} has no input; give an array x [n, ...]")
    for i, one in enumerate(part.x):
        if len(one) != count:
            raise ForgeError(f"data: {name} has {len(one)} samples of input {i} but {count} targets; give one of each")
    for column, numbers in part.sensitive.items():
        if len(numbers) != count:
            raise ForgeError(f"data: {name}: sensitive column {column} has {len(numbers)} numbers for {count} samples")
    if part.groups is not None and len(part.groups) != count:
        raise ForgeError(f"data: {name}: {len(part.groups)} groups for {count} samples; give the group of each sample")
    if count < _FEWEST:
        raise ForgeError(f"data: {name} has {count} samples; at least {_FEWEST} are needed in each of the three parts")


def _list_parts(data: Data) -> tuple[tuple[str, DataPart], ...]:
    return ("training", data.training), ("calibration", data.calibration), ("heldout", data.heldout)


def _check_inputs(name: str, part: DataPart) -> None:
    """Raise ForgeError for an input without numbers, or with NaN or infinite values."""
    for i, one in enumerate(part.x):
        if one.size == 0:
            raise ForgeError(f"data: {name}: input {i} has shape {list(one.shape)}, no numbers; give [n, ...]")
        if one.dtype.kind == "f" and not bool(np.isfinite(one).all()):
            bad = int(np.argmin(np.isfinite(one.reshape(len(one), -1)).all(1)))
            raise ForgeError(f"data: {name}: sample {bad} of input {i} has NaN or infinite values; fill or drop it")


def check_differences(data: Data) -> None:
    """Raise ForgeError if all samples of a part are equal."""
    for name, part in _list_parts(data):
        if all(map(_is_constant, part.x)):
            raise ForgeError(
                f"data: every sample of {name} has the same numbers as its row 0, in every column: there is nothing to"
                " tell them apart by"
            )


def _is_constant(values: Values) -> bool:
    """Whether all samples are equal, found without a copy of all: mostly the first few differ."""
    starts = range(0, len(values), _COMPARED)
    return all(bool((values[start : start + _COMPARED] == values[:1]).all()) for start in starts)


def _check_same_form(name: str, part: DataPart, training: DataPart) -> None:
    """Raise ForgeError unless a part has the inputs, shapes, types and sensitive columns of the training part."""
    if len(part.x) != len(training.x):
        raise ForgeError(f"data: {name} has {len(part.x)} inputs, training {len(training.x)}; give as many in each")
    for i, (one, first) in enumerate(zip(part.x, training.x, strict=True)):
        if one.shape[1:] != first.shape[1:] or one.dtype != first.dtype:
            found, wanted = f"{list(one.shape[1:])} {one.dtype}", f"{list(first.shape[1:])} {first.dtype}"
            raise ForgeError(f"data: {name}: input {i} is {found}, in training {wanted}; give the same in all parts")
    if set(part.sensitive) != set(training.sensitive):
        raise ForgeError(f"data: {name} has other sensitive columns than training; give the same in all parts")


def _check_labels(name: str, part: DataPart, labels: tuple[str, ...]) -> None:
    """Raise ForgeError unless labels are whole numbers from 0, or -1 for out of scope."""
    if part.y.dtype.kind != "i":
        raise ForgeError(f"data: {name}: labels are {part.y.dtype}, not whole numbers; leave labels away to fit values")
    wrong = part.y[(part.y < OUT_OF_SCOPE) | (part.y >= len(labels))]
    if len(wrong):
        raise ForgeError(
            f"data: {name}: label {int(wrong[0])} is out of range 0..{len(labels) - 1}"
            f" ({OUT_OF_SCOPE} = out of scope); name every label or number them from 0"
        )


def _check_values(name: str, part: DataPart) -> None:
    """Raise ForgeError unless a regressor's targets are finite and differ."""
    if part.y.dtype.kind != "f" or not bool(np.isfinite(part.y).all()):
        raise ForgeError(f"data: {name}: a target is NaN or infinite; drop that sample")
    if float(np.ptp(part.y)) == 0:
        raise ForgeError(f"data: {name}: every target is {float(part.y[0]):g}; there is nothing to learn")


def _check_classes(data: Data) -> None:
    """Raise ForgeError unless labels have different names and each has a training sample."""
    different = len(set(data.labels))
    if different < 2 or different != len(data.labels):
        raise ForgeError(f"data: {len(data.labels)} labels, {different} different; name at least 2, each once")
    for name, part in _list_parts(data):
        if not bool((part.y >= 0).any()):
            raise ForgeError(f"data: {name} has only samples that are out of scope; give some of each label")
    unseen = sorted(set(range(len(data.labels))) - {int(label) for label in np.unique(data.training.y)})
    if unseen:
        raise ForgeError(
            f"data: label {data.labels[unseen[0]]} ({unseen[0]}) has no training sample; add some or drop the label"
        )


def _check_groups(data: Data) -> None:
    """Raise ForgeError unless all parts have groups or none has, and no group is in two parts."""
    given = {name: part.groups for name, part in _list_parts(data) if part.groups is not None}
    if given and len(given) < len(_PART_NAMES):
        raise ForgeError(f"data: only {' and '.join(given)} have groups; give them in all parts or in none")
    for one, other in combinations(given, 2):
        shared = np.intersect1d(given[one], given[other])
        if len(shared):
            raise ForgeError(
                f"data: group {int(shared[0])} is in {one} and in {other}; a promise about new groups needs each in"
                " one part only"
            )


def _check_sample_count(data: Data, max_risk: float, confidence: float) -> None:
    """Raise ForgeError if the calibration part is too small for the requested risk and confidence."""
    if not 0 < max_risk < 1 or not 0 < confidence < 1:
        raise ForgeError(f"a risk of {max_risk:g} at confidence {confidence:g} is no pair of shares between 0 and 1")
    needed, given = minimum_samples(max_risk, confidence), len(data.calibration)
    if given < needed:
        raise ForgeError(
            f"data: {given} calibration samples cannot show a risk of {max_risk:g} at confidence {confidence:g};"
            f" give at least {needed} or ask for less"
        )


_SEED = 20
_SHARES = (0.7, 0.85)  # where training and calibration end, for samples that are not split yet
_PART_NAMES = ("training", "calibration", "heldout")


def coerce_data(given: Any) -> Data:
    """Data of float32 and int64 arrays from whatever a user's function returned.

    `given`: a `Data`, any object with training, calibration and heldout, or `(x, y[, labels[, sensitive[, groups]]])`,
    which is split 70 : 15 : 15 by a fixed seed, whole groups at a time if there are groups. Raises ForgeError if
    `given` has none of these forms.
    """
    if all(hasattr(given, name) for name in _PART_NAMES):
        return _coerce_parts(given)
    if isinstance(given, Mapping) or not isinstance(given, Sequence) or not 2 <= len(given) <= 5:
        raise ForgeError(f"data: {type(given).__name__} is not understood; return (x, y), (x, y, labels) or a Data")
    rest: list[Any] = [(), {}, None]
    x, y, labels, sensitive, groups = *given, *rest[len(given) - 2 :]
    targets, names = _coerce_targets(to_plain_targets(y), tuple(() if labels is None else labels))
    numbers = None if groups is None else _to_column("groups", groups)
    return _split_data(_build_part(x, targets, sensitive or {}, numbers), names)


def _coerce_parts(given: Any) -> Data:
    """Data from an object that is split already; targets of all parts are coerced together, to number labels alike."""
    names = tuple(str(label) for label in getattr(given, "labels", ()))
    raw = [getattr(given, name) for name in _PART_NAMES]
    pairs = [_unpack_part(part) for part in raw]
    plain = [to_plain_targets(y, f"y of {name}") for name, (_, y, _) in zip(_PART_NAMES, pairs, strict=True)]
    every, found = _coerce_targets(np.concatenate(plain), names, [len(one) for one in plain])
    ends = np.cumsum([len(y) for _, y, _ in pairs])[:-1]
    targets = np.split(every, ends)
    groups = _coerce_groups([getattr(part, "groups", None) for part in raw])
    training, calibration, heldout = (
        _build_part(x, y, kept, numbers, f" of {name}")
        for name, (x, _, kept), y, numbers in zip(_PART_NAMES, pairs, targets, groups, strict=True)
    )
    return Data(training, calibration, heldout, found)


def _unpack_part(part: Any) -> tuple[Any, Any, Any]:
    """Inputs, targets and sensitive columns of a `DataPart`, of anything like it, or of (x, y)."""
    if hasattr(part, "y"):
        return part.x, part.y, getattr(part, "sensitive", {})
    return part[0], part[1], {}


def _coerce_groups(given: Sequence[Any]) -> list[Whole | None]:
    """Groups of the three parts, numbered alike in all of them (names are numbered in their order)."""
    named = list(zip(_PART_NAMES, given, strict=True))
    if any(groups is None for groups in given):
        return [None if groups is None else _to_column(f"groups of {name}", groups) for name, groups in named]
    columns = [to_plain_column(groups, f"groups of {name}") for name, groups in named]
    every = _to_column("groups", np.concatenate(columns))
    return list(np.split(every, np.cumsum([len(one) for one in columns])[:-1]))


def _build_part(x: Any, y: Values, sensitive: Mapping[str, Any], groups: Whole | None, where: str = "") -> DataPart:
    """A part of checked arrays. `where`: words behind the name of an array in errors, such as " of training"."""
    several = _has_several_inputs(x, len(y))
    inputs = (
        tuple(to_numbers(one, f"input {number}{where}") for number, one in enumerate(x))
        if several
        else (to_numbers(x, f"x{where}"),)
    )
    columns = {str(name): _to_column(f"sensitive column {name}", column) for name, column in sensitive.items()}
    return DataPart(inputs, y, columns, groups)


def _has_several_inputs(x: Any, count: int) -> bool:
    """True for a sequence of arrays with a row per sample each: several inputs, not a list of samples."""
    if not isinstance(x, list | tuple) or not x:
        return False
    return all(isinstance(one, np.ndarray | Tensor) and one.ndim > 0 and len(one) == count for one in x)


def _to_column(name: str, values: Any) -> Whole:
    """A sensitive column or groups as whole numbers; other values are numbered in their order."""
    array = to_plain_column(values, name)
    numbers: npt.NDArray[Any] = array if array.dtype.kind in "iub" else np.unique(array, return_inverse=True)[1]
    return numbers.astype(np.int64)


def _name_row(row: int, lengths: Sequence[int]) -> str:
    """Place of a target as its owner counts. `lengths`: of the three parts that were joined, if any were."""
    for name, length in zip(_PART_NAMES, lengths, strict=False):
        if row < length:
            return f"row {row} of y of {name}"
        row -= length
    return f"row {row} of y"


def _coerce_targets(
    array: npt.NDArray[Any], labels: tuple[Any, ...], lengths: Sequence[int] = ()
) -> tuple[Values, tuple[str, ...]]:
    """Targets and label names: (int64 labels, their names) of a classifier, (float32 values, ()) of a regressor."""
    names = tuple(str(label) for label in labels)
    if array.dtype.kind == "U":
        names = names or tuple(sorted(set(array.tolist())))
        unknown = sorted(set(array.tolist()) - set(names))
        if unknown:
            row = array.tolist().index(unknown[0])
            raise ForgeError(f"data: {_name_row(row, lengths)} is {unknown[0]!r}, none of the labels; add it to them")
        return np.asarray([names.index(one) for one in array.tolist()], np.int64), names
    if array.dtype.kind == "f" and not (names and np.array_equal(array, np.round(array))):
        if names:
            row = int(np.argmax(array != np.round(array)))
            raise ForgeError(
                f"data: {_name_row(row, lengths)} is {array[row]:g}, no label; give whole numbers, or leave the labels"
                " away to fit values"
            )
        return array.astype(np.float32), names
    outside = (array < OUT_OF_SCOPE) | (array >= (len(names) or _MOST_LABELS))
    if outside.any():
        row, most = int(np.argmax(outside)), (len(names) or _MOST_LABELS) - 1
        advice = "name every label or number them from 0" if names else "number labels from 0, or give values as floats"
        raise ForgeError(
            f"data: {_name_row(row, lengths)} is label {int(array[row])}, out of range 0..{most}"
            f" ({OUT_OF_SCOPE} = out of scope); {advice}"
        )
    whole = array.astype(np.int64)
    return whole, names or tuple(str(i) for i in range(int(whole.max(initial=0)) + 1))


def _split_data(part: DataPart, labels: tuple[str, ...]) -> Data:
    """Split one part into three by a fixed seed, 70 : 15 : 15; no group is in two of them."""
    check_lengths("data", part)
    if part.groups is None:
        order = np.random.default_rng(_SEED).permutation(len(part))
        pieces = np.split(order, [int(share * len(part)) for share in _SHARES])
    else:
        pieces = _split_groups(part.groups)
    training, calibration, heldout = (select_rows(part, piece) for piece in pieces)
    return Data(training, calibration, heldout, labels)


def _split_groups(groups: Whole) -> list[Whole]:
    """Rows of the three parts, whole groups in a random order: each part gets groups until its share is reached."""
    names, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < len(_PART_NAMES):
        raise ForgeError(f"data: {len(names)} groups; at least one is needed for each of the three parts")
    order = np.random.default_rng(_SEED).permutation(len(names))
    middles = np.cumsum(sizes[order]) - sizes[order] / 2
    part_of = np.searchsorted(_SHARES, middles / len(groups))
    part_of[-1], part_of[0] = 2, 0
    if not (part_of == 1).any():  # a few large groups may step over the middle part
        part_of[len(names) // 2] = 1
    chosen = np.empty(len(names), np.int64)
    chosen[order] = part_of
    return [np.flatnonzero(chosen[place] == number) for number in range(len(_PART_NAMES))]
