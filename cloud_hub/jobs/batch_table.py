"""Statements of batches: files of jobs that come in line by line, and count only as a whole.

Rule: jobs of a batch that is still coming in are `accepted`: nobody begins them. They take their turn once the last
line is there, in parts of some thousands; what a hub that ended left of that is found by the next sweep.
"""

from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud_hub.database.arrays import KEY
from cloud_hub.database.statements import delete_rows, insert_or_leave
from cloud_hub.database.tables import job_batches, job_bodies, jobs
from cloud_hub.jobs.reading import job_columns, parse_job
from cloud_hub.jobs.states import OPEN, Job, JobState
from cloud_hub.jobs.table import Unfenced, notify_owner

PART_ROWS = 1000
_COMING_IN = jobs.c.state == JobState.ACCEPTED.value
_IN_BATCH = jobs.c.batch != ""  # said beside a batch, since its index has such rows alone


class JobBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it is stored. `lines` 0: it is still coming in. Times in hub milliseconds."""

    id: str
    tenant: str
    made_ms: int
    timer_ms: int
    lines: int = 0
    known_by: bytes | None = None
    fingerprint: bytes | None = None


_COLUMNS = [job_batches.c[name] for name in JobBatch.__struct_fields__]


class BatchView(NamedTuple):
    """A batch, and how many of its jobs are in each state."""

    batch: JobBatch
    states: dict[JobState, int]


class OpenBatch(Unfenced):
    """Begins a batch; returns the earlier one of the same Idempotency-Key, None if there is none."""

    def __init__(self, batch: JobBatch) -> None:
        self._batch = batch

    def run(self, connection: sa.Connection) -> JobBatch | None:
        """Insert the row, unless there is one of this key."""
        if insert_or_leave(connection, job_batches, msgspec.structs.asdict(self._batch)):
            return None
        same = sa.or_(job_batches.c.known_by == self._batch.known_by, job_batches.c.id == self._batch.id)
        row = connection.execute(sa.select(*_COLUMNS).where(same)).first()
        return None if row is None or row.id == self._batch.id else JobBatch(**row._mapping)  # noqa: SLF001


class CloseBatch(Unfenced):
    """Notes that all lines of a batch are there; from then on its jobs count. Returns whether it was there."""

    def __init__(self, batch_id: str, lines: int, fingerprint: bytes) -> None:
        self._batch_id = batch_id
        self._values = {"lines": lines, "fingerprint": fingerprint}

    def run(self, connection: sa.Connection) -> bool:
        """Write the number of lines."""
        mine = job_batches.update().where(job_batches.c.id == self._batch_id)
        return bool(connection.execute(mine.values(self._values)).rowcount)


class ReleaseJobs(Unfenced):
    """Has jobs of a complete batch take their turn; returns whether more are left."""

    def __init__(self, batch_id: str, now_ms: int) -> None:
        self._batch_id, self._now_ms = batch_id, now_ms

    def run(self, connection: sa.Connection) -> bool:
        """Queue some."""
        mine = sa.select(jobs.c.id).where(jobs.c.batch == self._batch_id, _IN_BATCH, _COMING_IN).order_by(jobs.c.line)
        ids = list(connection.execute(mine.limit(PART_ROWS)).scalars())
        values = {"state": JobState.QUEUED.value, "timer_ms": self._now_ms + jobs.c.timeout_ms}
        connection.execute(jobs.update().where(jobs.c.id.in_(ids), _COMING_IN).values(values))
        return len(ids) == PART_ROWS


class DropBatch(Unfenced):
    """Deletes a batch that did not come in whole, in parts; returns whether more is left."""

    def __init__(self, batch_id: str) -> None:
        self._batch_id = batch_id

    def run(self, connection: sa.Connection) -> bool:
        """Delete some jobs, and the batch with the last of them."""
        mine = sa.select(jobs.c.id).where(jobs.c.batch == self._batch_id, _IN_BATCH).limit(PART_ROWS)
        ids = list(connection.execute(mine).scalars())
        for table in (jobs, job_bodies):
            delete_rows(connection, table, [{f"{KEY}id": each} for each in ids])
        if len(ids) == PART_ROWS:
            return True
        connection.execute(job_batches.delete().where(job_batches.c.id == self._batch_id))
        return False


class CancelBatch(Unfenced):
    """Cancels the jobs of a batch that have not ended, in parts; returns how many."""

    def __init__(self, batch_id: str, now_ms: int, keep_ms: int) -> None:
        self._batch_id = batch_id
        self._values: dict[str, Any] = {
            "state": JobState.CANCELLED.value,
            "ended_ms": now_ms,
            "timer_ms": now_ms + keep_ms,
        }
        self._values |= notify_owner(now_ms)

    def run(self, connection: sa.Connection) -> int:
        """Cancel some."""
        still = jobs.c.state.in_(sorted(state.value for state in OPEN))
        mine = sa.select(jobs.c.id).where(jobs.c.batch == self._batch_id, _IN_BATCH, still).limit(PART_ROWS)
        ids = list(connection.execute(mine.with_for_update()).scalars())
        connection.execute(jobs.update().where(jobs.c.id.in_(ids), still).values(self._values))
        delete_rows(connection, job_bodies, [{f"{KEY}id": each} for each in ids])
        return len(ids)


class SweepBatches(Unfenced):
    """Lets time pass: jobs that a hub left coming in are deleted, or queued if their batch is whole; empty ones go."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def run(self, connection: sa.Connection) -> None:
        """Do some of it."""
        over = job_batches.c.timer_ms <= self._now_ms
        query = sa.select(job_batches.c.id, job_batches.c.lines).where(over).limit(PART_ROWS)
        for row in connection.execute(query).all():
            if not row.lines:
                DropBatch(row.id).run(connection)
                continue
            ReleaseJobs(row.id, self._now_ms).run(connection)
            left = sa.exists().where(jobs.c.batch == row.id, _IN_BATCH)
            connection.execute(job_batches.delete().where(job_batches.c.id == row.id, ~left))


def read_batch(connection: sa.Connection, batch_id: str, tenant: str) -> BatchView | None:
    """Return a batch of a tenant ("" = of any) with its progress; None if there is none."""
    query = sa.select(*_COLUMNS).where(job_batches.c.id == batch_id)
    row = connection.execute(query if not tenant else query.where(job_batches.c.tenant == tenant)).first()
    if row is None:
        return None
    counted = sa.select(jobs.c.state, sa.func.count()).where(jobs.c.batch == batch_id, _IN_BATCH).group_by(jobs.c.state)
    states = {JobState(state): int(count) for state, count in connection.execute(counted)}
    return BatchView(JobBatch(**row._mapping), states)  # noqa: SLF001


def read_answers(connection: sa.Connection, batch_id: str, after: int, limit: int) -> list[tuple[Job, bytes]]:
    """Return the job and its sealed answer of a batch's answered jobs, in the order of their lines, after a line."""
    joined = jobs.join(job_bodies, job_bodies.c.id == jobs.c.id)
    mine = (jobs.c.batch == batch_id, _IN_BATCH, jobs.c.line > after, job_bodies.c.answer.is_not(None))
    query = sa.select(*job_columns, job_bodies.c.answer).select_from(joined).where(*mine)
    rows = connection.execute(query.order_by(jobs.c.line).limit(limit))
    return [(parse_job(row[:-1]), row[-1]) for row in rows]
