"""Command `python -m benchmarks.large` (`make bench-large`): runs the rows of large models and writes their part.

Each row is a process of its own. What is measured is kept in a folder, so that a run that was cut goes on where it
was; `--only ROW` measures one row anew and prints it. The part of RESULTS.md is written once every row is there.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.__main__ import BenchmarkSuite, render_part, replace_part
from benchmarks.harness.figures import Figure, format_line
from benchmarks.harness.machine import read_load
from benchmarks.large import cards, devices, encoders, escalation, loading, ranks, tensor_parallel
from benchmarks.sharding import run as sharding

KEPT = Path(".cache/bench-large")
ROWS: dict[str, Callable[[Path], list[Figure]]] = {
    "device": devices.measure_device_bytes,
    "one-process": loading.measure_one_process,
    "two-ranks": loading.measure_two_ranks,
    "parallel": sharding.measure_parallel,
    "encoders": encoders.measure_encoders,
    "dtensor": tensor_parallel.measure_tensor_parallel,
    "lost-ranks": ranks.measure_lost_ranks,
    "escalation": escalation.measure_cpu_escalation,
    "cards": cards.measure_cards,
}
SUITE = BenchmarkSuite("Large models on the hub", "make bench-large", {})


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
    began, load, figures = time.monotonic(), read_load(), list[Figure]()
    names = asked.only or list(ROWS)
    for at, name in enumerate(names, 1):
        print(f"[{at}/{len(names)}] {name} ...", file=sys.stderr, flush=True)
        figures += _run_row(name, anew=bool(asked.anew or asked.only))
    for figure in () if asked.json else figures:
        print(format_line(figure), *(f"    {term}" for term in figure.terms), sep="\n")
    if asked.json:
        print(json.dumps([_dump(figure) for figure in figures]))
    if not asked.only:
        replace_part("large", render_part(SUITE, figures, time.monotonic() - began, load))
    return 0 if all(figure.held or math.isnan(figure.value) for figure in figures) else 1


def _run_row(name: str, *, anew: bool) -> list[Figure]:
    """The figures of a row: those that are kept, or measured now in a process of their own."""
    kept = KEPT / f"{name}.json"
    if anew:
        kept.unlink(missing_ok=True)
    if not kept.exists():
        words = [sys.executable, "-m", "benchmarks.large", "--row", name, "--into", str(kept)]
        done = subprocess.run(words, check=False, stdout=sys.stderr)
        if done.returncode:
            why = (f"its process ended with {done.returncode}",)
            return [Figure(name, math.nan, "", math.nan, terms=why)]
    return [_load(each) for each in json.loads(kept.read_text(encoding="utf-8"))]


def _measure_row(name: str, into: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="skerry-bench-large-") as folder:
        figures = ROWS[name](Path(folder))
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps([_dump(figure) for figure in figures]), encoding="utf-8")
    return 0


def _dump(figure: Figure) -> dict[str, object]:
    """A figure as JSON values; what was not measured is null."""
    return {**figure._asdict(), "value": None if math.isnan(figure.value) else figure.value, "held": figure.held}


def _load(told: dict[str, object]) -> Figure:
    held = {name: told[name] for name in Figure._fields}
    held["value"] = math.nan if held["value"] is None else held["value"]
    held["terms"] = tuple(held["terms"])  # type: ignore[arg-type]
    return Figure(**held)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
