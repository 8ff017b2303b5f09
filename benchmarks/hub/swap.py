"""Benchmark: model swap and drain of the hub under load: lost, refused and doubled requests.

`python -m benchmarks.hub.swap`. A steady crowd at 60 % of the capacity asks for the model by its name; meanwhile
version 2 is loaded, version 1 unloaded, and the process gets SIGTERM. Doubled = computed, but answered to nobody.
"""

import asyncio
import json
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import msgspec

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, find_percentile
from benchmarks.harness.rig import read_line, run_child
from benchmarks.hub.open_load import OpenLoad, RequestKind, RequestOutcome
from benchmarks.hub.slow_hub import CAPACITY_PER_S, HubAddressLine

LOAD, STEADY_S, AFTER_S = 0.6, 3.0, 1.0
WISHES = (RequestKind("plain", 0, 30.0, 1.0),)


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    async with run_child("benchmarks.hub.slow_hub", str(folder / "hub"), log=folder / "hub.log") as hub:
        told = msgspec.json.decode(await read_line(hub), type=HubAddressLine)
        crowd = OpenLoad(told.url, told.keys, WISHES)
        asking = asyncio.create_task(crowd.come(LOAD * CAPACITY_PER_S, 3 * STEADY_S + AFTER_S))
        await asyncio.sleep(STEADY_S)
        await asyncio.to_thread(_switch_model, told, "load", "2")
        await asyncio.sleep(STEADY_S)
        await asyncio.to_thread(_switch_model, told, "unload", "1")
        await asyncio.sleep(STEADY_S)
        hub.terminate()
        await asking
        crowd.close()
        computed = int(await read_line(hub))
        await hub.wait()
    return judge_outcomes(crowd, computed)


def judge_outcomes(crowd: OpenLoad, computed: int) -> list[Figure]:
    """`computed`: samples, by all engines in their whole lives."""
    statuses = Counter(outcome.status for outcome in crowd.outcomes)
    versions = Counter(outcome.model for outcome in crowd.outcomes if outcome.status == 200)
    taken = [outcome.seconds for outcome in crowd.outcomes if outcome.status == 200]
    terms = (
        f"{crowd.sent} asked; statuses {dict(sorted(statuses.items()))}; by version {dict(sorted(versions.items()))}",
        f"p50 {find_percentile(taken, 0.5):.3f} s, p99 {find_percentile(taken, 0.99):.3f} s; "
        f"nobody listened to {crowd.nobody}",
    )
    lost = crowd.sent - len(crowd.outcomes) - crowd.nobody
    errors = len(crowd.outcomes) - sum(_is_stated(outcome) for outcome in crowd.outcomes)
    return [
        Figure("version swap and drain: requests lost", lost, "requests", 0, terms=(*terms, *sorted(set(crowd.lost)))),
        Figure("version swap and drain: computed twice", abs(computed - statuses[200]), "samples", 0),
        Figure("version swap and drain: errors that no refusal states", errors, "errors", 0),
    ]


def _is_stated(outcome: RequestOutcome) -> bool:
    return outcome.status == 200 or (outcome.status == 503 and outcome.retry_after)


def _switch_model(told: HubAddressLine, turn: str, version: str) -> None:
    data = json.dumps({"parameters": {"version": version}}).encode()
    where, key = f"{told.url}/v2/repository/models/slow/{turn}", {"Authorization": f"Bearer {told.admin}"}
    with urllib.request.urlopen(urllib.request.Request(where, data, key), timeout=30) as response:
        response.read()


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
