"""Child process: the hub's job runner over PostgreSQL, with an engine that answers at once. Prints seconds.

`python -m benchmarks.jobs.queue_worker URL JOBS BYTES`: jobs are stored first; what is measured is the runner from its
first claim until the last ending is written: bodies opened, answers sealed, as a hub does it.
"""

import asyncio
import io
import secrets
import sys
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from cloud_hub.jobs.decisions import JobAnswer, JobOutcome, JobSettings
from cloud_hub.jobs.runner import JobRunner
from cloud_hub.jobs.sealing import JobVault
from cloud_hub.jobs.states import Job, JobState, make_job_id, shard_of_job
from cloud_hub.jobs.table import AddJobs, NewJob
from cloud_hub.region.vault import KEY_BYTES, RegionVault
from cloud_hub.storage.jobs import JobResult, StoreJob
from cloud_hub.storage.store import Store
from cloud_hub.storage.writer import StoreWriter
from wire.process.logging import JsonLog

ANSWER = b'{"model_name": "none", "outputs": []}'
PART = 1000
DAY_MS = 86_400_000


class WrittenJobs:
    """The hub's writer thread without its questions; implements `jobs.runner.JobStore`."""

    terms: Mapping[int, int] | None = None
    shared = False

    def __init__(self, store: Store) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._writer = StoreWriter(store, asyncio.get_running_loop(), self._on_done)

    async def run_work(self, work: Any) -> Any:
        """Do a piece of work in the next commit."""
        future = self._waiting[id(work)] = asyncio.get_running_loop().create_future()
        self._writer.submit(StoreJob(works=[work]))
        return await future

    def _on_done(self, results: list[JobResult]) -> None:
        for result in results:
            assert not result.error, result.reason
            for work, found in zip(result.job.works, result.found, strict=True):
                self._waiting.pop(id(work)).set_result(found)

    async def close(self) -> None:
        await self._writer.close()


class InstantComputer:
    """Answers at once, as the handler of the other queue does nothing."""

    def check(self, model: str, body: bytes, tenant: str) -> None:
        """Everything is taken."""

    async def compute(self, _job: Job, _body: bytes, _timeout_s: float) -> JobOutcome:
        return JobAnswer(ANSWER)


async def fill_table(store: WrittenJobs, vault: JobVault, jobs: int, size: int) -> None:
    """Store so many jobs of one tenant, with bodies of `size` bytes."""
    now_ms = int(time.time() * 1000)
    for at in range(0, jobs, PART):
        new = []
        for _ in range(min(PART, jobs - at)):
            job_id = make_job_id(now_ms, secrets.token_bytes(10))
            job = Job(
                id=job_id, tenant="acme", caller="bench", shard=shard_of_job(job_id), model="none",
                state=JobState.QUEUED, made_ms=now_ms, not_before_ms=now_ms, timer_ms=now_ms + DAY_MS,
                timeout_ms=DAY_MS, fingerprint=b"f" * 32,
            )  # fmt: skip
            new.append(NewJob(job, vault.seal_body(job_id, b"x" * size)))
        await store.run_work(AddJobs(new))


async def run_worker(url: str, jobs: int, size: int) -> float:
    """Seconds that `jobs` took."""
    store = WrittenJobs(Store.open(url))
    vault = JobVault(RegionVault(secrets.token_bytes(KEY_BYTES)))
    await fill_table(store, vault, jobs, size)
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("analyze")
    runner = JobRunner(
        store=store, computer=InstantComputer(), vault=vault, settings=JobSettings(), now=time.time,
        log=JsonLog(io.StringIO()),
    )  # fmt: skip
    began = time.perf_counter()
    running = asyncio.create_task(runner.run())
    while runner.counts["jobs.answered"] < jobs:
        await asyncio.sleep(0.005)
    took = time.perf_counter() - began
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()
    return took


if __name__ == "__main__":
    print(asyncio.run(run_worker(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
