"""Benchmark: 100 kills of hubs while 10,000 jobs run: none lost, none answered twice, each dead one with a reason.

`python -m benchmarks.jobs.kills`. Three hubs over one PostgreSQL, leases of 2 s, each with 32 jobs in its queues at
once, an engine of 0.5 s for a batch of 16. By turns a hub that has jobs in hand is killed and started again at once;
the database writes down every ending.
"""

import asyncio
import sys
import time
from pathlib import Path

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from benchmarks.jobs.region import JobsRegion, JobsReport
from tests.postgres import PostgresServer

JOBS, KILLS, HUBS = 10_000, 100, 3
COMPUTE_S = 0.5
PAUSE_S = 0.5
PATIENCE_S = 900.0  # for the rest, once nobody is killed any more


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    began = time.monotonic()
    with PostgresServer() as server:
        report, kills = await run_kills(folder, server, JOBS, KILLS)
    terms = (
        f"{kills} kills of {HUBS} hubs with jobs in hand, {time.monotonic() - began:.0f} s in all",
        f"{report.answered} answered, {report.dead} dead, in hand of a hub that was killed {report.crashes} times",
        f"begun more often than explained: {report.odd}",
    )
    name = f"{KILLS} kills of hubs while {JOBS:,} jobs run"
    return [
        Figure(f"{name}: lost", report.lost, "jobs", 0.0, terms=terms),
        Figure(f"{name}: answered twice", report.doubled, "jobs", 0.0),
        Figure(f"{name}: ended without a reason", report.unexplained, "jobs", 0.0),
        Figure(f"{name}: kills", kills, "kills", KILLS, more_is_better=True),
    ]


async def run_kills(
    folder: Path, server: PostgresServer, jobs: int, kills: int, compute_s: float = COMPUTE_S
) -> tuple[JobsReport, int]:
    """Kill hubs while jobs run; what became of the jobs, and how many kills there were."""
    async with JobsRegion(folder, server, HUBS, compute_s) as region:
        await region.add_jobs(jobs)
        done = await _kill_hubs(region, kills)
        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(region.count_open) > 0:
                await asyncio.sleep(0.2)
        return region.judge(jobs), done


async def _kill_hubs(region: JobsRegion, kills: int) -> int:
    """Kill whoever has most in hand, never two at once; returns how many were killed before the jobs had ended."""
    done, starting = 0, dict[str, asyncio.Task[None]]()
    while done < kills and await asyncio.to_thread(region.count_open) > 0:
        await asyncio.sleep(PAUSE_S)
        for name in [name for name, task in starting.items() if task.done()]:
            starting.pop(name).result()
        held = {name: n for name, n in (await asyncio.to_thread(region.held)).items() if name not in starting}
        if not held:
            continue
        victim = max(held, key=lambda name: held[name])
        await region.kill(victim)
        done += 1
        starting[victim] = asyncio.create_task(region.start(victim))
    for task in starting.values():
        await task
    return done


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
