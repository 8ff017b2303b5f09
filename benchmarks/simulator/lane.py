"""Benchmark: the simulator's bulk lane beside the full path, every figure of the report over several seeds.

`python -m benchmarks.simulator.lane [--scenario steady] [--devices 1000] [--hours 0.25] [--seeds 10]`: runs both ways
with each seed, prints least, mean and greatest value of the full path beside the lane's mean, and the processor time of
each. Events keep their place in the run. Exit 1 if a figure is outside the spread of seeds.
"""

import argparse
import sys
import time
from collections.abc import Callable

import msgspec

from benchmarks.simulator.spread import FigureSpread, compare_spreads
from simulations.regions.run import run_scenario
from simulations.report.outcome import Outcome
from simulations.scenario.types import Scenario
from simulations.scenario_files import load_scenario


def shorten_scenario(scenario: Scenario, devices: int, duration_s: float) -> Scenario:
    """The scenario with fewer devices and less time; each event happens at the same part of the time."""
    part = duration_s / scenario.duration_s
    events = tuple(
        msgspec.structs.replace(each, at_s=each.at_s * part, lasts_s=each.lasts_s * part) for each in scenario.events
    )
    return msgspec.structs.replace(scenario, devices=devices, duration_s=duration_s, events=events)


def _time_run(run: Callable[[], Outcome]) -> tuple[Outcome, float]:
    began_s = time.process_time()
    return run(), time.process_time() - began_s


def _format_row(each: FigureSpread) -> str:
    mark = "inside" if each.is_inside else "OUTSIDE"
    return f"{each.name:32} {each.least:14.5g} {each.mean:14.5g} {each.most:14.5g} {each.other:14.5g}  {mark}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator.lane", description=__doc__)
    parser.add_argument("--scenario", default="steady", help="a shipped name or a file (default steady)")
    parser.add_argument("--devices", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--hours", type=float, default=0.25, help="of virtual time (default 0.25)")
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 1 on (default 10)")
    asked = parser.parse_args()
    scenario = shorten_scenario(load_scenario(asked.scenario), asked.devices, asked.hours * 3600.0)
    full, lane, full_s, lane_s = list[Outcome](), list[Outcome](), 0.0, 0.0
    for seed in range(1, asked.seeds + 1):
        one = msgspec.structs.replace(scenario, seed=seed)
        for kept, bulk in ((full, False), (lane, True)):
            outcome, took_s = _time_run(lambda one=one, bulk=bulk: run_scenario(one, bulk=bulk))  # type: ignore[misc]
            kept.append(outcome)
            full_s, lane_s = full_s + took_s * (not bulk), lane_s + took_s * bulk
        print(f"seed {seed}: {full[-1].samples:,} samples", file=sys.stderr, flush=True)
    found = compare_spreads(full, lane)
    print(f"{'figure':32} {'least':>14} {'mean':>14} {'most':>14} {'bulk, mean':>14}")
    print("\n".join(map(_format_row, found)))
    share = sum(each.counts.get("bulk.samples", 0) for each in lane) / sum(each.samples for each in lane)
    samples = sum(each.samples for each in full)
    times = f"full {full_s / samples * 1e6:.1f} us a sample, bulk {lane_s / samples * 1e6:.1f}"
    print(f"processor time: {times}; {share:.1%} in bulk")
    return int(not all(each.is_inside for each in found))


if __name__ == "__main__":
    sys.exit(main())
