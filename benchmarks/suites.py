"""Suites of benchmarks: the hub (`make bench-hub`), the simulator (`bench-sim`), the forge (`bench-forge`).

Each suite names its benchmarks; their figures make one table.

Rule: bundles and trained nets are made once and kept (`SKERRY_ZOO_BUNDLES`, `SKERRY_ZOO_CACHE`), everything else is
measured anew; `SKERRY_DATA` names the data. From nothing it takes hours on two cores, nearly all of it training.
"""

from pathlib import Path

import torch

from benchmarks.forge import datasets, quantisation
from benchmarks.forge import risk as forge_risk
from benchmarks.forge import routing as forge_routing
from benchmarks.forge import text as forge_text
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.figures import Figure
from benchmarks.hub import binary, overload, peers, sealed, swap
from benchmarks.sharding import run
from benchmarks.simulator import fuzz, live, speed
from models.forge.evaluation.outcomes import read_outcomes

HUB_BENCHMARKS: dict[str, Benchmark] = {
    "peers": peers.run,
    "sealed": sealed.run,
    "binary": binary.run,
    "overload": overload.run,
    "swap": swap.run,
    "gang": run.run,
}


SIM_BENCHMARKS: dict[str, Benchmark] = {
    "speed": speed.run,
    "fuzz": fuzz.run,
    "live_held": live.held,
    "live_against": live.against,
}


ROUTING_SEEDS = 3


async def sets(_folder: Path, _bundle: Path) -> list[Figure]:
    return datasets.judge(list(datasets.CASES))


async def text(_folder: Path, _bundle: Path) -> list[Figure]:
    bundle = forge_text.forged(datasets.bundles_folder() / "clinc150")
    rows, figures = forge_text.measured(bundle)
    terms = tuple(
        f"{row.name}: {row.accuracy:.2f} in scope, {row.recall:.1f} out of scope, asked {row.asked:.1f} %"
        for row in rows
    )
    return [figures[0]._replace(terms=terms), *figures[1:]]


async def routing(_folder: Path, _bundle: Path) -> list[Figure]:
    return [
        figure
        for name in forge_routing.ANCHORS
        for figure in forge_routing.replay(name, ROUTING_SEEDS, datasets.bundles_folder() / "routing", domain=False)
    ]


async def risk(_folder: Path, _bundle: Path) -> list[Figure]:
    """Of each set the promise that was broken most often."""
    base = datasets.bundles_folder()
    files = sorted([*base.glob("*.report/outcomes-heldout.npz"), *(base / "routing").glob("*.npz")])
    worst = []
    for path in files:
        name = path.stem if path.parent.name == "routing" else path.parent.name.removesuffix(".report")
        found = forge_risk.judge(name, read_outcomes(path), forge_risk.RESPLITS, ())
        worst += [max(found, key=lambda figure: figure.value)] if found else []
    return worst


async def quantised(_folder: Path, _bundle: Path) -> list[Figure]:
    torch.set_num_threads(1)
    rows = [quantisation.measured(case) for case in quantisation.CASES]
    first, *others = quantisation.figures(rows)
    terms = tuple(
        f"{row.case.name}: ships {row.choice.shipped.precision}, {row.choice.shipped.size_bytes / 1e3:,.0f} kB of "
        f"{row.choice.candidates[0].size_bytes / 1e3:,.0f}, p50 x {row.choice.shipped.ratio:.2f}"
        for row in rows
    )
    return [first._replace(terms=terms), *others]
