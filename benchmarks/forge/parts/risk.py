"""Benchmark: calibrated risk bounds, 1,000 calibrations per set of outcomes, each checked on the other half.

Rule: a promise is about the population that samples come from. Drawn with replacement from the recorded outcomes, they
have exactly these as population, whose risk is known without error: that column is judged. The others are shown.
`python -m benchmarks.forge.parts.risk [--resplits N] FILE.npz ...` (outcomes.npz of a forged bundle, or of
forge_routing).
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness.figures import Figure, format_line
from models.forge.data.types import ForgeError
from models.forge.evaluation.outcomes import Outcomes, read_outcomes
from models.forge.evaluation.risk_control import (
    ProvenThreshold,
    RiskGoal,
    RiskKind,
    check_goal,
    find_lowest_threshold,
    minimum_calibration,
)

RESPLITS = 1000
CONFIDENCE = 0.95
_HEAD = (
    "| set | n | risk of | r | delta | broken: drawn from the set as population | broken: random halves, judged on the "
    "whole | random halves, rate on the other half above r | proved nothing | kept |\n|" + "---|" * 10
)


class GuaranteeCoverage(NamedTuple):
    """How often, of `resplits` simulated calibrations, the true risk was above the guaranteed one.

    `refused`: calibrations that proved nothing, and so broke nothing.

    `drawn`: calibration sets drawn with replacement from the outcomes, which are then the whole population: its risk is
    known exactly, so this is the figure the guarantee is about. `halves`: random halves without replacement, evaluated
    on the whole population. `rest`: the same halves evaluated on the other half alone: that rate has noise of its own
    (as much as the calibration's) and is above `max_risk` more often than the true one is.
    """

    resplits: int
    drawn: int
    halves: int
    rest: int
    refused: int
    kept: float


def simulate_coverage(outcomes: Outcomes, wanted: RiskGoal, resplits: int = 1000, seed: int = 0) -> GuaranteeCoverage:
    """Repeat the calibration `resplits` times on half of the outcomes and count broken guarantees.

    See `GuaranteeCoverage`. Samples are drawn one by one, so groups are left out of account.
    """
    outcomes = replace(outcomes, groups=np.zeros(0, np.int64))
    rng = np.random.default_rng(seed)
    size = len(outcomes) // 2
    check_goal(outcomes[:size], wanted)
    drawn = halves = rest = refused = 0
    kept = 0.0
    for _ in range(resplits):
        order = rng.permutation(len(outcomes))
        again = find_lowest_threshold(outcomes[rng.integers(0, len(order), size)], wanted, rng)
        drawn += again is not None and _population_risk(outcomes, again) > wanted.max_risk
        found = find_lowest_threshold(outcomes[order[:size]], wanted, rng)
        refused += found is None
        if found:
            halves += _population_risk(outcomes, found) > wanted.max_risk
            rest += _population_risk(outcomes[order[size:]], found) > wanted.max_risk
            kept += float((outcomes.confidence >= found.threshold).mean())
    return GuaranteeCoverage(resplits, drawn, halves, rest, refused, kept / resplits)


def _population_risk(population: Outcomes, promise: ProvenThreshold) -> float:
    kept = population.confidence >= promise.threshold
    wrong = kept & ~population.edge_right
    if promise.wanted.risk is RiskKind.LOCAL:
        return float(wrong.sum() / max(kept.sum(), 1))
    if promise.wanted.risk is RiskKind.PAIR:
        wrong |= ~kept & ~population.hub_right
    return float(wrong.mean())


def choose_risks(outcomes: Outcomes) -> tuple[float, ...]:
    """Round risks worth asking for: one the best-kept answers can meet, and about half of the edge's own."""
    own = 1 - float(outcomes.edge_right.mean())
    return tuple(sorted({max(0.01, round(own * share, 2)) for share in (0.25, 0.5, 0.75)}))


def judge_risks(name: str, outcomes: Outcomes, resplits: int, max_risks: Sequence[float]) -> list[Figure]:
    figures = []
    for max_risk in max_risks or choose_risks(outcomes):
        for risk in RiskKind:
            wanted = RiskGoal(max_risk, CONFIDENCE, risk)
            try:
                found = simulate_coverage(outcomes, wanted, resplits)
            except ForgeError:
                needed = minimum_calibration(wanted)
                print(f"| {name} | {len(outcomes)} | {risk} | {max_risk:g} | too few: {needed} are needed |")
                continue
            print(format_row(name, outcomes, wanted, found), flush=True)
            broken = 100 * found.drawn / resplits
            figures.append(
                Figure(f"risk of {name}, {risk} <= {max_risk:g}", broken, "% broken", 100 * (1 - CONFIDENCE))
            )
    return figures


def format_row(name: str, outcomes: Outcomes, wanted: RiskGoal, found: GuaranteeCoverage) -> str:
    cells = (
        name,
        f"{len(outcomes):,}",
        str(wanted.risk),
        f"{wanted.max_risk:g}",
        f"{1 - wanted.confidence:.2g}",
        f"**{found.drawn}** of {found.resplits}",
        f"{found.halves}",
        f"{found.rest}",
        f"{found.refused}",
        f"{found.kept:.1%}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forge.parts.risk", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--resplits", type=int, default=RESPLITS)
    parser.add_argument("--max-risk", type=float, action="append", default=[])
    asked = parser.parse_args()
    print(_HEAD, flush=True)
    figures = [
        figure
        for path in asked.files
        for figure in judge_risks(find_bundle_name(path), read_outcomes(path), asked.resplits, asked.max_risk)
    ]
    broken = [figure for figure in figures if not figure.held]
    print(
        *("\n" + format_line(figure) for figure in broken),
        f"\n{len(figures) - len(broken)} of {len(figures)} promises kept",
    )
    return 1 if broken else 0


def find_bundle_name(path: Path) -> str:
    """A bundle keeps `outcomes.npz` in a folder of its own name."""
    return path.stem if path.stem != "outcomes" else path.absolute().parent.name


if __name__ == "__main__":
    sys.exit(main())
