"""The task that runs a hub's jobs: begins them in their turn, computes them through its queues, writes how they ended.

Rule: a job is begun, ended and given back in the transactions of the questions' store, under the lease of its shard;
between two of them it is this task alone that decides, by `held` and `decisions`. Rule: an ending that could not be
written is written again until it is, or until the shard is lost. Rule: a defect costs the job that met it, no other.
"""

import asyncio
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from cloud_hub.jobs.batch_table import SweepBatches
from cloud_hub.jobs.decisions import (
    JobAnswer,
    JobOutcome,
    JobRefusal,
    JobSettings,
    WaitInQueue,
    decide_move,
)
from cloud_hub.jobs.held import HeldJobs
from cloud_hub.jobs.sealing import JobVault
from cloud_hub.jobs.states import ClaimedJob, Job, JobMove, JobState
from cloud_hub.jobs.table import ClaimJobs, EndJobs, GiveBackJobs, SweepJobs
from cloud_hub.region.vault import WrongRegionKeyError
from policies.serving.retry_budget import RetryBudget, RetryLimits, earn_retries, open_budget, spend_retry
from wire.process.logging import JsonLog, describe_error
from wire.protocol.messages import RefusalReason

LOOK_S = 1.0  # how late a job is seen that another hub has added
SWEEP_S = 10.0
GIVE_BACK_S = 60.0
RETRY_S = 1.0
MAX_TENANTS = 4096  # whose budgets of retries are remembered


class WorkFailedError(Exception):
    """A piece of work could not be written; nothing of it was."""


class JobComputer(Protocol):
    """Computes jobs through the hub's queues; implemented by `QueuedComputer` and `LanguageComputer`."""

    def check(self, model: str, body: bytes, tenant: str) -> None:
        """OipError(404 or 400) if no such model is served, or it does not take the request."""

    async def compute(self, job: Job, body: bytes, timeout_s: float) -> JobOutcome:
        """Compute a job; every refusal is an outcome."""


class JobStore(Protocol):
    """The transactions; implemented by `storage.gateway.StoreGateway`."""

    @property
    def terms(self) -> Mapping[int, int] | None:
        """Shards that are served here, with the terms of their leases; None without leases."""

    @property
    def shared(self) -> bool:
        """Whether other hubs may write too."""

    async def run_work(self, work: Any) -> Any:
        """Do a piece of work of `table` in the next commit; WorkFailedError if it was not written."""


class JobRunner:
    """Runs jobs. `now`: hub time in seconds. `counts`: what it did, by name."""

    def __init__(
        self,
        *,
        store: JobStore,
        computer: JobComputer,
        vault: JobVault,
        settings: JobSettings,
        now: Callable[[], float],
        log: JsonLog,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.settings = settings
        self._store = store
        self._computer = computer
        self._vault = vault
        self._now = now
        self._log = log
        self._held = HeldJobs(settings)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._moves: list[JobMove] = []
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._draining = False
        self._claim_ms = self._sweep_ms = 0.0  # when there is something to begin, and to sweep; hub ms
        self._give_back_s = 0.0  # monotonic
        self._limits = RetryLimits()
        self._budgets: OrderedDict[str, RetryBudget] = OrderedDict()

    def check(self, model: str, body: bytes, tenant: str) -> None:
        """OipError(404 or 400) if no such model is served, or it does not take the request."""
        self._computer.check(model, body, tenant)

    def expect(self, due_ms: float, timer_ms: float) -> None:
        """Look at the table at these times (hub ms): a job was added, or changed."""
        self._claim_ms, self._sweep_ms = min(self._claim_ms, due_ms), min(self._sweep_ms, timer_ms)
        self._wake.set()

    def drain(self) -> None:
        """Begin no more jobs."""
        self._draining = True
        self._wake.set()

    def forget(self, job_id: str) -> None:
        """Compute a job no more: it was cancelled."""
        if self._held.remove(job_id) is not None:
            self._stop_task(job_id)
            self._wake.set()

    async def settle(self, within_s: float) -> None:
        """Wait until what is in hand has ended or was given back. Call it when the queues refuse everything."""
        until = time.monotonic() + within_s
        while len(self._held) and time.monotonic() < until:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.01)

    async def run(self) -> None:
        """Run jobs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_moves(), name="jobs-moves")
            try:
                while True:
                    await self._take_turn(group)
                    await self._sleep()
            finally:
                for task in self._tasks.values():
                    task.cancel()

    async def _sleep(self) -> None:
        now_ms = self._now() * 1000
        due_s = (min(self._claim_ms, self._sweep_ms) - now_ms) / 1000 if not self._draining else LOOK_S
        try:
            async with asyncio.timeout(min(LOOK_S, max(0.01, due_s))):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _take_turn(self, group: asyncio.TaskGroup) -> None:
        gained, lost = self._held.follow_terms(self._store.terms)
        for job_id in lost:
            self._stop_task(job_id)
        try:
            await self._give_back(gained=gained)
            await self._sweep()
            if not self._draining:
                await self._claim(group)
        except WorkFailedError:
            self._give_back_s = 0.0  # what was begun, if anything was, is given back first
            self._claim_ms = self._sweep_ms = self._now() * 1000 + RETRY_S * 1000

    async def _give_back(self, *, gained: bool) -> None:
        """Queue again what runs nowhere, after shards were gained and once a minute."""
        if self._held.shards == frozenset() or not (gained or time.monotonic() >= self._give_back_s):
            return
        now_ms, keep_ms = int(self._now() * 1000), int(self.settings.keep_dead_s * 1000)
        work = GiveBackJobs(self._held.shards, self._held.ids, now_ms, keep_ms)
        queued, dead = await self._store.run_work(work)
        self._give_back_s = time.monotonic() + (GIVE_BACK_S if self._store.shared else float("inf"))
        self.counts["jobs.given_back"] += queued
        self.counts["jobs.dead"] += dead
        self._claim_ms = 0.0

    async def _sweep(self) -> None:
        now_ms = int(self._now() * 1000)
        if now_ms < self._sweep_ms:
            return
        self._sweep_ms = float("inf")
        await self._store.run_work(SweepBatches(now_ms))
        found = await self._store.run_work(SweepJobs(now_ms, int(self.settings.keep_s * 1000)))
        self.counts["jobs.expired"] += found.expired
        later = now_ms + SWEEP_S * 1000 if self._store.shared else float("inf")
        due_ms = later if found.next_ms is None else max(found.next_ms, now_ms + 100)
        self._sweep_ms = min(self._sweep_ms, later, due_ms)

    async def _claim(self, group: asyncio.TaskGroup) -> None:
        """Begin what is due, and start a task for each."""
        now_ms = int(self._now() * 1000)
        plan = self._held.plan_claim(now_ms) if now_ms >= self._claim_ms else None
        if plan is None:
            return
        self._claim_ms = float("inf")
        claimed, next_ms = await self._store.run_work(ClaimJobs(plan))
        later = now_ms + LOOK_S * 1000 if self._store.shared else float("inf")
        for each in claimed:
            self._held.add(each.job)
            self.counts["jobs.begun"] += 1
            task = group.create_task(self._run_job(each), name=f"job-{each.job.id}")
            self._tasks[each.job.id] = task
        due_ms = now_ms + LOOK_S * 1000 if claimed else later if next_ms is None else max(next_ms, now_ms + 100)
        self._claim_ms = min(self._claim_ms, later, due_ms)

    def _stop_task(self, job_id: str) -> None:
        task = self._tasks.pop(job_id, None)
        if task is not None:
            task.cancel()

    async def _run_job(self, claimed: ClaimedJob) -> None:
        job = claimed.job
        if job.claims == 1:
            self._earn(job.tenant)
        while True:
            outcome = await self._compute(claimed)
            now_ms = int(self._now() * 1000)
            retries = isinstance(outcome, JobRefusal) and outcome.reason is RefusalReason.MODEL_GONE
            chance = random.random(), self._may_retry(job.tenant) if retries else True  # noqa: S311 - jitter
            found = decide_move(job, outcome, self.settings, now_ms, chance)
            if isinstance(found, JobMove):
                self._tasks.pop(job.id, None)
                self._moves.append(found)
                self._moved.set()
                return
            await self._wait(found)

    async def _wait(self, found: WaitInQueue) -> None:
        """Wait for room in the queues; a hub that stops is asked at once, and refuses."""
        until = time.monotonic() + found.delay_s
        while not self._draining and time.monotonic() < until:  # noqa: ASYNC110 - two things to wait for
            await asyncio.sleep(min(0.25, max(0.0, until - time.monotonic())))
        if self._draining:
            await asyncio.sleep(0.05)

    async def _compute(self, claimed: ClaimedJob) -> JobOutcome:
        job = claimed.job
        try:
            body = self._vault.open_body(job.id, claimed.body)
            outcome = await self._computer.compute(job, body, job.timer_ms / 1000 - self._now())
        except WrongRegionKeyError:
            detail = "its body cannot be opened: it was sealed under another key, or was changed"
            return JobRefusal(RefusalReason.ENGINE, detail=detail)
        except Exception as error:  # noqa: BLE001 - the runner outlives a defect that one input meets
            self._log.defect("job_defect", error)
            detail = f"the hub met a defect with this input ({describe_error(error)}), see its log"
            return JobRefusal(RefusalReason.ENGINE, detail=detail)
        if isinstance(outcome, JobAnswer):
            return JobAnswer(self._vault.seal_answer(job.id, outcome.output))
        return outcome

    async def _write_moves(self) -> None:
        """Write moves as they come, all that have gathered in one piece of work."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            moves, self._moves = self._moves, []
            moves = [move for move in moves if self._held.find(move.job.id) == move.job]
            self._make_room(moves)
            try:
                counted = await self._store.run_work(EndJobs(moves)) if moves else frozenset()
            except WorkFailedError:
                await asyncio.sleep(RETRY_S)
                self._moves += moves
                self._moved.set()
                continue
            for move in moves:
                self._held.remove(move.job.id)
                self._note_move(move, counts=move.job.id in counted)
            self._wake.set()

    def _make_room(self, moves: Sequence[JobMove]) -> None:
        """Let others be begun in the commit that ends these."""
        for move in moves:
            self._held.end(move.job.id)
        if any(move.ends for move in moves):
            self._claim_ms = 0.0
            self._wake.set()

    def _note_move(self, move: JobMove, *, counts: bool) -> None:
        if not counts:
            self.counts["jobs.overtaken"] += 1  # cancelled, erased, or another hub's by now
            return
        self.counts["jobs.again" if move.state is JobState.QUEUED else f"jobs.{move.state}"] += 1
        due_ms = move.not_before_ms if move.state is JobState.QUEUED else float("inf")
        self._claim_ms = min(self._claim_ms, due_ms)
        self._sweep_ms = min(self._sweep_ms, move.timer_ms)

    # -- budgets of retries

    def _budget_of(self, tenant: str) -> RetryBudget:
        return self._budgets.get(tenant) or open_budget(self._limits, self._now())

    def _earn(self, tenant: str) -> None:
        self._remember(tenant, earn_retries(self._budget_of(tenant), self._limits, self._now()))

    def _may_retry(self, tenant: str) -> bool:
        left = spend_retry(self._budget_of(tenant), self._limits, self._now())
        if left is not None:
            self._remember(tenant, left)
        return left is not None

    def _remember(self, tenant: str, budget: RetryBudget) -> None:
        self._budgets[tenant] = budget
        self._budgets.move_to_end(tenant)
        if len(self._budgets) > MAX_TENANTS:
            self._budgets.popitem(last=False)
