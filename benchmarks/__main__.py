"""Command `python -m benchmarks`: runs a suite (main, trust, hub, sim ...) and writes its part of RESULTS.md.

Rule: a suite's part of the page is replaced as a whole, with the machine and the commit it was measured on.
"""

import argparse
import json
import math
import sys
import time

from benchmarks import suites
from benchmarks.agent import camera, first_answer, flash_writes, local_answer, memory, round_trip, sensor_rate
from benchmarks.harness.benchmark import print_figures, run_measured
from benchmarks.harness.figures import Figure
from benchmarks.harness.machine import read_load
from benchmarks.harness.results import RESULTS, BenchmarkSuite, render_part, replace_part
from benchmarks.intake import mqtt
from benchmarks.rollout import crash_loop, run
from benchmarks.trust import client, enrollment
from wire.process.main import run_to_exit

SUITES = {
    "main": BenchmarkSuite(
        "The main job",
        "make bench",
        {
            "round_trip": round_trip.run_benchmark,
            "local_answer": local_answer.run_benchmark,
            "flash_writes": flash_writes.run_benchmark,
            "agent_memory": memory.run_benchmark,
            "intake": mqtt.run_benchmark,
            "first_answer": first_answer.run_benchmark,
        },
    ),
    "trust": BenchmarkSuite(
        "Trust", "make bench-trust", {"client": client.run_benchmark, "enrolment": enrollment.run_benchmark}
    ),
    "hub": BenchmarkSuite("The hub", "make bench-hub", suites.HUB_BENCHMARKS),
    "llm": BenchmarkSuite("Language models behind the hub", "make bench-llm", suites.LLM_BENCHMARKS),
    "llm-peers": BenchmarkSuite(
        "Other people's servers: vLLM, MLServer, litellm", "make bench-llm-peers", suites.LLM_PEER_BENCHMARKS
    ),
    "region": BenchmarkSuite("A region of several hubs", "make bench-region", suites.REGION_BENCHMARKS),
    "jobs": BenchmarkSuite("Jobs and capacity", "make bench-jobs", suites.JOBS_BENCHMARKS),
    "ray": BenchmarkSuite("A model over several machines", "make bench-ray", suites.RAY_BENCHMARKS),
    "console": BenchmarkSuite("The console", "make bench-console", suites.CONSOLE_BENCHMARKS),
    "sources": BenchmarkSuite(
        "Sources", "make bench-sources", {"camera": camera.run_benchmark, "sensors": sensor_rate.run_benchmark}
    ),
    "sim": BenchmarkSuite("The simulator", "make bench-sim", suites.SIM_BENCHMARKS),
    "rollout": BenchmarkSuite(
        "Rollouts", "make bench-rollout", {"fleet": run.run_benchmark, "device": crash_loop.run_benchmark}
    ),
    "forge-parts": BenchmarkSuite(
        "Parts of the forge: routing, risk, precisions",
        "make bench-forge-parts",
        {
            "routing": suites.run_routing,
            "risk": suites.run_risk,
            "quantised": suites.run_quantised,
        },
    ),
}


def main() -> int:
    """0 if every limit was held. Without --only the suite's part of the page is written.

    A benchmark that fails is a figure that was not measured, with the reason; the others go on.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=sorted(SUITES), default="main")
    parser.add_argument("--only", action="append", help="run only this one of the suite; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args()
    suite = SUITES[asked.suite]
    names = asked.only or list(suite.benchmarks)
    for name in names:
        if name not in suite.benchmarks:
            parser.error(f"{name!r} is not in {asked.suite}: {', '.join(suite.benchmarks)}")
    began, load = time.monotonic(), read_load()
    figures = list[Figure]()
    for at, name in enumerate(names, 1):
        print(f"[{at}/{len(names)}] {name} ...", file=sys.stderr, flush=True)
        found = run_measured(name, suite.benchmarks[name])
        figures += found
        print_figures(found, sys.stderr if asked.json else sys.stdout)
    if asked.json:
        print(json.dumps([_describe_figure(figure) for figure in figures]))
    if len(names) == len(suite.benchmarks):
        replace_part(asked.suite, render_part(suite, figures, time.monotonic() - began, load))
        print(f"written: {RESULTS}", file=sys.stderr)
    return 0 if all(figure.held for figure in figures) else 1


def _describe_figure(figure: Figure) -> dict[str, object]:
    """The figure as JSON, in which there is no NaN."""
    told = figure._asdict() | {"held": figure.held}
    return {name: None if isinstance(each, float) and math.isnan(each) else each for name, each in told.items()}


if __name__ == "__main__":
    sys.exit(run_to_exit("python -m benchmarks", main))
