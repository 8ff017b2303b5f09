"""Statements of webhooks: which endings are told next, and how telling them went. Each is sent until it is taken."""

from collections.abc import Set as AbstractSet

import sqlalchemy as sa

from cloud_hub.database.tables import jobs
from cloud_hub.jobs.reading import job_columns, parse_job
from cloud_hub.jobs.states import Job
from cloud_hub.jobs.table import Unfenced

AT_ONCE = 32
HOLD_MS = 60_000  # after which an ending is told again whose hub has ended in the middle


class ClaimHooks:
    """Takes endings that are to be told now; returns them, and when the next one is due (hub ms; None: none waits)."""

    def __init__(self, shards: AbstractSet[int] | None, now_ms: int) -> None:
        self._all = shards is None
        self.shards: AbstractSet[int] = frozenset(shards or ())
        self._now_ms = now_ms

    def leave_out(self, shards: AbstractSet[int]) -> None:
        """Take nothing of these shards."""
        self.shards = frozenset(self.shards - shards)

    def run(self, connection: sa.Connection) -> tuple[list[Job], int | None]:
        """Choose the oldest, and hold them for a while."""
        mine = sa.true() if self._all else jobs.c.shard.in_(sorted(self.shards))
        due = sa.select(jobs.c.id).where(jobs.c.notify_ms <= self._now_ms, mine)
        ids = list(connection.execute(due.order_by(jobs.c.notify_ms).limit(AT_ONCE)).scalars())
        held = {"notify_ms": self._now_ms + HOLD_MS, "notify_tries": jobs.c.notify_tries + 1}
        taken = jobs.update().where(jobs.c.id.in_(ids), jobs.c.notify_ms.is_not(None)).values(held)
        rows = connection.execute(taken.returning(*job_columns)).all()
        waits = sa.select(sa.func.min(jobs.c.notify_ms)).where(mine, jobs.c.notify_ms.is_not(None))
        following = connection.execute(waits).scalar()
        return [parse_job(row) for row in rows], None if following is None else int(following)


class SettleHook(Unfenced):
    """Notes that an ending was told (`again_ms` None), or when it is told again."""

    def __init__(self, job: Job, again_ms: int | None) -> None:
        self._job, self._again_ms = job, again_ms

    def run(self, connection: sa.Connection) -> None:
        """Write it, unless somebody else has taken it since, or the job was queued again."""
        same = (jobs.c.id == self._job.id, jobs.c.notify_tries == self._job.notify_tries)
        still = (jobs.c.ended_ms == self._job.ended_ms, jobs.c.notify_ms.is_not(None))
        connection.execute(jobs.update().where(*same, *still).values(notify_ms=self._again_ms))
