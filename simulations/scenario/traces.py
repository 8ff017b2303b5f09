"""Load traces: samples taken by a whole fleet per step, read from CSV or Parquet (columns `at_s`, `samples`).

Rule: a trace has no gaps. Steps are even and every number is finite and not negative; anything else in a file is an
error that names the line, so that no hole is filled by a guess.
"""

import csv
import importlib.util
import math
from itertools import pairwise
from pathlib import Path

from simulations.scenario.types import TraceRow

COLUMNS = ("at_s", "samples")
MOST_ROWS = 1_000_000
_SAME_STEP = 1e-6  # of a step


class TraceError(Exception):
    """A trace that cannot be followed: one line that names file, row and fault."""


def read_trace(path: Path) -> tuple[TraceRow, ...]:
    """Read a trace from a `.parquet` file or, whatever else its suffix, a CSV file.

    OSError if there is no such file, TraceError if it is not a trace.
    """
    rows = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    try:
        return validate_trace(tuple(TraceRow(at_s, samples) for at_s, samples in rows))
    except TraceError as error:
        raise TraceError(f"{path.name}: {error}") from None


def validate_trace(rows: tuple[TraceRow, ...]) -> tuple[TraceRow, ...]:
    """Validate the rows of a trace and return them.

    TraceError for fewer than two rows, uneven steps, a number that is infinite or negative, or no samples at all.
    """
    if not 2 <= len(rows) <= MOST_ROWS:
        raise TraceError(f"{len(rows)} rows; a trace has 2 to {MOST_ROWS}")
    for number, row in enumerate(rows):
        if not (math.isfinite(row.at_s) and math.isfinite(row.samples) and row.samples >= 0):
            raise TraceError(f"row {number + 1}: {row.samples:g} samples at {row.at_s:g} s: not finite, or negative")
    step = rows[1].at_s - rows[0].at_s
    for number, (last, row) in enumerate(pairwise(rows)):
        wide = row.at_s - last.at_s
        if not abs(wide - step) <= _SAME_STEP * abs(step) or step <= 0:
            raise TraceError(
                f"row {number + 2}: {wide:g} s after the row before, where the first step is {step:g} s: a gap"
            )
    if not any(row.samples for row in rows):
        raise TraceError("no samples at all")
    return rows


def _read_csv(path: Path) -> list[tuple[float, float]]:
    """Read a trace from CSV with a header line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.DictReader(file)
        _check_columns(path, lines.fieldnames or ())
        return [
            (_parse_number(path, at, line, "at_s"), _parse_number(path, at, line, "samples"))
            for at, line in enumerate(lines, 2)
        ]


def _parse_number(path: Path, at: int, line: dict[str, str | None], column: str) -> float:
    """Parse one number of a CSV line. TraceError that names the line."""
    try:
        return float(line[column] or "")
    except ValueError:
        raise TraceError(f"{path.name}: line {at}: {column} is {line[column]!r}, no number: a gap") from None


def _read_parquet(path: Path) -> list[tuple[float, float]]:
    """Read a trace from Parquet. TraceError if pyarrow is missing or the file is no Parquet file."""
    if importlib.util.find_spec("pyarrow") is None:
        raise TraceError(f"{path.name}: Parquet needs pyarrow (pip install pyarrow), or export the trace as CSV")
    parquet = importlib.import_module("pyarrow.parquet")
    arrow = importlib.import_module("pyarrow")
    path.stat()
    try:
        table = parquet.read_table(path)
    except arrow.ArrowException as error:
        raise TraceError(f"{path.name}: is no Parquet file ({str(error)[:80]})") from None
    _check_columns(path, table.column_names)
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    return [
        (_parse_cell(path, at, cell[0]), _parse_cell(path, at, cell[1]))
        for at, cell in enumerate(zip(*columns, strict=True), 1)
    ]


def _parse_cell(path: Path, at: int, cell: object) -> float:
    """One number of a Parquet row. TraceError that names the row."""
    if isinstance(cell, (int, float)):
        return float(cell)
    raise TraceError(f"{path.name}: row {at}: {cell!r} is no number: a gap")


def _check_columns(path: Path, names: object) -> None:
    """Check that both columns are there. TraceError for a missing one."""
    found = list(names) if isinstance(names, (list, tuple)) else []
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise TraceError(f"{path.name}: has no column {missing[0]}; a trace has {' and '.join(COLUMNS)}")
