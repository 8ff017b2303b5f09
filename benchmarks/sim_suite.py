"""`make bench-sim`: the simulator's figures in one table, and which benchmark each comes from."""

from benchmarks import sim_fuzz, sim_live, sim_speed
from benchmarks.bench import Benchmark

SIM_BENCHMARKS: dict[str, Benchmark] = {
    "speed": sim_speed.run,
    "fuzz": sim_fuzz.run,
    "live_held": sim_live.held,
    "live_against": sim_live.against,
}
