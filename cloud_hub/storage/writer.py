"""The one thread that writes to the store: jobs that wait are executed together, in one transaction.

Rule: a job that fails a transaction fails alone; a server as a whole that does not work fails all that wait.
"""

import asyncio
import queue
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.database.errors import describe_fault
from cloud_hub.storage.jobs import JobResult, StoreError, StoreJob
from cloud_hub.storage.store import Store

GROUP = 64  # jobs per transaction; a job is one round of the loop, up to 64 messages

DoneCallback = Callable[[list[JobResult]], None]


class StoreWriter:
    """Runs store jobs on one thread.

    Call `submit` on the event loop; `on_done` is called there with each commit's results.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop, on_done: DoneCallback) -> None:
        self._store = store
        self._loop = loop
        self._on_done = on_done
        self._jobs: queue.SimpleQueue[StoreJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_thread, name="hub-store", daemon=True)
        self.commits = 0
        self._thread.start()

    def submit(self, job: StoreJob) -> None:
        """Queue a job for the next commit."""
        self._jobs.put(job)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def close(self) -> None:
        """Write what was submitted, then end the thread and close the database."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        self._store.close()

    def _run_thread(self) -> None:
        while True:
            jobs = self._collect_jobs()
            work = [job for job in jobs if job is not None]
            if work:
                self._run_jobs(work)
            if len(work) != len(jobs):
                return

    def _run_jobs(self, jobs: list[StoreJob]) -> None:
        """Commit jobs and post their results; those of a rewrite after it, which takes its time."""
        dones = self._apply_jobs(jobs)
        waiting = [done for done in dones if done.job.rewrite and not done.error]
        self._post_results([done for done in dones if done not in waiting])
        if waiting:
            self._rewrite(waiting)
            self._post_results(waiting)

    def _rewrite(self, dones: list[JobResult]) -> None:
        try:
            if self._store.needs_rewrite():
                self._store.rewrite()
        except (StoreError, SQLAlchemyError) as error:
            unfinished = error.reason if isinstance(error, StoreError) else describe_fault(error)
            for done in dones:
                done.unfinished = unfinished

    def _collect_jobs(self) -> list[StoreJob | None]:
        jobs = [self._jobs.get()]
        while len(jobs) < GROUP and jobs[-1] is not None:
            try:
                jobs.append(self._jobs.get_nowait())
            except queue.Empty:
                break
        return jobs

    def _apply_jobs(self, jobs: list[StoreJob], *, again: bool = False) -> list[JobResult]:
        self.commits += 1
        try:
            return self._store.apply_jobs(jobs)
        except StoreError as error:
            if error.fenced:  # nothing was written; without what is lost the rest is
                for job in jobs:
                    job.leave_out(error.fenced)
                return self._apply_jobs(jobs, again=again)
            if error.lost and not again:  # a new connection finds out whether they were executed
                for job in jobs:
                    job.used = []  # nobody could find out whether it was counted, and nothing is billed twice
                return self._apply_jobs(jobs, again=True)
            if len(jobs) == 1 or error.unavailable:
                return [JobResult(job, error=str(error), reason=error.reason, defect=error.defect) for job in jobs]
        # One of them fails the whole transaction: run each in its own.
        return [done for job in jobs for done in self._apply_jobs([job])]

    def _post_results(self, dones: list[JobResult]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._on_done, dones)
        except RuntimeError:
            return  # the event loop was closed: the results are not wanted any more
