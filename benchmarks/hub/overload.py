"""Benchmark: the hub at 10 times its capacity: 50 equal tenants, three priorities, each with a timeout.

`python -m benchmarks.hub.overload`. Real hub process, real HTTP, one client process on the same cores. Goodput counts
the answers that came within their callers' time.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import msgspec

from benchmarks.harness.benchmark import alone
from benchmarks.harness.figures import Figure, p50, percentile, shown
from benchmarks.harness.rig import child, said
from benchmarks.hub.open_load import Crowd, Outcome, Wish
from benchmarks.hub.slow_hub import CAPACITY_PER_S, TENANTS, Told
from policies.serving.fair_queue import jain

TIMES = 10
WARM_S, SECONDS = 3.0, 20.0
HIGH = Wish("high", 1, 1.0, 0.1)
WISHES = (HIGH, Wish("normal", 0, 4.0, 0.6), Wish("low", 3, 8.0, 0.3))


async def run(folder: Path, _bundle: Path) -> list[Figure]:
    async with child("benchmarks.hub.slow_hub", str(folder / "hub"), log=folder / "hub.log") as hub:
        told = msgspec.json.decode(await said(hub), type=Told)
        crowd = Crowd(told.url, told.keys, WISHES)
        await crowd.come(TIMES * CAPACITY_PER_S, WARM_S + SECONDS)
        crowd.close()
    return judged(crowd)


def judged(crowd: Crowd) -> list[Figure]:
    seen = [outcome for outcome in crowd.outcomes if outcome.at_s >= WARM_S]
    good = [outcome for outcome in seen if outcome.status == 200 and outcome.seconds <= outcome.wish.timeout_s]
    high = [outcome.seconds for outcome in seen if outcome.status == 200 and outcome.wish is HIGH]
    refused = [outcome for outcome in seen if outcome.status != 200]
    had = Counter(outcome.tenant for outcome in good)
    share = len(good) / SECONDS / CAPACITY_PER_S
    terms = (
        _answered(seen),
        _statuses(seen),
        f"the client was late by p99 {percentile(crowd.lags, 0.99) * 1e3:.0f} ms",
    )
    blunt = sum(not outcome.retry_after for outcome in refused)
    return [
        Figure("overload x 10: goodput of capacity", 100 * share, "%", 90.0, more_is_better=True, terms=terms),
        Figure("overload x 10: p99 of high priority", percentile(high, 0.99), "s", HIGH.timeout_s),
        Figure("overload x 10: refusals without a retry time", blunt, "refusals", 0, terms=(_lost(crowd, refused),)),
        Figure("overload x 10: fairness (Jain)", jain([float(had[n]) for n in range(TENANTS)]), "", 0.95, True),
    ]


def _answered(seen: list[Outcome]) -> str:
    parts = []
    for wish in WISHES:
        taken = [o.seconds for o in seen if o.status == 200 and o.wish is wish]
        parts.append(
            f"{wish.name}: {shown(len(taken) / SECONDS)}/s, p50 {p50(taken):.2f} s, p99 {percentile(taken, 0.99):.2f} s"
        )
    return "; ".join(parts)


def _statuses(seen: list[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in seen)
    return f"statuses {json.dumps(dict(sorted(counts.items())))} of {len(seen)} asked in {SECONDS:.0f} s"


def _lost(crowd: Crowd, refused: list[Outcome]) -> str:
    return f"{len(refused)} refusals; {len(crowd.lost)} requests lost {sorted(set(crowd.lost))[:3]}"


if __name__ == "__main__":
    sys.exit(alone(run))
