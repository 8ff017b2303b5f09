"""Command `python -m benchmarks.large` (`make bench-large`): runs the rows of large models and writes their part.

Each row is a process of its own. What is measured is kept in a folder, so that a run that was cut goes on where it
was; a row that was measured on other code is measured anew. `--only ROW` measures one row anew, keeps and prints it.
The part of RESULTS.md is written once every row is there.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.figures import Figure, format_line
from benchmarks.harness.machine import read_load
from benchmarks.harness.results import RESULTS, BenchmarkSuite, render_part, replace_part
from benchmarks.large import cards, devices, encoders, escalation, loading, on_demand, ranks, tensor_parallel
from benchmarks.sharding import run as sharding

KEPT = Path(".cache/bench-large")
ROWS: dict[str, Callable[[Path], list[Figure]]] = {
    "device": devices.measure_device_bytes,
    "one-process": loading.measure_one_process,
    "two-ranks": loading.measure_two_ranks,
    "on-demand": on_demand.measure_on_demand,
    "parallel": sharding.measure_parallel,
    "encoders": encoders.measure_encoders,
    "dtensor": tensor_parallel.measure_tensor_parallel,
    "lost-ranks": ranks.measure_lost_ranks,
    "escalation": escalation.measure_cpu_escalation,
    "cards": cards.measure_cards,
}
SUITE = BenchmarkSuite("Large models on the hub", "make bench-large", {})


class MeasuredRow(NamedTuple):
    """Figures of one row, the code that gave them, the load before it, and what it took."""

    code: str
    load: float
    seconds: float
    figures: tuple[Figure, ...]


def main() -> int:
    """0 if every limit was held that could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(ROWS), help="measure this row anew; writes no page")
    parser.add_argument("--anew", action="store_true", help="forget what an earlier run measured")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--row", choices=sorted(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        return _measure_row(asked.row, asked.into)
    names, rows = asked.only or list(ROWS), list[MeasuredRow]()
    for at, name in enumerate(names, 1):
        print(f"[{at}/{len(names)}] {name} ...", file=sys.stderr, flush=True)
        rows.append(_run_row(name, anew=bool(asked.anew or asked.only)))
    figures = [figure for row in rows for figure in row.figures]
    for figure in () if asked.json else figures:
        print(format_line(figure), *(f"    {term}" for term in figure.terms), sep="\n")
    if asked.json:
        print(json.dumps([_dump(figure) for figure in figures]))
    if not asked.only:
        load, seconds = max(row.load for row in rows), sum(row.seconds for row in rows)
        replace_part("large", render_part(SUITE, figures, seconds, load))
        print(f"written: {RESULTS}", file=sys.stderr)
    return 0 if all(figure.held or math.isnan(figure.value) for figure in figures) else 1


def _run_row(name: str, *, anew: bool) -> MeasuredRow:
    """A row that is kept and was measured on this code, or else is measured now in a process of its own."""
    kept = KEPT / f"{name}.json"
    if not anew and (found := read_kept_row(kept, describe_code())):
        return found
    kept.unlink(missing_ok=True)
    words = [sys.executable, "-m", "benchmarks.large", "--row", name, "--into", str(kept)]
    began, load = time.monotonic(), read_load()
    done = subprocess.run(words, check=False, stdout=sys.stderr)
    if row := read_kept_row(kept, describe_code()):
        return row
    why = (f"its process ended with {done.returncode}" if done.returncode else "the checkout changed meanwhile",)
    return MeasuredRow("", load, time.monotonic() - began, (Figure(name, math.nan, "", math.nan, terms=why),))


def describe_code() -> str:
    """Return what names the code of this checkout: its commit, and a digest of what was changed since, if anything."""
    commit = _ask_git("rev-parse", "HEAD").strip()
    changed = _ask_git("diff", "HEAD", "--", ":/", f":(exclude){RESULTS}")
    return f"{commit} {sha256(changed.encode()).hexdigest()[:12]}" if changed else commit


def _ask_git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def read_kept_row(kept: Path, code: str) -> MeasuredRow | None:
    """The row in a file; None if there is none of this code."""
    if not kept.exists():
        return None
    told = json.loads(kept.read_text(encoding="utf-8"))
    if not isinstance(told, dict) or told["code"] != code:
        return None
    return MeasuredRow(code, told["load"], told["seconds"], tuple(_load(each) for each in told["figures"]))


def _measure_row(name: str, into: Path) -> int:
    began, load, code = time.monotonic(), read_load(), describe_code()
    with tempfile.TemporaryDirectory(prefix="skerry-bench-large-") as folder:
        figures = ROWS[name](Path(folder))
    told = {"code": code, "load": load, "seconds": time.monotonic() - began, "figures": [_dump(f) for f in figures]}
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps(told), encoding="utf-8")
    return 0


def _dump(figure: Figure) -> dict[str, object]:
    """A figure as JSON values; what was not measured is null."""
    told: dict[str, object] = {**figure._asdict(), "held": figure.held}
    return {name: None if isinstance(each, float) and math.isnan(each) else each for name, each in told.items()}


def _load(told: dict[str, object]) -> Figure:
    held = {name: math.nan if told[name] is None else told[name] for name in Figure._fields}
    held["terms"] = tuple(held["terms"])  # type: ignore[arg-type]
    return Figure(**held)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
