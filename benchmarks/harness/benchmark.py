"""Runs one benchmark in a temporary folder with the demo's bundle, and prints its figures and their terms."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Figure, format_line
from models.forge.pipeline.demo import load_demo_bundle, locate_cache_folder

Benchmark = Callable[[Path, Path], Coroutine[Any, Any, list[Figure]]]


def run_alone(benchmark: Benchmark) -> int:
    """Run and print one benchmark; exit code 1 if a limit was not held."""
    return 0 if all(figure.held for figure in run_and_print(benchmark)) else 1


def run_and_print(benchmark: Benchmark) -> list[Figure]:
    """Run one benchmark in a folder of its own, with the demo's bundle, and print what it found."""
    bundle = load_demo_bundle(locate_cache_folder()).path
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as folder:
        figures = asyncio.run(benchmark(Path(folder), bundle))
    for figure in figures:
        print(format_line(figure), *(f"    {term}" for term in figure.terms), sep="\n", flush=True)
    return figures
