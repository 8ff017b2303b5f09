"""What the hub adds to a stream, beside the bare engine: its CPU for a chunk, time to the first byte, throughput."""

import asyncio
import time
from pathlib import Path

from benchmarks.harness.figures import US, Figure, find_median
from benchmarks.llm.stage import Stage, open_stage

FIRST_ROUNDS = 200
WARM_ROUNDS = 20
STREAMS = 64
TOKENS_PER_S = 20.0
TOKENS = 100
ROUNDS = 2


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    """Return the figures."""
    async with open_stage(folder / "at-once") as stage:
        added = await _measure_first(stage)
    async with open_stage(folder / "paced", token_s=1 / TOKENS_PER_S) as stage:
        return [added, *await _measure_paced(stage)]


async def _measure_first(stage: Stage) -> Figure:
    """Bare and through the hub by turns, one at a time."""
    found: dict[str, list[float]] = {stage.bare[0]: [], stage.hub: []}
    for number in range(WARM_ROUNDS + FIRST_ROUNDS):
        for url, firsts in found.items():
            result = await stage.stream(url, 2)
            if number >= WARM_ROUNDS:
                firsts.append(result.first_s)
    bare_ms, hub_ms = (find_median(firsts) * 1000 for firsts in found.values())
    terms = (f"bare {bare_ms:.2f} ms", f"through the hub {hub_ms:.2f} ms")
    return Figure("added time to the first byte, p50", hub_ms - bare_ms, "ms", 3.0, terms=terms)


async def _measure_paced(stage: Stage) -> list[Figure]:
    """64 streams at 20 tokens/s, bare and through the hub by turns."""
    rates: dict[str, list[float]] = {stage.bare[0]: [], stage.hub: []}
    cpu_s, chunks = 0.0, 0
    for _ in range(ROUNDS):
        for url, found in rates.items():
            began, before = time.perf_counter(), stage.cpu_s()
            results = await asyncio.gather(*(stage.stream(url, TOKENS) for _ in range(STREAMS)))
            found.append(sum(each.events for each in results) / (time.perf_counter() - began))
            if url == stage.hub:
                cpu_s += stage.cpu_s() - before
                chunks += sum(each.events for each in results)
    bare, hub = (find_median(found) for found in rates.values())
    terms = (f"bare {bare:.0f} tokens/s", f"through the hub {hub:.0f}", f"{STREAMS} streams at {TOKENS_PER_S:g} each")
    return [
        Figure("hub's CPU for a streamed chunk", cpu_s / chunks * US, "us", 100.0, terms=(f"{chunks} chunks",)),
        Figure("throughput of paced streams over bare", hub / bare, "x", 0.97, more_is_better=True, terms=terms),
    ]
