"""`make bench-hub`: the hub's figures in one table, and which benchmark each comes from."""

from benchmarks.harness.benchmark import Benchmark
from benchmarks.hub import binary, overload, peers, sealed, swap
from benchmarks.sharding import run

HUB_BENCHMARKS: dict[str, Benchmark] = {
    "peers": peers.run,
    "sealed": sealed.run,
    "binary": binary.run,
    "overload": overload.run,
    "swap": swap.run,
    "gang": run.run,
}
