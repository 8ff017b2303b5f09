"""Benchmark: routing between two language models, replayed on recorded outcomes per prompt.

Rule: five-fold cross-fitted from the prompt's text alone; prompts with the same text or passage are in one fold; every
seed draws its own folds. `python -m benchmarks.forge.parts.routing [--save FOLDER] [--seeds N]` (needs SKERRY_DATA).
"""

import argparse
import csv
import gzip
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.forge.parts.router import RecordedPrompts, cross_fit_gains, draw_folds, route_prompts
from benchmarks.harness.figures import Figure, format_line
from models.forge.evaluation.deferral import DeferralFrontier, compute_frontier
from models.forge.evaluation.outcomes import Outcomes, encode_outcomes
from models.zoo.sources import find_dataset
from wire.process.main import run_to_exit

FOLDS = 5
SEEDS = 5
ANCHORS = {
    "mmlu": {
        "RouteLLM, best of each column": (0.603, 35.4, 70.3),
        "TF-IDF + logistic regression, 5-fold": (0.668, 27.1, 59.2),
    },
    "gsm8k": {"TF-IDF + logistic regression, 5-fold": (0.605, 38.8, 63.0)},
}


class SeedSpread(NamedTuple):
    """Mean over seeds, and its standard error: APGR, CPT50 and CPT80 in per cent."""

    mean: tuple[float, float, float]
    error: tuple[float, float, float]

    def format_row(self, name: str) -> str:
        cells = [f"{m:.{d}f} ± {e:.{d}f}" for m, e, d in zip(self.mean, self.error, (3, 1, 1), strict=True)]
        return f"| {name} | {' | '.join(cells)} |"


def load_recorded(name: str) -> tuple[RecordedPrompts, list[str]]:
    """Outcomes of one set, and each prompt's domain ("" where there is none)."""
    with gzip.open(find_dataset("routellm_outcomes") / f"{name}_mixtral_gpt4.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    weak, strong = (np.array([row[c] == "True" for row in rows]) for c in ("mixtral_8x7b_ok", "gpt4_1106_ok"))
    return RecordedPrompts([row["prompt"] for row in rows], weak, strong), [row.get("domain") or "" for row in rows]


def prefix_domain(known: RecordedPrompts, domains: list[str]) -> RecordedPrompts:
    """The same, each prompt headed by its domain: no router is told that in life."""
    heads = (f"domain_{domain} " * 3 for domain in domains)
    return known._replace(prompts=[head + prompt for head, prompt in zip(heads, known.prompts, strict=True)])


def route_by_domain(known: RecordedPrompts, domains: list[str], seed: int) -> DeferralFrontier:
    """The mean gain of the domain, of the other folds: what a router that knew the domain and nothing else would do."""
    fold, names = draw_folds(known.prompts, FOLDS, seed), np.array(domains)
    gains = np.full(len(fold), known.gain.mean())
    for number in range(FOLDS):
        for name in set(domains):
            there = (names == name) & (fold != number)
            if there.any():
                gains[(names == name) & (fold == number)] = known.gain[there].mean()
    return compute_frontier(route_prompts(gains, known))


def compute_spread(found: list[DeferralFrontier]) -> SeedSpread:
    rows = np.array([(one.apgr, 100 * one.cpt50, 100 * one.cpt80) for one in found])
    error = rows.std(0, ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else rows[0] * np.nan
    mean = rows.mean(0)
    return SeedSpread((mean[0], mean[1], mean[2]), (error[0], error[1], error[2]))


def fit_router(name: str, known: RecordedPrompts, seed: int) -> Outcomes:
    """One seed's cross-fitted routing, told to standard error as it comes: a set takes minutes."""
    found = route_prompts(cross_fit_gains(known, FOLDS, seed), known)
    line = compute_frontier(found)
    told = f"{name}, seed {seed}: APGR {line.apgr:.4f}, CPT50 {line.cpt50:.1%}, CPT80 {line.cpt80:.1%}"
    print(told, file=sys.stderr, flush=True)
    return found


def replay_set(name: str, seeds: int, save: Path | None, *, domain: bool = True) -> list[Figure]:
    """Print one set's table; the figures that are judged."""
    known, domains = load_recorded(name)
    outcomes = [fit_router(name, known, seed) for seed in range(seeds)]
    if save:
        save.mkdir(parents=True, exist_ok=True)
        (save / f"routellm_{name}.npz").write_bytes(encode_outcomes(outcomes[0]))
    lines = [compute_frontier(one) for one in outcomes]
    ours, first = compute_spread(lines), lines[0]
    print(
        f"\n{name}: {first.samples} prompts, weak {first.edge:.2%}, strong {first.hub:.2%}, either {first.oracle:.2%}"
    )
    print(f"{FOLDS} folds, seeds 0..{seeds - 1}, ± standard error over seeds\n")
    print("| router | APGR | CPT50 | CPT80 |\n|---|---|---|---|")
    for who, (apgr, half, most) in ANCHORS[name].items():
        print(f"| {who} | {apgr:.3f} | {half:.1f} | {most:.1f} |")
    print(ours.format_row("**ours, prompt alone**"), flush=True)
    if domain and any(domains):
        print(
            compute_spread([route_by_domain(known, domains, seed) for seed in range(seeds)]).format_row(
                "extra: mean gain of the domain"
            )
        )
        told = prefix_domain(known, domains)
        lines = [compute_frontier(fit_router(f"{name}, domain told", told, seed)) for seed in range(seeds)]
        print(compute_spread(lines).format_row("extra: ours, told the domain too"), flush=True)
    return build_figures(name, ours)


def build_figures(name: str, ours: SeedSpread) -> list[Figure]:
    """Against the best anchor in each column."""
    best = list(zip(*ANCHORS[name].values(), strict=True))
    terms = (f"± {ours.error[0]:.4f}, {ours.error[1]:.2f}, {ours.error[2]:.2f} (standard error over seeds)",)
    return [
        Figure(f"routing {name}: APGR", ours.mean[0], "", max(best[0]), more_is_better=True, terms=terms),
        Figure(f"routing {name}: CPT50", ours.mean[1], "% asked", min(best[1])),
        Figure(f"routing {name}: CPT80", ours.mean[2], "% asked", min(best[2])),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forge.parts.routing", description=__doc__)
    parser.add_argument("--save", type=Path, help="folder for the outcomes, to be used by benchmarks.forge.parts.risk")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--no-domain", action="store_true", help="leave the extras out")
    asked = parser.parse_args()
    found = [
        figure for name in ANCHORS for figure in replay_set(name, asked.seeds, asked.save, domain=not asked.no_domain)
    ]
    print(*("\n" + format_line(figure) for figure in found))
    return 0 if all(figure.held for figure in found) else 1


if __name__ == "__main__":
    sys.exit(run_to_exit("python -m benchmarks.forge.parts.routing", main))
