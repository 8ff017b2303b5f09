"""Benchmark: jobs claimed and ended a second, the hub's own table over pgqueuer, on the same PostgreSQL.

`python -m benchmarks.jobs.claims`. The two take turns, each in a process and a database of its own, with bodies of
1 KiB and handlers that do nothing; pgqueuer in batches of 10, its default, and of 128, what a hub has in its queues at
once. The hub's side opens sealed bodies, seals answers, shares turns among tenants, and keeps row and answer; pgqueuer
deletes its row, and keeps a line in its log.
"""

import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import sqlalchemy as sa

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.environments import PGQUEUER
from benchmarks.harness.figures import Figure, format_number
from benchmarks.harness.rig import ROOT
from tests.postgres import PostgresServer

JOBS, BYTES, ROUNDS = 10_000, 1024, 3
BATCHES = (10, 128)  # its default, and as many as the hub has in its queues at once
AIM = 1.3
TIMEOUT_S = 300.0


async def run_benchmark(_folder: Path, _bundle: Path) -> list[Figure]:
    if not PGQUEUER.is_installed():
        why = (f"not installed: python -m benchmarks.harness.environments {PGQUEUER.name}",)
        return [Figure(_name(batch), math.nan, "x", AIM, more_is_better=True, terms=why) for batch in BATCHES]
    own, peers = list[float](), {batch: list[float]() for batch in BATCHES}
    with PostgresServer() as server:
        for _ in range(ROUNDS):
            own.append(await _run_own(server))
            for batch, rates in peers.items():
                rates.append(await _run_peer(server, batch))
    said = (f"{JOBS:,} jobs of {BYTES} bytes, {PGQUEUER.packages[0]} over asyncpg", _describe("own table", own))
    return [
        Figure(
            _name(batch), median(own) / median(rates), "x", AIM, more_is_better=True,
            terms=(_describe(f"pgqueuer, batches of {batch}", rates), *(said if batch == BATCHES[0] else ())),
        )
        for batch, rates in peers.items()
    ]  # fmt: skip


def _name(batch: int) -> str:
    as_it_comes = ", as it comes" if batch == BATCHES[0] else ""
    return f"jobs claimed and ended, over pgqueuer in batches of {batch}{as_it_comes}"


def _describe(side: str, rates: list[float]) -> str:
    return f"{side}: {format_number(median(rates))} jobs/s ({', '.join(map(format_number, rates))})"


async def _run_own(server: PostgresServer) -> float:
    url = server.create_database()
    words = (sys.executable, "-m", "benchmarks.jobs.queue_worker", url, str(JOBS), str(BYTES))
    return JOBS / await _run_timed(words)


async def _run_peer(server: PostgresServer, batch: int) -> float:
    url = sa.make_url(server.create_database())
    dsn = f"postgresql://{url.username}:{url.password}@/{url.database}?host={url.query['host']}&port={url.port}"
    worker = str(ROOT / "benchmarks" / "peers" / "pgqueuer_worker.py")
    return JOBS / await _run_timed((str(PGQUEUER.python), worker, dsn, str(JOBS), str(BYTES), str(batch)))


async def _run_timed(words: Sequence[str]) -> float:
    """Seconds that a worker prints."""
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(err.decode()[-2000:])
    return float(out)


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
