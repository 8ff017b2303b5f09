"""Benchmark: jobs claimed and ended a second, the hub's own table over pgqueuer, on the same PostgreSQL.

`python -m benchmarks.jobs.claims`. The two take turns, each in a process and a database of its own, with bodies of
1 KiB and handlers that do nothing; of pgqueuer the better of two sizes of its batches counts. The hub's side opens
sealed bodies and seals answers, shares turns among tenants and keeps both row and answer; pgqueuer deletes its row.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import sqlalchemy as sa

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.environments import PGQUEUER
from benchmarks.harness.figures import Figure, format_number
from benchmarks.harness.rig import ROOT
from simulations.postgres import PostgresServer

JOBS, BYTES, ROUNDS = 20_000, 1024, 3
BATCHES = (10, 128)  # its default, and as many as the hub has in its queues at once
OWN = "own table"
TIMEOUT_S = 300.0


async def run_benchmark(_folder: Path, _bundle: Path) -> list[Figure]:
    name = "jobs claimed and ended, over pgqueuer"
    if not PGQUEUER.is_installed():
        return [Figure(name, float("nan"), "x", 1.3, more_is_better=True, terms=(f"{PGQUEUER.name} is not installed",))]
    rates: dict[str, list[float]] = {}
    with PostgresServer() as server:
        for _ in range(ROUNDS):
            rates.setdefault(OWN, []).append(await _run_own(server))
            for batch in BATCHES:
                rates.setdefault(f"pgqueuer, batches of {batch}", []).append(await _run_peer(server, batch))
    peer = max(median(found) for side, found in rates.items() if side != OWN)
    terms = tuple(
        f"{side}: {format_number(median(found))} jobs/s ({', '.join(map(format_number, found))})"
        for side, found in rates.items()
    )
    said = f"{JOBS} jobs of {BYTES} bytes, {PGQUEUER.packages[0]}, asyncpg"
    return [Figure(name, median(rates[OWN]) / peer, "x", 1.3, more_is_better=True, terms=(*terms, said))]


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
