"""Benchmark: random fault schedules through the production cores: number, broken rules, and time.

`python -m benchmarks.simulator.fuzz [--schedules 1000]`.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from simulations.fault_fuzzing.fuzz import FuzzConfig, search_schedules

SCHEDULES = 1000
PROCESSES = 2


async def run_benchmark(folder: Path, _bundle: Path, schedules: int = SCHEDULES) -> list[Figure]:
    found = search_schedules(FuzzConfig(schedules, processes=PROCESSES, folder=folder))
    struck = ", ".join(f"{count:,} {kind}" for kind, count in found.struck.items())
    terms = (
        f"{found.accepted:,} questions accepted, {found.effects:,} verdicts stored, {found.late:,} corrections; "
        f"{found.events:,} events in {found.wall_s:.0f} s",
        f"faults: {struck}",
        *(f"seed {each.seed}: {each.story}" for each in found.findings),
    )
    name = f"random fault schedules that break a law, of {found.schedules:,} in {PROCESSES} processes"
    return [Figure(name, len(found.findings), "", 0, terms=terms)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator.fuzz", description=__doc__)
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help=f"how many (default {SCHEDULES})")
    sys.exit(run_alone(partial(run_benchmark, schedules=parser.parse_args().schedules)))
