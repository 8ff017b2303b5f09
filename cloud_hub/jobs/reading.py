"""Reads of jobs: one, lists, counts, answers. Nothing here writes, or rests on a lease."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import sqlalchemy as sa

from cloud_hub.database.tables import job_bodies, jobs
from cloud_hub.jobs.decisions import SUSPECT_CRASHES
from cloud_hub.jobs.states import OPEN, Job, JobState

job_columns = [jobs.c[name] for name in Job.__struct_fields__]
OPEN_STATES = sorted(state.value for state in OPEN)
NOT_ENDED = jobs.c.ended_ms.is_(None)  # said beside an open state, since the index of those has such rows alone

# As a number in the statement: an index of these rows is used only where it is seen to be meant.
SUSPECT = jobs.c.crashes >= sa.literal_column(str(SUSPECT_CRASHES))


def read_job(connection: sa.Connection, job_id: str, tenant: str) -> Job | None:
    """Return a job of a tenant ("" = of any); None if there is none."""
    query = sa.select(*job_columns).where(jobs.c.id == job_id)
    row = connection.execute(query if not tenant else query.where(jobs.c.tenant == tenant)).first()
    return parse_job(row) if row is not None else None


def read_answer(connection: sa.Connection, job_id: str) -> bytes | None:
    """Return the sealed answer of a job."""
    return connection.execute(sa.select(job_bodies.c.answer).where(job_bodies.c.id == job_id)).scalar()


def list_jobs(
    connection: sa.Connection, tenant: str, states: Sequence[JobState], *, after: str = "", limit: int = 100
) -> list[Job]:
    """Return jobs of a tenant ("" = of any) in these states (none named: in any), in the order of their making."""
    query = sa.select(*job_columns).where(jobs.c.id > after).order_by(jobs.c.id).limit(limit)
    if tenant:
        query = query.where(jobs.c.tenant == tenant)
    if states:
        query = query.where(jobs.c.state.in_([state.value for state in states]))
    return [parse_job(row) for row in connection.execute(query)]


def count_states(connection: sa.Connection) -> dict[JobState, int]:
    """Return how many jobs are in each state."""
    rows = connection.execute(sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state))
    return {JobState(state): int(count) for state, count in rows}


def count_open(connection: sa.Connection, tenant: str) -> int:
    """Return how many jobs of a tenant have not ended."""
    query = sa.select(sa.func.count()).where(jobs.c.state.in_(OPEN_STATES), jobs.c.tenant == tenant, NOT_ENDED)
    return int(connection.execute(query).scalar() or 0)


def count_waiting(connection: sa.Connection, shards: AbstractSet[int] | None) -> dict[str, int]:
    """Return how many jobs of these shards (None: of all) wait for their turn, by model."""
    mine = [jobs.c.state == JobState.QUEUED.value, NOT_ENDED]
    if shards is not None:
        mine.append(jobs.c.shard.in_(sorted(shards)))
    rows = connection.execute(sa.select(jobs.c.model, sa.func.count()).where(*mine).group_by(jobs.c.model))
    return {model: int(count) for model, count in rows}


def has_key(connection: sa.Connection, known_by: bytes) -> bool:
    """Whether there is a job of this Idempotency-Key."""
    return connection.execute(sa.select(jobs.c.id).where(jobs.c.known_by == known_by)).first() is not None


def parse_job(row: Any) -> Job:
    """Return the job that a row of `job_columns` is."""
    found = dict(zip(Job.__struct_fields__, row, strict=True))
    found["state"] = JobState(found["state"])
    return Job(**found)
