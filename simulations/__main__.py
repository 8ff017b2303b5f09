"""`make sim` (`python -m simulations`): one fleet in virtual time, random faults, judged by the history checker."""

import argparse
import json
import sys
import time
from random import Random

import msgspec

from simulations.faults import draw
from simulations.fleet import Fleet, Plan
from wire.exits import Exit


def main(arguments: list[str] | None = None) -> int:
    """0 if the history has no flaw, 40 if it has one."""
    parser = argparse.ArgumentParser(prog="python -m simulations", description="A fleet in virtual time.")
    parser.add_argument("--edges", type=int, default=1000, help="devices (default 1000)")
    parser.add_argument("--minutes", type=float, default=10.0, help="virtual minutes of samples (default 10)")
    parser.add_argument("--faults", type=int, default=5, help="how many things break (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same run (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args(arguments)
    seconds = asked.minutes * 60
    faults = draw(Random(asked.seed), asked.edges, seconds, asked.faults)  # noqa: S311 - a seed is the point
    began = time.perf_counter()
    result = Fleet(Plan(asked.edges, seconds, asked.seed, faults)).run()
    took_s = time.perf_counter() - began
    if asked.json:
        print(json.dumps(msgspec.to_builtins(result), indent=2))
    else:
        print(result.report.text())
        print(f"{result.events} events in {took_s:.1f} s: {result.samples} samples of {asked.edges} devices")
    return Exit.OK if result.report.ok else Exit.CHECK_FAILED


if __name__ == "__main__":
    sys.exit(main())
