"""Jobs that this hub has in hand: how many it begins of each tenant, and what becomes of them with their shards. Pure.

Rule: a hub has a window of jobs in its queues, divided evenly among the tenants that have some waiting; the rest lies
in the database. So a backlog of one tenant delays nobody, and takes no memory.
Rule: jobs that were begun while fewer tenants waited, or whose model does not answer, may take up two windows; of the
third each tenant has places of its own, whatever the others' models do.
Rule: of jobs that were in hand when a hub ended again and again, one is in hand at a time: the one at fault is found
alone, and the others go on.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from cloud_hub.jobs.decisions import SUSPECT_CRASHES, JobSettings
from cloud_hub.jobs.states import Job
from policies.serving.admission import OWN_TENANTS


class ClaimPlan(msgspec.Struct, frozen=True):
    """What a hub would begin now. `shards` None = of any; `full`: models that have enough in hand.

    `held`: jobs in hand, by tenant; `suspects`: how many it may begin of those that hubs ended with. `crowded`: so many
    are in hand that a tenant may have no more than its own places.
    """

    now_ms: int
    shards: frozenset[int] | None
    window: int
    held: dict[str, int]
    full: frozenset[str]
    suspects: int
    crowded: bool = False

    @property
    def own(self) -> int:
        """Places of each tenant that no other takes, also at models that have enough in hand."""
        return max(1, self.window // OWN_TENANTS)

    def count_own(self, tenant: str) -> int:
        """Return how many of its own places a tenant has left."""
        return max(0, self.own - self.held.get(tenant, 0))


def share_window(plan: ClaimPlan, tenants: Iterable[str]) -> dict[str, int]:
    """Return how many jobs of each of these tenants, that have some waiting, are begun."""
    waiting = sorted(set(tenants))
    share = -(-plan.window // len(waiting)) if waiting else 0
    share = min(share, plan.own) if plan.crowded else share
    quotas = {tenant: share - plan.held.get(tenant, 0) for tenant in waiting}
    return {tenant: quota for tenant, quota in quotas.items() if quota > 0}


class HeldJobs:
    """The jobs in hand, by id, and the shards that they are of."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._jobs: dict[str, Job] = {}
        self._tenants: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._ending: set[str] = set()  # their results are being written: they take no place in the queues any more
        self._terms: dict[int, int] | None = None
        self._synced = False

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._jobs)

    @property
    def shards(self) -> frozenset[int] | None:
        """The shards that are served here; None = all of them."""
        return None if self._terms is None else frozenset(self._terms)

    def find(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def follow_terms(self, terms: Mapping[int, int] | None) -> tuple[bool, list[str]]:
        """Take over which shards are served under which terms; None = all, without leases.

        Returns whether some were gained since the last call, and the ids of jobs in hand that were lost with theirs.
        """
        if terms is None:
            gained, self._synced = not self._synced, True
            return gained, []
        before, self._terms = self._terms or {}, dict(terms)
        gained = any(before.get(shard) != term for shard, term in terms.items())
        gone = {shard for shard, term in before.items() if terms.get(shard) != term}
        lost = [job.id for job in self._jobs.values() if job.shard in gone]
        for job_id in lost:
            self.remove(job_id)
        return gained, lost

    def plan_claim(self, now_ms: int) -> ClaimPlan | None:
        """Return what to begin now; None while nothing is served or three windows are full."""
        window = self._settings.window
        if self._terms == {} or len(self._jobs) >= 3 * window:
            return None
        crowded = len(self._jobs) - len(self._ending) >= 2 * window
        full = frozenset(model for model, count in self._models.items() if count >= window)
        suspects = sum(job.crashes >= SUSPECT_CRASHES for job in self._jobs.values())
        return ClaimPlan(now_ms, self.shards, window, dict(self._tenants), full, max(0, 1 - suspects), crowded)

    def add(self, job: Job) -> None:
        """Note that a job was begun."""
        self._jobs[job.id] = job
        self._tenants[job.tenant] += 1
        self._models[job.model] += 1

    def end(self, job_id: str) -> None:
        """Note that a job's result is being written: another one may take its place in the queues."""
        job = self._jobs.get(job_id)
        if job is not None and job_id not in self._ending:
            self._ending.add(job_id)
            self._leave_queue(job)

    def remove(self, job_id: str) -> Job | None:
        """Forget a job; returns it if it was in hand."""
        job = self._jobs.pop(job_id, None)
        if job is not None and job_id in self._ending:
            self._ending.remove(job_id)
        elif job is not None:
            self._leave_queue(job)
        return job

    def _leave_queue(self, job: Job) -> None:
        for counts, name in ((self._tenants, job.tenant), (self._models, job.model)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
