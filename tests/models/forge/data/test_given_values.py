"""Odd data sets: each is taken, or refused within a second by one line that names the row, the column or the reason."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.forge.data.coerce import check_data, check_differences, coerce_data
from models.forge.data.types import Data, ForgeError

Made = Callable[[np.random.Generator, Path], tuple[Any, Any]]
ROWS, COLUMNS = 80, 5


def numbers(chance: np.random.Generator) -> Any:
    return chance.normal(size=(ROWS, COLUMNS))


def labels(chance: np.random.Generator) -> Any:
    return np.arange(ROWS) % 2


def mapped(chance: np.random.Generator, folder: Path) -> Any:
    kept = np.memmap(folder / "x.bin", np.float32, "w+", shape=(ROWS, COLUMNS))
    kept[:] = numbers(chance)
    return kept


def with_value(value: Any, dtype: Any = np.float64) -> Made:
    """Numbers with one value in a random row and column."""

    def make(chance: np.random.Generator, folder: Path) -> tuple[Any, Any]:
        x = numbers(chance).astype(dtype)
        x[chance.integers(ROWS), chance.integers(COLUMNS)] = value
        return x, labels(chance)

    return make


def with_target(value: Any, dtype: Any = object) -> Made:
    def make(chance: np.random.Generator, folder: Path) -> tuple[Any, Any]:
        y = np.array(["a", "b"] * (ROWS // 2), object) if dtype is object else labels(chance).astype(dtype)
        y[chance.integers(1, ROWS)] = value
        return numbers(chance), y

    return make


TAKEN: dict[str, Made] = {
    "constant columns": lambda c, f: (np.where(np.arange(COLUMNS) < 2, 1.0, numbers(c)), labels(c)),
    "float16": lambda c, f: (numbers(c).astype(np.float16), labels(c)),
    "bool": lambda c, f: (numbers(c) > 0, labels(c) > 0),
    "small whole numbers": lambda c, f: (c.integers(0, 9, (ROWS, COLUMNS)).astype(np.uint8), labels(c).astype(np.int8)),
    "objects that are numbers": lambda c, f: (numbers(c).astype(object), labels(c).astype(object)),
    "names as objects": lambda c, f: (numbers(c), np.array(["yes", "no"] * (ROWS // 2), object)),
    "names": lambda c, f: (numbers(c), np.array(["yes", "no"] * (ROWS // 2))),
    "bytes": lambda c, f: (numbers(c), np.array([b"yes", b"no"] * (ROWS // 2))),
    "values as objects": lambda c, f: (numbers(c), numbers(c)[:, 0].astype(object)),
    "non-contiguous": lambda c, f: (np.asfortranarray(numbers(c))[:, ::2], labels(c)),
    "backwards": lambda c, f: (numbers(c)[::-1], labels(c)[::-1]),
    "mapped": lambda c, f: (mapped(c, f), labels(c)),
    "lists": lambda c, f: (numbers(c).tolist(), labels(c).tolist()),
    "tensors": lambda c, f: (torch.from_numpy(numbers(c)), torch.from_numpy(labels(c))),
    "big-endian": lambda c, f: (numbers(c).astype(">f4"), labels(c).astype(">i4")),
    "a column of targets": lambda c, f: (numbers(c), labels(c)[:, None]),
    "large, within float32": with_value(3e38),
    "tiny": with_value(1e-320),
}
REFUSED: dict[str, Made] = {
    "NaN": with_value(np.nan),
    "infinite": with_value(-np.inf),
    "beyond float32": with_value(1e300),
    "NaN in float16": with_value(np.nan, np.float16),
    "infinite in float16": with_value(np.inf, np.float16),
    "missing as objects": with_value(None, object),
    "a word as objects": with_value("n/a", object),
    "words": lambda c, f: (numbers(c).astype(str), labels(c)),
    "complex": lambda c, f: (numbers(c).astype(complex), labels(c)),
    "times": lambda c, f: (np.zeros((ROWS, COLUMNS), "datetime64[s]"), labels(c)),
    "too large for int64": lambda c, f: (np.full((ROWS, COLUMNS), 2**64 - 1, np.uint64), labels(c)),
    "masked": lambda c, f: (np.ma.masked_less(numbers(c), 0), labels(c)),
    "ragged": lambda c, f: ([[1.0] * (3 + (row == 7)) for row in range(ROWS)], labels(c)),
    "a missing name": with_target(None),
    "NaN among names": with_target(float("nan")),
    "a number among names": with_target(3),
    "NaN among values": with_target(np.nan, np.float64),
    "infinite value": with_target(np.inf, np.float64),
    "a label far beyond the others": with_target(2**40, np.int64),
    "a label below all": with_target(-7, np.int64),
    "times as targets": lambda c, f: (numbers(c), np.zeros(ROWS, "datetime64[s]")),
}
WHOLE: dict[str, tuple[Made, str]] = {
    "empty": (lambda c, f: (np.zeros((0, 5)), np.zeros(0, int)), "0 samples"),
    "one sample": (lambda c, f: (np.zeros((1, 5)), np.zeros(1, int)), "1 samples"),
    "no columns": (lambda c, f: (np.zeros((ROWS, 0)), labels(c)), "no numbers"),
    "one class": (lambda c, f: (numbers(c), np.zeros(ROWS, int)), "1 different"),
    "one name": (lambda c, f: (numbers(c), np.array(["a"] * ROWS, object)), "1 different"),
    "one value": (lambda c, f: (numbers(c), np.full(ROWS, 0.5)), "nothing to learn"),
    "more targets": (lambda c, f: (numbers(c), np.arange(ROWS + 1) % 2), "one of each"),
    "nothing at all": (lambda c, f: (None, None), "is a NoneType, no array"),
    "a mapping": (lambda c, f: ({"x": 1}, labels(c)), "is a dict, no array"),
}


def read(made: Made, seed: int, folder: Path) -> Data:
    """The data as the forge reads it. It takes less than a second."""
    began = time.monotonic()
    try:
        return check_data(coerce_data(made(np.random.default_rng(seed), folder)))
    finally:
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("seed", range(3))
def test_data_that_can_be_used_is_taken_unchanged(name: str, seed: int, tmp_path: Path):
    found = read(TAKEN[name], seed, tmp_path)
    x, _ = TAKEN[name](np.random.default_rng(seed), tmp_path)
    rows = np.concatenate([part.x[0] for part in (found.training, found.calibration, found.heldout)])
    with np.errstate(under="ignore"):
        given = np.asarray(x).astype(rows.dtype)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, given.tolist()))


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("seed", range(3))
def test_a_fault_is_named_by_its_place_in_the_users_own_arrays(name: str, seed: int, tmp_path: Path):
    x, y = REFUSED[name](np.random.default_rng(seed), tmp_path)
    with pytest.raises(ForgeError, match=r"^data: row \d+") as caught:
        read(REFUSED[name], seed, tmp_path)
    assert "\n" not in str(caught.value)
    if name in {"NaN", "infinite", "beyond float32"}:
        ((row, column),) = np.argwhere(~(np.abs(x) <= np.finfo(np.float32).max))
        assert f"row {row}, column {column} of x is " in str(caught.value)
    if name == "a missing name":
        assert f"row {list(y).index(None)} of y is missing" in str(caught.value)


@pytest.mark.parametrize("name", WHOLE)
def test_data_without_anything_to_learn_is_refused_with_its_reason(name: str, tmp_path: Path):
    made, words = WHOLE[name]
    with pytest.raises(ForgeError, match=words):
        read(made, 1, tmp_path)


def test_a_fault_in_a_part_names_the_part(tmp_path: Path):
    chance = np.random.default_rng(2)
    parts = [(numbers(chance), labels(chance)) for _ in range(3)]
    parts[1][0][4, 2] = np.nan
    given = type("Given", (), dict(zip(("training", "calibration", "heldout"), parts, strict=True)))
    with pytest.raises(ForgeError, match="row 4, column 2 of x of calibration is NaN"):
        coerce_data(given)


def test_the_fault_of_one_of_several_inputs_names_the_input():
    chance = np.random.default_rng(3)
    second = chance.normal(size=(ROWS, 2, 3))
    second[9, 1, 2] = np.inf
    with pytest.raises(ForgeError, match=r"row 9, position \[1, 2\] of input 1 is infinite"):
        coerce_data(([numbers(chance), second], labels(chance)))


COLUMNS_OF = {"a sensitive column": lambda column: (None, {"age": column}, None), "groups": lambda c: (None, {}, c)}
MISSING: dict[str, tuple[Any, Any, Any]] = {  # a missing value, one that is there, the type of the column
    "NaN": (np.nan, 3.0, np.float64),
    "None among names": (None, "a", object),
    "no date": (np.datetime64("NaT"), np.datetime64("2026-01-01"), "datetime64[D]"),
}


@pytest.mark.parametrize("where", COLUMNS_OF)
@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_value_beside_the_samples_is_named_by_its_row(where: str, kind: str):
    chance = np.random.default_rng(4)
    none, some, dtype = MISSING[kind]
    column = np.array([none if row == 31 else some for row in range(ROWS)], dtype)
    with pytest.raises(ForgeError, match=r"^data: row 31 of (sensitive column age|groups) is missing"):
        coerce_data((numbers(chance), labels(chance), *COLUMNS_OF[where](column)))


@pytest.mark.parametrize(
    ("target", "names", "says"),
    [
        (7, (), "row 9 of y of heldout is label 7, out of range 0..1"),
        (0.5, (), "row 9 of y of heldout is 0.5, no label"),
        ("c", ("a", "b"), "row 9 of y of heldout is 'c', none of the labels"),
    ],
)
def test_a_wrong_label_in_a_part_is_named_by_its_row_in_that_part(target: Any, names: Any, says: str):
    chance = np.random.default_rng(5)
    parts = []
    for part in ("training", "calibration", "heldout"):
        plain = ["a", "b"] if isinstance(target, str) else [0, 1]
        y = np.array(plain * (ROWS // 2), type(target) if isinstance(target, str | float) else int)
        if part == "heldout":
            y[9] = target
        parts.append((part, (numbers(chance), y)))
    given = type("Given", (), {**dict(parts), "labels": names or ("no", "yes")})
    with pytest.raises(ForgeError, match=says):
        coerce_data(given)


@pytest.mark.parametrize("part", ["training", "calibration", "heldout"])
def test_samples_that_are_all_equal_in_one_part_are_refused_by_its_name(part: str):
    chance = np.random.default_rng(6)
    made = {name: (numbers(chance), labels(chance)) for name in ("training", "calibration", "heldout")}
    made[part] = (np.ones((ROWS, COLUMNS)), labels(chance))
    found = check_data(coerce_data(type("Given", (), dict(made))))
    with pytest.raises(ForgeError, match=f"every sample of {part} has the same numbers"):
        check_differences(found)
