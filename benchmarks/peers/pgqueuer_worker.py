"""pgqueuer with a handler that does nothing: `python pgqueuer_worker.py DSN JOBS BYTES BATCH` prints seconds.

Its tables are made and filled first; what is measured is one worker from its first claim until the queue is empty.
"""

import asyncio
import sys
import time

import asyncpg
from pgqueuer.core.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

PART = 1000


async def run_worker(dsn: str, jobs: int, size: int, batch: int) -> tuple[float, int]:
    """Seconds that `jobs` took, and how many the handler saw."""
    connection = await asyncpg.connect(dsn)
    queries = Queries.from_asyncpg_connection(connection)
    await queries.install()
    for at in range(0, jobs, PART):
        count = min(PART, jobs - at)
        await queries.enqueue(["job"] * count, [b"x" * size] * count, [0] * count)
    await connection.execute("analyze")
    manager, seen = QueueManager(queries), 0

    @manager.entrypoint("job")
    async def run_job(_job):
        nonlocal seen
        seen += 1

    began = time.perf_counter()
    await manager.run(batch_size=batch, mode=QueueExecutionMode.drain)
    took = time.perf_counter() - began
    await connection.close()
    return took, seen


if __name__ == "__main__":
    took, seen = asyncio.run(run_worker(sys.argv[1], *map(int, sys.argv[2:5])))
    assert seen == int(sys.argv[2]), f"{seen} of {sys.argv[2]} jobs came"
    print(took, flush=True)
