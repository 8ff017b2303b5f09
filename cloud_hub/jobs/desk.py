"""What callers ask of jobs: to take one, show, list, cancel, and queue a dead one again.

Rule: a job is answered for once it is stored. Rule: a caller sees its tenant's jobs; another's looks like none at all.
"""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from cloud_hub.database.connection import connect_part, read_snapshot
from cloud_hub.database.parts import QUESTIONS
from cloud_hub.jobs.batch_table import JobBatch
from cloud_hub.jobs.decisions import keep_ms
from cloud_hub.jobs.quota import JobQuotaError, OpenJobs, needs_count, recount, refuse_jobs, take_jobs
from cloud_hub.jobs.reading import (
    count_open,
    count_states,
    count_waiting,
    has_key,
    list_jobs,
    read_answer,
    read_job,
)
from cloud_hub.jobs.runner import JobRunner, JobStore
from cloud_hub.jobs.sealing import JobVault
from cloud_hub.jobs.states import OPEN, Job, JobState, make_job_id, shard_of_job
from cloud_hub.jobs.table import AddJobs, CancelJob, NewJob, RequeueJob
from cloud_hub.jobs.webhooks import HookRunner
from cloud_hub.region.vault import WrongRegionKeyError

T = TypeVar("T")
_DRAWS = 4096  # ids drawn until one is of a shard that is served here: one in sixteen at least


class JobConflictError(Exception):
    """The Idempotency-Key came with another payload before."""


class JobOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a caller hands it over. `key`: Idempotency-Key, "" = none; `payload`: what a repeat is known by."""

    tenant: str
    caller: str
    model: str
    body: bytes
    timeout_s: float
    key: str = ""
    payload: bytes = b""
    device: str = ""
    subject: bytes | None = None
    webhook: str = ""
    custom_id: str = ""


class JobView(msgspec.Struct, frozen=True):
    """A job and, if it was answered, its answer: JSON of the protocol's response."""

    job: Job
    answer: bytes | None = None


class JobReader:
    """Reads jobs over a connection of its own, on one thread beside the event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: sa.Engine | None = None  # made when it is first asked: the store creates the file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hub-jobs")

    async def read(self, query: Callable[[sa.Connection], T]) -> T:
        """Return what a query finds. SQLAlchemyError if the database cannot be asked."""

        def run() -> T:
            self._engine = self._engine or connect_part(self._url, QUESTIONS)
            with read_snapshot(self._engine) as connection:
                return query(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def close(self) -> None:
        self._thread.shutdown()
        if self._engine is not None:
            self._engine.dispose()


class JobDesk:
    """Takes and shows jobs. `now_ms`: hub time."""

    def __init__(
        self,
        store: JobStore,
        runners: tuple[JobRunner, HookRunner],
        reader: JobReader,
        vault: JobVault,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._runner, self._hooks = runners
        self._reader = reader
        self._vault = vault
        self._now_ms = now_ms
        self.settings = self._runner.settings
        self._open: dict[str, OpenJobs] = {}  # by tenant
        self._unwritten: Counter[str] = Counter()  # jobs of a tenant that were taken, and are being written
        self._counting = asyncio.Lock()

    def check(self, model: str, body: bytes, tenant: str) -> None:
        """OipError(404 or 400) if no such model is served, or it does not take the request."""
        self._runner.check(model, body, tenant)

    async def submit(self, order: JobOrder) -> Job:
        """Store a job, or find the one that the same Idempotency-Key stored.

        JobConflictError if that one was another request; JobQuotaError if the tenant has too many open; WorkFailedError
        if it could not be written.
        """
        new = self.prepare(order)
        known = await self._add(new)
        found: Job = known.get(new.job.id, new.job)
        if found.fingerprint != new.job.fingerprint:
            raise JobConflictError
        if found is new.job:
            self._runner.counts["jobs.accepted"] += 1
            self._runner.expect(found.not_before_ms, found.timer_ms)
            if order.webhook:
                self._hooks.expect()
        return found

    async def _add(self, new: NewJob) -> dict[str, Job]:
        """Store a job; returns the earlier one of its Idempotency-Key, which needs no room, by the id of this one."""
        add, key = AddJobs([new]), new.job.known_by
        try:
            async with self.reserve(new.job.tenant, 1):
                return dict(await self._store.run_work(add))
        except JobQuotaError:
            if key is None or not await self._reader.read(lambda rows: has_key(rows, key)):
                raise
        return dict(await self._store.run_work(add))

    @contextlib.asynccontextmanager
    async def reserve(self, tenant: str, jobs: int) -> AsyncIterator[None]:
        """Have room for so many jobs more of a tenant, which are written inside. SQLAlchemyError if nobody can count.

        JobQuotaError if it has as many open as it may.
        """
        most, known = self.settings.tenant_open, self._open.get(tenant)
        if needs_count(known, jobs, most, time.monotonic(), shared=self._store.shared):
            async with self._counting:
                await self._recount(tenant, jobs)
        known = self._open[tenant]
        taken = take_jobs(known, jobs, most)
        if taken is None:
            self._open[tenant], refused = refuse_jobs(known, jobs, most, time.monotonic())
            self._runner.counts["jobs.refused"] += 1
            raise refused
        self._open[tenant] = taken
        self._unwritten[tenant] += jobs
        try:
            yield
        finally:
            self._unwritten[tenant] -= jobs

    async def _recount(self, tenant: str, jobs: int) -> None:
        """Count the open jobs of a tenant, unless somebody has just done so."""
        known, now = self._open.get(tenant), time.monotonic()
        if not needs_count(known, jobs, self.settings.tenant_open, now, shared=self._store.shared):
            return
        seen = known.taken - self._unwritten[tenant] if known else 0
        counted = await self._reader.read(lambda rows: count_open(rows, tenant))
        self._open[tenant] = recount(self._open.get(tenant), counted, seen, now)

    def prepare_batch(self, tenant: str, key: str, receive_s: float) -> JobBatch:
        """Return the row of a batch that begins to come in."""
        now_ms = self._now_ms()
        known_by = self._vault.digest_key(tenant, f"batch {key}") if key else None
        batch_id = make_job_id(now_ms, secrets.token_bytes(10))
        timer_ms = now_ms + int(receive_s * 1000)
        return JobBatch(id=batch_id, tenant=tenant, made_ms=now_ms, timer_ms=timer_ms, known_by=known_by)

    async def run_work(self, work: Any) -> Any:
        """Do a piece of work in the next commit. WorkFailedError if it could not be written."""
        return await self._store.run_work(work)

    async def read(self, query: Callable[[sa.Connection], T]) -> T:
        """Return what a query finds. SQLAlchemyError if the database cannot be asked."""
        return await self._reader.read(query)

    def now_ms(self) -> int:
        """Return hub time."""
        return self._now_ms()

    def open_answer(self, job_id: str, sealed: bytes) -> bytes:
        """WrongRegionKeyError if it was not sealed here."""
        return self._vault.open_answer(job_id, bytes(sealed))

    def expect_now(self) -> None:
        """Begin what was queued just now."""
        self._hooks.expect()
        self._runner.expect(self._now_ms(), self._now_ms())

    def prepare(self, order: JobOrder, *, anywhere: bool = False) -> NewJob:
        """Return the row and the sealed body of an order. `anywhere`: for whichever hub of the region."""
        now_ms = self._now_ms()
        job_id = make_job_id(now_ms, secrets.token_bytes(10)) if anywhere else self._draw_id(now_ms)
        timeout_ms = int(order.timeout_s * 1000)
        job = Job(
            id=job_id,
            tenant=order.tenant,
            caller=order.caller,
            shard=shard_of_job(job_id),
            model=order.model,
            state=JobState.QUEUED,
            made_ms=now_ms,
            not_before_ms=now_ms,
            timer_ms=now_ms + timeout_ms,
            timeout_ms=timeout_ms,
            fingerprint=self._vault.digest_payload(order.payload or order.body),
            known_by=self._vault.digest_key(order.tenant, order.key) if order.key else None,
            device=order.device,
            subject=order.subject,
            custom_id=order.custom_id,
            hook=self._vault.seal_hook(job_id, order.webhook) if order.webhook else None,
        )
        return NewJob(job, self._vault.seal_body(job_id, order.body))

    def _draw_id(self, now_ms: int) -> str:
        """Draw an id of a shard that this hub serves, so that the job need not wait until another one sees it."""
        terms: Mapping[int, int] | None = self._store.terms
        found = make_job_id(now_ms, secrets.token_bytes(10))
        for _ in range(_DRAWS if terms else 0):
            if terms is None or shard_of_job(found) in terms:
                break
            found = make_job_id(now_ms, secrets.token_bytes(10))
        return found

    async def show(self, job_id: str, tenant: str) -> JobView | None:
        """Return a job of a tenant ("" = of any) with its answer; None if there is none."""

        def query(connection: sa.Connection) -> tuple[Job | None, bytes | None]:
            job = read_job(connection, job_id, tenant)
            answered = job is not None and job.state is JobState.ANSWERED
            return job, read_answer(connection, job_id) if answered else None

        job, sealed = await self._reader.read(query)
        if job is None:
            return None
        try:
            return JobView(job, self._vault.open_answer(job_id, bytes(sealed)) if sealed is not None else None)
        except WrongRegionKeyError:
            return JobView(msgspec.structs.replace(job, why="its answer was sealed under another key"))

    async def list(self, tenant: str, states: Sequence[JobState], after: str, limit: int) -> list[Job]:
        """Return jobs of a tenant ("" = of any), in the order of their making, after a given one."""
        return await self._reader.read(lambda rows: list_jobs(rows, tenant, states, after=after, limit=limit))

    async def count(self) -> dict[JobState, int]:
        """Return how many jobs are in each state."""
        return await self._reader.read(count_states)

    async def count_waiting(self) -> dict[str, int]:
        """Return how many jobs wait for their turn in the shards that are served here, by the model they name."""
        terms = self._store.terms
        shards = None if terms is None else frozenset(terms)
        return await self._reader.read(lambda rows: count_waiting(rows, shards))

    async def cancel(self, job_id: str, tenant: str) -> Job | None:
        """Cancel a job; returns it as it was: one that had ended stays as it is. None if there is none."""
        keep = keep_ms(JobState.CANCELLED, self.settings)
        found: Job | None = await self._store.run_work(CancelJob(job_id, tenant, self._now_ms(), keep))
        if found is not None and found.state in OPEN:
            self._runner.counts["jobs.cancelled"] += 1
            self._runner.forget(job_id)
        return found

    async def requeue(self, job_id: str, tenant: str) -> Job | None:
        """Queue a dead job again; returns it as it was: any other stays as it is. None if there is none."""
        found: Job | None = await self._store.run_work(RequeueJob(job_id, tenant, self._now_ms()))
        if found is not None and found.state is JobState.DEAD:
            self._runner.counts["jobs.requeued"] += 1
            self._runner.expect(self._now_ms(), self._now_ms() + found.timeout_ms)
        return found

    def close(self) -> None:
        self._reader.close()
