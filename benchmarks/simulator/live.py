"""Benchmark: thousands of real agents in two processes, and the simulator compared with live runs.

`python -m benchmarks.simulator.live --agents 8000 --processes 2` holds so many agents for five minutes (of several
numbers the next is tried while the last held). Before it they enrol and connect, which takes some 25 ms of processor
time each. `python -m benchmarks.simulator.live against` compares five live runs of 200 agents with the simulator,
fitted to a sixth that is three times as long.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from simulations.live.hosts import check_descriptors, choose_processes
from simulations.live.limits import raise_descriptor_limit
from simulations.live.run import LiveRunConfig, run_live_scenario
from simulations.regions.run import run_scenario
from simulations.report.outcome import Bins, Outcome, RunProgress, bin_upper_s
from simulations.scenario.conditions import IDEAL_CONDITIONS, EnvironmentConditions
from simulations.scenario.types import Link, Region, Scenario

AIM_AGENTS = 8000
HELD_S = 300.0
PULSE_S = 10.0
TELL_EVERY_S = 30.0
LATE_MS = 2000
AGENTS, RUN_S, LIVE_RUNS, SIM_RUNS = 200, 120.0, 5, 20
LATENCY_S = 0.05
FITS, FIT_TIMES = 4, 3
_COMMITS = 3  # on a question's way: the device's outbox, the hub's question, the hub's verdict


class HeldRuns(NamedTuple):
    """What is tried: so many agents, in so many processes (None: as a live run chooses), for so many seconds."""

    agents: tuple[int, ...] = (AIM_AGENTS,)
    processes: int | None = None
    seconds: float = HELD_S


async def measure_held(folder: Path, _bundle: Path, tried: HeldRuns = HeldRuns()) -> list[Figure]:  # noqa: B008
    """The most agents that were held for as long as asked."""
    for count in tried.agents:  # at once, not after the first has run
        processes = choose_processes(count, tried.processes, os.cpu_count() or 1)
        check_descriptors(count, processes, raise_descriptor_limit())
    seconds, best, terms = tried.seconds, 0, list[str]()
    for count in tried.agents:
        wish = LiveRunConfig(folder / str(count), PULSE_S, processes=tried.processes)
        scenario, teller = _steady_scenario(count, seconds, 0.0), _Teller()
        outcome = await asyncio.to_thread(run_live_scenario, scenario, wish, teller.on_progress, teller.say)
        flaws = _list_flaws(outcome)
        terms += [f"{count} agents: {'; '.join(flaws) or 'held'}: {words}" for words in _describe_outcome(outcome)]
        if flaws:
            break
        best = count
    name = f"live agents held for {seconds:.0f} s, a sample per 10 s, a fifth asked"
    return [Figure(name, best, "agents", AIM_AGENTS, more_is_better=True, terms=tuple(terms))]


class _Teller:
    """Tells on standard error what a run does, and every half minute how far it is."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next_s = TELL_EVERY_S

    def say(self, words: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {words}", file=sys.stderr, flush=True)

    def on_progress(self, passed: RunProgress) -> bool:
        if passed.until_s >= self._next_s:
            self._next_s += TELL_EVERY_S
            self.say(f"{passed.until_s:.0f} s of the run, {passed.samples:,} samples")
        return True


def _steady_scenario(devices: int, seconds: float, latency_s: float) -> Scenario:
    """Nothing happens but samples."""
    region = Region(link=Link(climate=replace(IDEAL_CONDITIONS, latency_s=latency_s)))
    return Scenario(name="live", devices=devices, duration_s=seconds, regions=(region,), heal_s=60.0)


def _list_flaws(outcome: Outcome) -> list[str]:
    """Why they were not held; nothing if they were."""
    report, late_ms = outcome.history, outcome.counts["load.late_ms"]
    last = int(outcome.duration_s // outcome.step_s)
    fewest = min(outcome.states["online"][:last])
    found = {
        f"{report.lost} lost, {report.doubled} doubled": not report.ok,
        f"{fewest} links up at the least": fewest < outcome.devices,
        f"the driver fell {late_ms} ms behind": late_ms > LATE_MS,
        "it ended early": not outcome.complete,
    }
    return [words for words, wrong in found.items() if wrong]


def _describe_outcome(outcome: Outcome) -> Iterator[str]:
    counts, seconds = outcome.counts, outcome.until_s
    report = outcome.history
    spent = {name: counts[f"cpu_ms.{name}"] / 10 / seconds for name in ("agents", "hub", "broker", "proxy", "monitor")}
    held = {name: counts[f"rss_mb.{name}"] for name in spent}
    hub = _merge_bins(outcome, "hub")
    yield f"{outcome.samples} samples, {report.accepted} asked; {report.format_text().splitlines()[0]}"
    p50_s, p99_s = _interpolate_quantile(hub, 0.5), _interpolate_quantile(hub, 0.99)
    yield f"answers of the hub: p50 {p50_s:.3f} s, p99 {p99_s:.3f} s"
    shares = ", ".join(f"{name} {share:.0f} %" for name, share in spent.items())
    yield f"of a core: {shares}; together {sum(spent.values()):.0f} %; agents in {outcome.wall.processes} processes"
    each_us = spent["agents"] * 1e4 * seconds / max(1, outcome.samples)
    yield f"{each_us:.0f} us of the agents' processes for each sample, their idling in it"
    yield "MB: " + ", ".join(f"{name} {size}" for name, size in held.items())
    yield f"{outcome.wall.seconds - outcome.until_s:.0f} s to enrol and connect"


# Simulated against live


class LatencySummary(NamedTuple):
    """Figures that are compared: the share that was asked, and how long answers of the hub took."""

    asked: float
    p50_s: float
    p99_s: float


async def measure_against(folder: Path, _bundle: Path) -> list[Figure]:
    """Five live runs, and the mean of twenty simulated ones after a fit to a sixth live run."""
    scenario = _steady_scenario(AGENTS, RUN_S, LATENCY_S)
    longer = replace(scenario, duration_s=FIT_TIMES * RUN_S, seed=LIVE_RUNS)
    fitted = fit_scenario(scenario, await asyncio.to_thread(run_live_scenario, longer, LiveRunConfig(folder / "fit")))
    seeds = range(LIVE_RUNS)
    runs = [
        await asyncio.to_thread(run_live_scenario, replace(scenario, seed=seed), LiveRunConfig(folder / str(seed)))
        for seed in seeds
    ]
    mean = _average([_summarize(run_scenario(replace(fitted, seed=seed))) for seed in range(SIM_RUNS)])
    seen = [_summarize(outcome) for outcome in runs]
    climate = fitted.regions[0].link.climate
    told = (
        f"fitted to a run of its own: one way {climate.latency_s * 1000:.1f} ms ({LATENCY_S * 1000:.0f} in the proxy), "
        f"a commit {fitted.commit_s * 1000:.1f} ms, a batch {_base_cost_ms(fitted):.1f} ms"
    )
    return [_judge_inside(name, mean, seen, told) for name in LatencySummary._fields]


def _judge_inside(name: str, mean: LatencySummary, seen: list[LatencySummary], told: str) -> Figure:
    """0 inside the spread of the live runs; else how far outside, in parts of the live mean."""
    value, found = getattr(mean, name), [getattr(each, name) for each in seen]
    low, high = min(found), max(found)
    outside = max(low - value, value - high, 0.0) / fmean(found)
    terms = (f"simulated {value:.4f}, live {', '.join(f'{each:.4f}' for each in found)}", told)
    return Figure(f"simulated outside the spread of {len(seen)} live runs: {name}", outside, "of it", 0.0, terms=terms)


def fit_scenario(scenario: Scenario, measured: Outcome) -> Scenario:
    """Engine from the hub's own times; link and commit so that simulated p50 and p90 are those of the measured run.

    The spread between p50 and p90 is the link's alone (half of its latency is random), what remains of p50 is work:
    commits, sealing, the broker and event loops, all of it put into the commits.
    """
    compute_s = measured.counts["hub.compute_us"] / 1e6
    region = replace(scenario.regions[0], cost_base_s=compute_s, cost_item_s=0.0)
    scenario = replace(scenario, regions=(region,), seed=10_000)
    bins = _merge_bins(measured, "hub")
    for _ in range(FITS):
        mine = _merge_bins(run_scenario(scenario), "hub")
        climate = scenario.regions[0].link.climate
        latency_s = (
            climate.latency_s
            * (_interpolate_quantile(bins, 0.9) - _interpolate_quantile(bins, 0.5))
            / (_interpolate_quantile(mine, 0.9) - _interpolate_quantile(mine, 0.5))
        )
        more_s = (
            _interpolate_quantile(bins, 0.5) - _interpolate_quantile(mine, 0.5) - 1.7 * (latency_s - climate.latency_s)
        )
        scenario = _set_conditions(
            scenario, replace(climate, latency_s=latency_s), scenario.commit_s + more_s / _COMMITS
        )
    return scenario


def _set_conditions(scenario: Scenario, climate: EnvironmentConditions, commit_s: float) -> Scenario:
    region = replace(scenario.regions[0], link=Link(climate=climate))
    return replace(scenario, regions=(region,), commit_s=max(0.0, commit_s))


def _base_cost_ms(scenario: Scenario) -> float:
    return scenario.regions[0].cost_base_s * 1000


def _summarize(outcome: Outcome) -> LatencySummary:
    hub = _merge_bins(outcome, "hub")
    return LatencySummary(
        outcome.history.accepted / outcome.samples, _interpolate_quantile(hub, 0.5), _interpolate_quantile(hub, 0.99)
    )


def _average(found: list[LatencySummary]) -> LatencySummary:
    return LatencySummary(*(fmean(column) for column in zip(*found, strict=True)))


def _merge_bins(outcome: Outcome, source: str) -> Bins:
    found: Counter[int] = Counter()
    for latency in outcome.latency:
        if latency.source == source:
            for bins in latency.bins:
                found.update(bins)
    return dict(found)


def _interpolate_quantile(bins: Bins, share: float) -> float:
    """A quantile, as if a bin's latencies were spread evenly over it."""
    rank, seen = share * sum(bins.values()), 0.0
    for number in sorted(bins):
        if bins[number] and seen + bins[number] >= rank:
            low = bin_upper_s(number - 1) if number else 0.0
            return low + (bin_upper_s(number) - low) * (rank - seen) / bins[number]
        seen += bins[number]
    return float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator.live", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("held", "against"), default="held")
    parser.add_argument("--agents", type=int, nargs="+", default=HeldRuns().agents, help=f"default {AIM_AGENTS}")
    parser.add_argument("--processes", type=int, help="that share the agents (default: as a live run chooses)")
    parser.add_argument("--seconds", type=float, default=HELD_S, help=f"of samples (default {HELD_S:.0f})")
    asked = parser.parse_args()
    tried = HeldRuns(tuple(asked.agents), asked.processes, asked.seconds)

    async def measure_tried(folder: Path, bundle: Path) -> list[Figure]:
        return await measure_held(folder, bundle, tried)

    return run_alone(measure_tried if asked.what == "held" else measure_against)


if __name__ == "__main__":
    sys.exit(main())
