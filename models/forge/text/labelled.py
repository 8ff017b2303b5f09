"""Labelled texts of a CSV file, and their division into training, calibration and held-out parts.

Rule: a text that stands in the file twice counts once, so that no text is both learnt from and measured on.
"""

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.bundle.manifest import InputSpec
from models.forge.data.types import ForgeError
from models.runtime.runner import SampleError
from models.runtime.text import encode_text

TEXT_COLUMN, LABEL_COLUMN = "text", "label"
MAX_ROWS = 1_000_000
FEWEST_PER_LABEL = 10
_CALIBRATION, _HELD_OUT = 0.2, 0.2

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class LabelledTexts(NamedTuple):
    """Texts as samples `[n, bytes]`, and the number of each one's label in `labels`."""

    x: Bytes
    y: Labels
    labels: tuple[str, ...]

    def take(self, rows: npt.NDArray[np.intp]) -> "LabelledTexts":
        """Return some of them."""
        return LabelledTexts(self.x[rows], self.y[rows], self.labels)


class TextParts(NamedTuple):
    """Three parts without a common text."""

    training: LabelledTexts
    calibration: LabelledTexts
    held_out: LabelledTexts


def read_labelled_texts(path: Path, spec: InputSpec) -> LabelledTexts:
    """Read a CSV file (UTF-8) with the columns `text` and `label`; labels are in the order of the alphabet.

    ForgeError, one line, naming the row, for a text that the input does not take or that has two labels, and for a
    label of fewer than ten texts.
    """
    found: dict[str, str] = {}
    samples: list[Bytes] = []
    for line, text, label in _read_rows(path):
        if found.setdefault(text, label) != label:
            raise ForgeError(f"{path}: line {line}: its text stands in the file with two labels")
        if len(found) > len(samples):
            try:
                samples.append(encode_text(text, spec))
            except SampleError as error:
                raise ForgeError(f"{path}: line {line}: {error}") from None
    counts = Counter(found.values())
    few = [label for label, count in sorted(counts.items()) if count < FEWEST_PER_LABEL]
    if few or len(counts) < 2:
        why = f"label {few[0][:40]!r} has fewer than {FEWEST_PER_LABEL} different texts" if few else "one label alone"
        raise ForgeError(f"{path}: {why}")
    labels = tuple(sorted(counts))
    return LabelledTexts(np.stack(samples), np.array([labels.index(each) for each in found.values()]), labels)


def _read_rows(path: Path) -> list[tuple[int, str, str]]:
    """Return (line, text, label) of every row. ForgeError if the file is no such table."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = {TEXT_COLUMN, LABEL_COLUMN} - set(reader.fieldnames or ())
            if missing:
                raise ForgeError(f"{path}: has no column {' and no column '.join(sorted(missing))}")
            rows = [(reader.line_num, row[TEXT_COLUMN] or "", (row[LABEL_COLUMN] or "").strip()) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ForgeError(f"{path}: is no CSV of UTF-8: {error}") from None
    for line, _, label in rows:
        if not label or not label.isprintable():
            raise ForgeError(f"{path}: line {line}: has no label")
    if not 0 < len(rows) <= MAX_ROWS:
        raise ForgeError(f"{path}: {len(rows)} rows, 1 to {MAX_ROWS} are taken")
    return rows


def divide_texts(found: LabelledTexts, seed: int) -> TextParts:
    """Divide them at random, each label by itself: 60 % for training, 20 % each for calibration and held out."""
    rng = np.random.default_rng(seed)
    parts: tuple[list[npt.NDArray[np.intp]], ...] = ([], [], [])
    for label in range(len(found.labels)):
        rows = rng.permutation(np.flatnonzero(found.y == label))
        ends = (round(len(rows) * (1 - _CALIBRATION - _HELD_OUT)), round(len(rows) * (1 - _HELD_OUT)))
        for part, chosen in zip(parts, np.split(rows, ends), strict=True):
            part.append(chosen)
    return TextParts(*(found.take(np.sort(np.concatenate(part))) for part in parts))
