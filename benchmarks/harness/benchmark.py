"""Runs one benchmark in a temporary folder with the demo's bundle, and prints its figures and their terms."""

import asyncio
import math
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TextIO

from benchmarks.harness.figures import Figure, format_line
from models.forge.pipeline.demo import load_demo_bundle, locate_cache_folder
from models.zoo.sources import MissingDataError

Benchmark = Callable[[Path, Path], Coroutine[Any, Any, list[Figure]]]


def run_alone(benchmark: Benchmark) -> int:
    """Run and print one benchmark; exit code 1 if a limit was not held."""
    return 0 if all(figure.held for figure in run_and_print(benchmark)) else 1


def run_and_print(benchmark: Benchmark) -> list[Figure]:
    """Run one benchmark and print what it found."""
    figures = run_measured(benchmark.__module__, benchmark)
    print_figures(figures, sys.stdout)
    return figures


async def measure_row(name: str, row: Coroutine[Any, Any, list[Figure]]) -> list[Figure]:
    """The figures of a row; of one that fails a figure that was not measured, with the reason.

    MissingDataError is raised: what a person has to fetch first is no figure.
    """
    ended = await asyncio.gather(row, return_exceptions=True)
    found: list[Figure] | BaseException = ended[0]
    if isinstance(found, MissingDataError):
        raise found
    if isinstance(found, BaseException):
        traceback.print_exception(found)
        return [Figure(name, math.nan, "", math.nan, terms=(f"it failed: {type(found).__name__}: {found}",))]
    return found


def run_measured(name: str, benchmark: Benchmark) -> list[Figure]:
    """Run one benchmark in a folder of its own, with the demo's bundle; see `measure_row` for one that fails."""
    bundle = load_demo_bundle(locate_cache_folder()).path
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as folder:
        return asyncio.run(measure_row(name, benchmark(Path(folder), bundle)))


def print_figures(figures: Iterable[Figure], out: TextIO) -> None:
    """Print figures with their terms."""
    for figure in figures:
        print(format_line(figure), *(f"    {term}" for term in figure.terms), sep="\n", flush=True, file=out)
