"""Benchmark: rollouts of good and bad versions, gated on quality, against newest-wins and a gate on status alone.

`python -m benchmarks rollout` (`make bench-rollout`). 10,000 devices, a sample per 10 s, audits 2 % in canary and
control. The answers are those of two real models (`rollout_nets`), replayed; a regression turns right local answers of
the second into wrong ones with the same confidence. The hub's rollout machine and gate and the devices' install
machines are the product's, in virtual time; how many audits went which way within five minutes of a device is drawn.

Rule: what a version that is as good shows in audits is measured on one half of the pictures, and the other half is
answered. Every driver is given the same courses.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.harness import benchmark
from benchmarks.harness.figures import Figure
from benchmarks.rollout.drivers import run_by_status, run_gated, run_newest_wins
from benchmarks.rollout.paired_answers import (
    PairedAnswers,
    bound_expected_gap,
    compare_versions,
    make_regression,
    split_halves,
)
from models.zoo.sources import find_dataset
from simulations.rollout.device import DeviceBehaviour
from simulations.rollout.fleet import RolloutCourse, RolloutTrace
from simulations.rollout.versions import VersionPair
from wire.process.main import run_to_exit

DEVICES = 10_000
BIG, SMALL = 0.20, 0.03
UNSURE_SHARE = 0.2
FIRST, HALF = 0, 2  # waves: the canary, and the one that reaches 50 %
RULES: dict[str, object] = {"look_s": 120.0, "report_s": 300.0}
PROMPT: dict[str, object] = {"look_s": 60.0, "report_s": 120.0}  # where minutes count
TO_TEN_PERCENT = {**RULES, "look_s": 600.0, "report_s": 600.0, "waves": ["1%", "10%"]}
LABELS = 10
SEEDS = {"big": 20, "small": 100, "harmless": 300, "whole": 2}
_FEW = int(os.environ.get("SKERRY_SEEDS", "0"))  # for a quick look: at most so many of each

Driver = Callable[[RolloutCourse], RolloutTrace]


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    del folder, bundle
    return await asyncio.to_thread(build_figures)


def build_figures() -> list[Figure]:
    """All rows of the table."""
    from benchmarks.rollout.nets import load_answers  # noqa: PLC0415 - torch, only here

    known = load_answers()
    return [
        *measure_big(known, tail=False),
        *measure_big(known, tail=True),
        *measure_small(known),
        *measure_harmless(known),
    ]


# The rows


def measure_big(known: PairedAnswers, *, tail: bool) -> list[Figure]:
    """20 points worse."""
    name = f"20-point regression, {'head and tail together' if tail else 'head alone'}"
    courses = [_make_course(known, BIG, seed, PROMPT, tail=tail) for seed in _seeds_of("big")]
    stories = _run_all(run_gated, courses)
    beside = {"newest wins": run_newest_wins(courses[0]), "status gate alone": run_by_status(courses[0])}
    first = sum(story.aborted and sum(story.told) == story.told[FIRST] for story in stories)
    minutes = sorted(story.stopped_s / 60 for story in stories)
    term = (
        f"{courses[0].pair.points * 100:+.1f} points; stopped after {minutes[len(minutes) // 2]:.0f} minutes "
        f"(median; longest {minutes[-1]:.0f}), the last device back after {max(s.clear_s for s in stories) / 60:.0f}; "
        "figures every two minutes"
    )
    terms = (term, *(f"{who}: {_describe_trace(story)}" for who, story in beside.items()))
    count = len(stories)
    return [
        Figure(f"{name}: stopped in the first canary wave, of {count} seeds", first, "", count, True, terms),
        Figure(f"{name}: devices that ever ran it", 100 * max(s.ran for s in stories) / DEVICES, "%", 1.0),
        Figure(f"{name}: of the fleet's answers of its worst hour, wrong because of it",
               100 * max(s.worst_hour for s in stories), "%", 0.1),
    ]  # fmt: skip


def measure_small(known: PairedAnswers) -> list[Figure]:
    """3 points worse."""
    courses = [_make_course(known, SMALL, seed, RULES) for seed in _seeds_of("small")]
    stories = _run_all(run_gated, courses)
    stopped = [story for story in stories if story.aborted and not story.told[HALF]]
    beside = {"newest wins": run_newest_wins(courses[0]), "status gate alone": run_by_status(courses[0])}
    waves = [sum(story.passed == wave for story in stopped) for wave in range(HALF)]
    worst = max(story.worst_hour for story in stories)
    terms = (
        f"{courses[0].pair.points * 100:+.1f} points, churn {_format_churn(courses[0].pair)}; "
        f"in the canary wave {waves[0]}, in the 10 % wave {waves[1]}; "
        f"at most {100 * worst:.3f} % of the worst hour's answers spoilt",
        *(f"{who}: {_describe_trace(story)}" for who, story in beside.items()),
    )
    share = 100.0 * len(stopped) / len(stories)
    return [
        Figure(
            f"3-point regression: stopped before the 50 % wave, of {len(stories)} seeds", share, "%", 95.0, True, terms
        )
    ]


def measure_harmless(known: PairedAnswers) -> list[Figure]:
    """The same model, trained again."""
    courses = [_make_course(known, None, seed, TO_TEN_PERCENT) for seed in _seeds_of("harmless")]
    stories = _run_all(run_gated, courses)
    aborted = [story for story in stories if story.aborted or story.end != "completed"]
    whole = _run_all(run_gated, [_make_course(known, None, seed, RULES) for seed in _seeds_of("whole")])
    ends = ", ".join(f"{s.end} in {s.ended_s / 3600:.1f} h" for s in whole)
    terms = (
        f"{courses[0].pair.points * 100:+.1f} points, churn {_format_churn(courses[0].pair)}, expected "
        f"{courses[0].rules['gate']}; canary and 10 % wave; aborted, held or left inconclusive all count",
        f"all four waves, {len(whole)} seeds: {ends}",
        *(f"stopped: {story.why}" for story in aborted[:3]),
    )
    limit = 3 * max(1.0, len(stories) / 300)
    return [
        Figure(f"harmless version: not let through, of {len(stories)} seeds", len(aborted), "", limit, False, terms)
    ]


# Courses


def _make_course(
    known: PairedAnswers, points: float | None, seed: int, rules: dict[str, object], *, tail: bool = False
) -> RolloutCourse:
    """`points` None: the second version as it is. What audits of it will show was measured before it went wrong."""
    rng = np.random.default_rng(seed)
    gate = {"expected": max(-0.1, bound_expected_gap(split_halves(known)[0]))}
    if points is not None:
        known = make_regression(known, points, LABELS, rng, tail=tail)
    threshold = float(np.quantile(known.committed.confidence, UNSURE_SHARE))
    return RolloutCourse(
        DEVICES,
        seed,
        compare_versions(split_halves(known)[1], threshold),
        {**rules, "gate": gate},
        DeviceBehaviour(look_s=float(str(rules["report_s"]))),
    )


def _run_all(driver: Driver, courses: Sequence[RolloutCourse]) -> list[RolloutTrace]:
    workers = min(len(courses), max(1, len(os.sched_getaffinity(0))))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(driver, courses))


def _seeds_of(name: str) -> range:
    count = min(_FEW, SEEDS[name]) if _FEW else SEEDS[name]
    return range(1, count + 1)


def _format_churn(seen: VersionPair) -> str:
    return f"{100 * seen.worse:.1f} % worse and {100 * seen.better:.1f} % better"


def _describe_trace(story: RolloutTrace) -> str:
    end = f"stopped in wave {story.passed + 1}" if story.aborted else f"never stopped ({story.end})"
    ran, spoilt = 100 * story.ran / DEVICES, 100 * story.worst_hour
    return f"{end}, {ran:.0f} % of devices ran it, {spoilt:.2f} % of the worst hour's answers spoilt"


def main() -> int:
    find_dataset("fashion_mnist")  # before the bundle of every benchmark is made
    return benchmark.run_alone(run_benchmark)


if __name__ == "__main__":
    sys.exit(run_to_exit("python -m benchmarks.rollout.run", main))
