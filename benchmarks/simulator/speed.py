"""Benchmark: speed of the simulator with the production cores, memory of a million devices, repeatability.

`python -m benchmarks.simulator.speed [--steady 1] [--million 0.1]`: these shares of the two scenarios' devices. A tenth
of a million takes a tenth of the time and of the memory beside what each process needs anyway; `--million 1` is the
figure.
"""

import argparse
import json
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from simulations.regions.run import run_scenario
from simulations.report.outcome import Outcome
from simulations.scenario.types import Scenario
from simulations.scenario_files import load_scenario

STEADY_S, MILLION_S, MILLION_GIB = 330.0, 180.0, 2.0
GIB = 2**30
TWICE = 0.02  # of `partition`'s devices: equal runs are equal at any size


async def run_benchmark(_folder: Path, _bundle: Path, steady: float = 1.0, million: float = 0.1) -> list[Figure]:
    # a million first: what this process held for another run would count as memory of that one
    return [*_measure_million(million), *_measure_steady(steady), _compare_twice()]


def _measure_steady(scale: float) -> list[Figure]:
    outcome = run_scenario(scale_scenario("steady", scale))
    name = f"{outcome.devices:,} devices, 1 virtual hour, {outcome.samples:,} samples, full path, one process"
    return [Figure(name, outcome.wall.seconds, "s", STEADY_S * scale, terms=(_describe_terms(outcome),))]


def _measure_million(scale: float) -> list[Figure]:
    outcome = run_scenario(scale_scenario("million", scale), processes=2, bulk=True)
    name = f"{outcome.devices:,} devices, 24 virtual hours, {outcome.samples:,} samples, in bulk, 2 processes"
    memory = f"memory of that run, {outcome.devices:,} devices, at its peak in all processes"
    return [
        Figure(name, outcome.wall.seconds, "s", MILLION_S * scale, terms=(_describe_terms(outcome),)),
        Figure(memory, outcome.wall.peak_rss_bytes / GIB, "GiB", MILLION_GIB),
    ]


def _compare_twice() -> Figure:
    scenario = scale_scenario("region-loss", TWICE)
    seen = {_outcome_digest(run_scenario(scenario, processes)) for processes in (1, 1, 2)}
    return Figure("different reports of one scenario and seed, run twice and once in 2 processes", len(seen) - 1, "", 0)


def scale_scenario(name: str, scale: float) -> Scenario:
    scenario = load_scenario(name)
    return msgspec.structs.replace(scenario, devices=max(20, int(scenario.devices * scale)))


def _describe_terms(outcome: Outcome) -> str:
    history, seconds = outcome.history, outcome.wall.seconds
    return (
        f"{outcome.samples / seconds:,.0f} samples/s, {outcome.events / seconds:,.0f} kernel events/s, "
        f"{history.accepted:,} asked, {history.lost} lost, {history.doubled} doubled"
    )


def _outcome_digest(outcome: Outcome) -> str:
    return sha256(json.dumps(outcome.to_plain(wall=False), sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator.speed", description=__doc__)
    parser.add_argument("--steady", type=float, default=1.0, help="share of the devices of `steady` (default 1)")
    parser.add_argument("--million", type=float, default=0.1, help="share of those of `million` (default 0.1)")
    asked = parser.parse_args()
    sys.exit(run_alone(partial(run_benchmark, steady=asked.steady, million=asked.million)))
