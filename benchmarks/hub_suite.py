"""`make bench-hub`: the hub's figures in one table, and which benchmark each comes from."""

from benchmarks import hub_binary, hub_gang, hub_overload, hub_peers, hub_sealed, hub_swap
from benchmarks.bench import Benchmark

HUB_BENCHMARKS: dict[str, Benchmark] = {
    "peers": hub_peers.run,
    "sealed": hub_sealed.run,
    "binary": hub_binary.run,
    "overload": hub_overload.run,
    "swap": hub_swap.run,
    "gang": hub_gang.run,
}
