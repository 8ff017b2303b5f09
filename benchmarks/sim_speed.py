"""How fast the simulator is with the production cores, how much memory a million devices take, and whether it repeats.

`python -m benchmarks.sim_speed [--scale 0.01]`: `scale` times the devices of `steady` and of `million`.
"""

import argparse
import json
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from benchmarks.bench import alone
from benchmarks.figures import Figure
from simulations.outcome import Outcome
from simulations.reader import load_scenario
from simulations.run import run as simulate
from simulations.scenario import Scenario

STEADY_S, MILLION_S, MILLION_GIB = 90.0, 180.0, 2.0
GIB = 2**30
TWICE = 0.02  # of `partition`'s devices: equal runs are equal at any size


async def run(_folder: Path, _bundle: Path, scale: float = 1.0) -> list[Figure]:
    return [*_steady(scale), *_million(scale), _twice()]


def _steady(scale: float) -> list[Figure]:
    outcome = simulate(scaled("steady", scale))
    name = f"{outcome.devices:,} devices, 1 virtual hour, {outcome.samples:,} samples, a fifth asked, one process"
    return [Figure(name, outcome.wall.seconds, "s", STEADY_S, terms=(_terms(outcome),))]


def _million(scale: float) -> list[Figure]:
    outcome = simulate(scaled("million", scale), processes=2)
    name = f"{outcome.devices:,} devices, 24 virtual hours, {outcome.samples:,} samples, a fifth asked, 2 processes"
    memory = f"memory of that run, {outcome.devices:,} devices, at its peak in all processes"
    return [
        Figure(name, outcome.wall.seconds, "s", MILLION_S, terms=(_terms(outcome),)),
        Figure(memory, outcome.wall.peak_rss_bytes / GIB, "GiB", MILLION_GIB),
    ]


def _twice() -> Figure:
    scenario = scaled("region-loss", TWICE)
    seen = {_digest(simulate(scenario, processes)) for processes in (1, 1, 2)}
    return Figure("different reports of one scenario and seed, run twice and once in 2 processes", len(seen) - 1, "", 0)


def scaled(name: str, scale: float) -> Scenario:
    scenario = load_scenario(name)
    return msgspec.structs.replace(scenario, devices=max(20, int(scenario.devices * scale)))


def _terms(outcome: Outcome) -> str:
    history, seconds = outcome.history, outcome.wall.seconds
    return (
        f"{outcome.samples / seconds:,.0f} samples/s, {outcome.events / seconds:,.0f} kernel events/s, "
        f"{history.accepted:,} asked, {history.lost} lost, {history.doubled} doubled"
    )


def _digest(outcome: Outcome) -> str:
    return sha256(json.dumps(outcome.plain(wall=False), sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sim_speed", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="times the devices (default 1)")
    sys.exit(alone(partial(run, scale=parser.parse_args().scale)))
