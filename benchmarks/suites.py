"""Suites of benchmarks: the hub (`make bench-hub`), the simulator (`bench-sim`), the forge's parts.

Each suite names its benchmarks; their figures make one table.

Rule: bundles and trained nets are made once and kept (`SKERRY_ZOO_BUNDLES`, `SKERRY_ZOO_CACHE`), everything else is
measured anew; `SKERRY_DATA` names the data. From nothing it takes hours on two cores, nearly all of it training.
"""

from pathlib import Path

import torch

from benchmarks.console import first_sight, pages
from benchmarks.forge import datasets
from benchmarks.forge.parts import quantisation, risk, routing
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.figures import Figure
from benchmarks.hub import binary, overload, peers, sealed, swap
from benchmarks.jobs import claims, kills, notice, online
from benchmarks.llm import counters, fairness, gateway, litellm, remote, trouble
from benchmarks.region import goodput, intake, store, stories
from benchmarks.sharding import machines, run
from benchmarks.simulator import fuzz, live, scaling, speed
from models.forge.evaluation.outcomes import read_outcomes

HUB_BENCHMARKS: dict[str, Benchmark] = {
    "peers": peers.run_benchmark,
    "sealed": sealed.run_benchmark,
    "binary": binary.run_benchmark,
    "overload": overload.run_benchmark,
    "swap": swap.run_benchmark,
    "gang": run.run_benchmark,
}


LLM_BENCHMARKS: dict[str, Benchmark] = {
    "gateway": gateway.run_benchmark,
    "killed": trouble.run_killed,
    "overload": trouble.run_overload,
    "counters": counters.run_doubles,
    "fairness": fairness.run_fairness,
    "hang-ups": fairness.run_hang_ups,
}


# Beside other people's servers, each in an environment of its own; without one its rows say so.
LLM_PEER_BENCHMARKS: dict[str, Benchmark] = {
    "remote": remote.run_benchmark,
    "vllm": counters.run_vllm,
    "litellm": litellm.run_benchmark,
}


# Of several hubs over one PostgreSQL; about eight minutes on two cores.
REGION_BENCHMARKS: dict[str, Benchmark] = {
    "store": store.run_benchmark,
    "intake": intake.run_benchmark,
    "goodput": goodput.run_benchmark,
    "stories": stories.run_benchmark,
}


# Work that outlives its request, and capacity that follows it; about twelve minutes on two cores.
JOBS_BENCHMARKS: dict[str, Benchmark] = {
    "claims": claims.run_benchmark,
    "online": online.run_benchmark,
    "kills": kills.run_benchmark,
    "scaling": scaling.run_benchmark,
    "notice": notice.run_benchmark,
}


# Of ranks on the nodes of a Ray cluster of this machine; about four minutes on two cores.
RAY_BENCHMARKS: dict[str, Benchmark] = {"steps": machines.run_steps, "losses": machines.run_losses}


# The hub's pages in Chromium; the second sets everything up anew, from the packages' index.
CONSOLE_BENCHMARKS: dict[str, Benchmark] = {
    "pages": pages.run_benchmark,
    "first_sight": first_sight.run_benchmark,
}


SIM_BENCHMARKS: dict[str, Benchmark] = {
    "speed": speed.run_benchmark,
    "scaling": scaling.run_benchmark,
    "fuzz": fuzz.run_benchmark,
    "live_held": live.measure_held,
    "live_against": live.measure_against,
}


ROUTING_SEEDS = 3


async def run_routing(_folder: Path, _bundle: Path) -> list[Figure]:
    return [
        figure
        for name in routing.ANCHORS
        for figure in routing.replay_set(name, ROUTING_SEEDS, datasets.bundles_folder() / "routing", domain=False)
    ]


async def run_risk(_folder: Path, _bundle: Path) -> list[Figure]:
    """Of each set the promise that was broken most often."""
    base = datasets.bundles_folder()
    files = sorted([*base.glob("*-features-*.report/outcomes-heldout.npz"), *(base / "routing").glob("*.npz")])
    worst = []
    for path in files:
        name = path.stem if path.parent.name == "routing" else path.parent.name.removesuffix(".report")
        found = risk.judge_risks(name, read_outcomes(path), risk.RESPLITS, ())
        worst += [max(found, key=lambda figure: figure.value)] if found else []
    return worst


async def run_quantised(_folder: Path, _bundle: Path) -> list[Figure]:
    torch.set_num_threads(1)
    rows = [quantisation.measure_case(case) for case in quantisation.CASES]
    first, *others = quantisation.build_figures(rows)
    terms = tuple(
        f"{row.case.name}: ships {row.choice.shipped.precision}, {row.choice.shipped.size_bytes / 1e3:,.0f} kB of "
        f"{row.choice.candidates[0].size_bytes / 1e3:,.0f}, p50 x {row.choice.shipped.ratio:.2f}"
        for row in rows
    )
    return [first._replace(terms=terms), *others]
