"""What the hub adds to a stream, beside the bare engine: its CPU for a chunk, time to the first byte, throughput."""

import asyncio
import time
from pathlib import Path

from benchmarks.harness.figures import US, Figure, find_median
from benchmarks.llm.stage import Stage, open_stage, read_cpu_s

FIRST_ROUNDS = 200
WARM_ROUNDS = 20
STREAMS = 64
TOKENS_PER_S = 20.0
TOKENS = 100
ROUNDS = 3


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
    """64 streams at 20 tokens/s, by turns: bare, through the hub, and through a gateway that does nothing else."""
    limit = stage.start_pass_through()
    await stage.wait_listening(limit.url)
    processes = {stage.hub: stage.process, limit.url: limit.process}
    rates: dict[str, list[float]] = {url: [] for url in (stage.bare[0], *processes)}
    costs: dict[str, list[float]] = {url: [] for url in processes}
    for _ in range(ROUNDS):
        for url, found in rates.items():
            process = processes.get(url, stage.process)
            began, before = time.perf_counter(), read_cpu_s(process)
            results = await asyncio.gather(*(stage.stream(url, TOKENS) for _ in range(STREAMS)))
            events = sum(each.events for each in results)
            found.append(events / (time.perf_counter() - began))
            if url in costs:
                costs[url].append((read_cpu_s(process) - before) / events * US)
    bare, hub, _ = (find_median(found) for found in rates.values())
    hub_us, limit_us = (find_median(found) for found in costs.values())
    paced = (f"{STREAMS} streams at {TOKENS_PER_S:g} tokens/s each",)
    least = (f"that one {limit_us:.0f} us",)
    terms = (f"bare {bare:.0f} tokens/s", f"through the hub {hub:.0f}", *paced)
    return [
        Figure("hub's CPU for a streamed chunk", hub_us, "us", 100.0, terms=paced),
        Figure("the same over a gateway that only hands bytes on", hub_us / limit_us, "x", 1.75, terms=least),
        Figure("throughput of paced streams over bare", hub / bare, "x", 0.97, more_is_better=True, terms=terms),
    ]
