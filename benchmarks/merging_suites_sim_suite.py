"""`make bench-sim`: the simulator's figures in one table, and which benchmark each comes from."""

from benchmarks.harness.benchmark import Benchmark
from benchmarks.simulator import fuzz, live, speed

SIM_BENCHMARKS: dict[str, Benchmark] = {
    "speed": speed.run,
    "fuzz": fuzz.run,
    "live_held": live.held,
    "live_against": live.against,
}
