"""Benchmark: calibrated risk bounds, 1,000 calibrations per set of outcomes, each checked on the other half.

Rule: a promise is about the population that samples come from. Drawn with replacement from the recorded outcomes, they
have exactly these as population, whose risk is known without error: that column is judged. The others are shown.
`python -m benchmarks.forge.parts.risk [--resplits N] FILE.npz ...` (outcomes.npz of a forged bundle, or of
forge_routing).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.figures import Figure, format_line
from models.forge.data.types import ForgeError
from models.forge.evaluation.outcomes import Outcomes, read_outcomes
from models.forge.evaluation.risk_control import (
    GuaranteeCoverage,
    RiskGoal,
    RiskKind,
    minimum_calibration,
    simulate_coverage,
)

RESPLITS = 1000
CONFIDENCE = 0.95
_HEAD = (
    "| set | n | risk of | r | delta | broken: drawn from the set as population | broken: random halves, judged on the "
    "whole | random halves, rate on the other half above r | proved nothing | kept |\n|" + "---|" * 10
)


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
