"""Benchmark: the hub at 10 times its capacity: 50 equal tenants, three priorities, each with a timeout.

`python -m benchmarks.hub.overload`. Real hub process, real HTTP, one client process on the same cores. Goodput counts
the answers that came within their callers' time.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import msgspec

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, find_median, find_percentile, format_number
from benchmarks.harness.rig import read_line, run_child
from benchmarks.hub.open_load import OpenLoad, RequestKind, RequestOutcome
from benchmarks.hub.slow_hub import CAPACITY_PER_S, TENANTS, HubAddressLine
from tests.jain_index import compute_jain_index

TIMES = 10
WARM_S, SECONDS = 3.0, 20.0
HIGH = RequestKind("high", 1, 1.0, 0.1)
WISHES = (HIGH, RequestKind("normal", 0, 4.0, 0.6), RequestKind("low", 3, 8.0, 0.3))


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    async with run_child("benchmarks.hub.slow_hub", str(folder / "hub"), log=folder / "hub.log") as hub:
        told = msgspec.json.decode(await read_line(hub), type=HubAddressLine)
        crowd = OpenLoad(told.url, told.keys, WISHES)
        await crowd.come(TIMES * CAPACITY_PER_S, WARM_S + SECONDS)
        crowd.close()
    return judge_outcomes(crowd)


def judge_outcomes(crowd: OpenLoad) -> list[Figure]:
    seen = [outcome for outcome in crowd.outcomes if outcome.at_s >= WARM_S]
    good = [outcome for outcome in seen if outcome.status == 200 and outcome.seconds <= outcome.wish.timeout_s]
    high = [outcome.seconds for outcome in seen if outcome.status == 200 and outcome.wish is HIGH]
    refused = [outcome for outcome in seen if outcome.status != 200]
    had = Counter(outcome.tenant for outcome in good)
    share = len(good) / SECONDS / CAPACITY_PER_S
    terms = (
        _format_answered(seen),
        _format_statuses(seen),
        f"the client was late by p99 {find_percentile(crowd.lags, 0.99) * 1e3:.0f} ms",
    )
    blunt = sum(not outcome.retry_after for outcome in refused)
    return [
        Figure("overload x 10: goodput of capacity", 100 * share, "%", 90.0, more_is_better=True, terms=terms),
        Figure("overload x 10: p99 of high priority", find_percentile(high, 0.99), "s", HIGH.timeout_s),
        Figure(
            "overload x 10: refusals without a retry time", blunt, "refusals", 0, terms=(_format_lost(crowd, refused),)
        ),
        Figure(
            "overload x 10: fairness (Jain)",
            compute_jain_index([float(had[n]) for n in range(TENANTS)]),
            "",
            0.95,
            True,
        ),
    ]


def _format_answered(seen: list[RequestOutcome]) -> str:
    parts = []
    for wish in WISHES:
        taken = [o.seconds for o in seen if o.status == 200 and o.wish is wish]
        parts.append(
            f"{wish.name}: {format_number(len(taken) / SECONDS)}/s, "
            f"p50 {find_median(taken):.2f} s, p99 {find_percentile(taken, 0.99):.2f} s"
        )
    return "; ".join(parts)


def _format_statuses(seen: list[RequestOutcome]) -> str:
    counts = Counter(outcome.status for outcome in seen)
    return f"statuses {json.dumps(dict(sorted(counts.items())))} of {len(seen)} asked in {SECONDS:.0f} s"


def _format_lost(crowd: OpenLoad, refused: list[RequestOutcome]) -> str:
    return f"{len(refused)} refusals; {len(crowd.lost)} requests lost {sorted(set(crowd.lost))[:3]}"


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
