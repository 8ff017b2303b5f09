"""Statements of jobs: each `...Jobs` class is one piece of work in a transaction of the store. Owns their rows.

Rule: every move of a job is compare-and-set: a row is changed only where it is still in the state, and in the claim,
that the move was decided on. Rule: what a hub does as the one that serves a shard (to begin, end, give back) is fenced
by its lease (`shards`); what anybody may do (to add, cancel, queue again, erase, let time pass) is not.
Rule: every piece of work may be given twice, since nobody knows of a lost COMMIT whether it was carried out.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud_hub.database.arrays import KEY
from cloud_hub.database.statements import change_rows, delete_rows, insert_or_leave, insert_rows, match_any
from cloud_hub.database.tables import job_bodies, jobs
from cloud_hub.jobs.decisions import DEAD_CRASHES, SUSPECT_CRASHES, describe_crashes
from cloud_hub.jobs.held import ClaimPlan, share_window
from cloud_hub.jobs.reading import NOT_ENDED, OPEN_STATES, SUSPECT, job_columns, parse_job, read_job
from cloud_hub.jobs.states import OPEN, ClaimedJob, Job, JobMove, JobState

_CHUNK = 500
WAITS = jobs.c.state == JobState.QUEUED.value
# Said so that the index of states does not serve: SQLite knows nothing of how few suspects are, and would look at all
# that wait.
WAITS_BESIDE = jobs.c.state.concat("") == JobState.QUEUED.value
_SWEEP_ROWS = 2000  # in a transaction, so that a backlog stalls nobody


class _JobPlace(NamedTuple):
    """Where a job is in its life."""

    id: str
    state: JobState
    claims: int
    ended_ms: int | None
    not_before_ms: int

    def is_after(self, move: JobMove) -> bool:
        """Whether a move has led here."""
        if (self.claims, self.state) != (move.job.claims, move.state):
            return False
        return self.ended_ms == move.at_ms if move.ends else self.not_before_ms == _not_before(move)


class NewJob(msgspec.Struct, frozen=True):
    """A job to be added, with its sealed body."""

    job: Job
    body: bytes


class Unfenced:
    """Work that rests on no lease."""

    shards: AbstractSet[int] = frozenset()

    def leave_out(self, shards: AbstractSet[int]) -> None:
        """No lease is missed."""


class AddJobs(Unfenced):
    """Adds jobs; returns, by id, the earlier job of the same Idempotency-Key where there is one."""

    def __init__(self, added: Sequence[NewJob]) -> None:
        self._added = added

    def run(self, connection: sa.Connection) -> dict[str, Job]:
        """Insert rows and bodies. A job that is there already is left as it is."""
        plain = [each for each in self._added if each.job.known_by is None]
        there = _read_places(connection, [each.job.id for each in plain])
        new = [each for each in plain if each.job.id not in there]
        insert_rows(connection, jobs, [_row_values(each.job) for each in new])
        insert_rows(connection, job_bodies, [_body_values(each) for each in new])
        return dict(
            found for each in self._added if each.job.known_by is not None for found in _add_known(connection, each)
        )


def _add_known(connection: sa.Connection, new: NewJob) -> Iterable[tuple[str, Job]]:
    """Insert a job with an Idempotency-Key, unless there is one."""
    if insert_or_leave(connection, jobs, _row_values(new.job)):
        insert_rows(connection, job_bodies, [_body_values(new)])
        return
    row = connection.execute(sa.select(*job_columns).where(jobs.c.known_by == new.job.known_by)).first()
    if row is not None and row.id != new.job.id:
        yield new.job.id, parse_job(row)


class ClaimJobs:
    """Begins jobs whose turn it is; returns them, and when the next one is due (hub ms; None: none waits)."""

    def __init__(self, plan: ClaimPlan) -> None:
        self._plan = plan
        self.shards = plan.shards or frozenset()

    def leave_out(self, shards: AbstractSet[int]) -> None:
        """Begin nothing of these shards."""
        self.shards -= shards
        self._plan = msgspec.structs.replace(self._plan, shards=self.shards)

    def run(self, connection: sa.Connection) -> tuple[list[ClaimedJob], int | None]:
        """Choose and mark; the oldest of each tenant first."""
        ids: list[str] = []
        for tenant, quota in share_window(self._plan, _list_tenants(connection)).items():
            ids += self._choose_due(connection, tenant, quota)
        if self._plan.suspects:
            ids += connection.execute(self._select_suspects().limit(self._plan.suspects)).scalars()
        mark = {"state": JobState.RUNNING.value, "claims": jobs.c.claims + 1}
        found: list[ClaimedJob] = []
        for at in range(0, len(ids), _CHUNK):
            chunk = ids[at : at + _CHUNK]
            marked = jobs.update().where(match_any(connection, jobs.c.id, chunk), WAITS).values(mark)
            begun = [parse_job(row) for row in connection.execute(marked.returning(*job_columns))]
            bodies = _read_bodies(connection, [job.id for job in begun])
            found += [ClaimedJob(job, bodies.get(job.id, b"")) for job in begun]
        found.sort(key=lambda each: (each.job.not_before_ms, each.job.id))
        return found, None if found else self._next_due(connection)

    def _choose_due(self, connection: sa.Connection, tenant: str, quota: int) -> list[str]:
        """Return the oldest of a tenant's jobs that are due; of models that have enough in hand for its own places."""
        due = list(connection.execute(self._select_due(tenant, self._plan.full).limit(quota)).scalars())
        left = min(quota - len(due), self._plan.count_own(tenant) - len(due))
        if not self._plan.full or left <= 0:
            return due
        beside = self._select_due(tenant, frozenset()).where(jobs.c.model.in_(sorted(self._plan.full)))
        return due + list(connection.execute(beside.limit(left)).scalars())

    def _mine(self, full: frozenset[str], waits: sa.ColumnElement[bool] = WAITS) -> list[sa.ColumnElement[bool]]:
        mine = [waits, NOT_ENDED]
        if self._plan.shards is not None:
            mine.append(jobs.c.shard.in_(sorted(self._plan.shards)))
        if full:
            mine.append(jobs.c.model.not_in(sorted(full)))
        return mine

    def _select_due(self, tenant: str, full: frozenset[str]) -> sa.Select[Any]:
        due = jobs.c.not_before_ms <= self._plan.now_ms
        query = sa.select(jobs.c.id).where(*self._mine(full), jobs.c.tenant == tenant, due)
        return query.where(jobs.c.crashes < SUSPECT_CRASHES).order_by(jobs.c.not_before_ms, jobs.c.id)

    def _select_suspects(self) -> sa.Select[Any]:
        due = jobs.c.not_before_ms <= self._plan.now_ms
        query = sa.select(jobs.c.id).where(*self._mine(self._plan.full, WAITS_BESIDE), due, SUSPECT)
        return query.order_by(jobs.c.not_before_ms, jobs.c.id)

    def _next_due(self, connection: sa.Connection) -> int | None:
        found = connection.execute(
            sa.select(sa.func.min(jobs.c.not_before_ms)).where(*self._mine(self._plan.full))
        ).scalar()
        return None if found is None else int(found)


class EndJobs:
    """Writes moves of running jobs; returns the ids of those that counted."""

    def __init__(self, moves: Sequence[JobMove]) -> None:
        self._moves = list(moves)
        self.shards: AbstractSet[int] = frozenset(move.job.shard for move in moves)

    def leave_out(self, shards: AbstractSet[int]) -> None:
        """Write nothing of these shards."""
        self._moves = [move for move in self._moves if move.job.shard not in shards]
        self.shards = frozenset(self.shards - shards)

    def run(self, connection: sa.Connection) -> frozenset[str]:
        """Write each move whose job is still running under the same claim."""
        changed = change_rows(connection, jobs, [_move_values(move) for move in self._moves], "ended_ms")
        counted = self._moves if changed == len(self._moves) else self._find_counting(connection)
        answered = [{f"{KEY}id": m.job.id, "answer": m.answer, "body": None} for m in counted if m.answer is not None]
        change_rows(connection, job_bodies, answered, "answer")  # where a try before this one has not
        kept = (JobState.QUEUED, JobState.ANSWERED, JobState.DEAD)
        delete_rows(connection, job_bodies, [{f"{KEY}id": m.job.id} for m in counted if m.state not in kept])
        return frozenset(move.job.id for move in counted)

    def _find_counting(self, connection: sa.Connection) -> list[JobMove]:
        """Moves that were written just now, or by an earlier try of this very work."""
        now = _read_places(connection, [move.job.id for move in self._moves])
        return [move for move in self._moves if (place := now.get(move.job.id)) and place.is_after(move)]


class GiveBackJobs:
    """Queues jobs again that run nowhere: their hub ended, or lost them. Returns how many were queued and were dead.

    `held`: what this hub has in hand. A job that hubs ended with too often is dead instead.
    """

    def __init__(self, shards: AbstractSet[int] | None, held: AbstractSet[str], now_ms: int, keep_dead_ms: int) -> None:
        self._all = shards is None
        self.shards: AbstractSet[int] = frozenset(shards or ())
        self._held = held
        self._now_ms = now_ms
        self._keep_dead_ms = keep_dead_ms

    def leave_out(self, shards: AbstractSet[int]) -> None:
        """Leave the jobs of these shards alone."""
        self.shards = frozenset(self.shards - shards)

    def run(self, connection: sa.Connection) -> tuple[int, int]:
        """Find and queue them, with one crash more."""
        runs = sa.and_(jobs.c.state == JobState.RUNNING.value, NOT_ENDED)
        mine = sa.true() if self._all else jobs.c.shard.in_(sorted(self.shards))
        rows = connection.execute(sa.select(jobs.c.id, jobs.c.crashes).where(runs, mine)).all()
        lost = [row for row in rows if row.id not in self._held]
        dead = [row for row in lost if row.crashes + 1 >= DEAD_CRASHES]
        queued = [row.id for row in lost if row.crashes + 1 < DEAD_CRASHES]
        again = {"state": JobState.QUEUED.value, "crashes": jobs.c.crashes + 1, "not_before_ms": self._now_ms}
        for at in range(0, len(queued), _CHUNK):
            chunk = jobs.c.id.in_(queued[at : at + _CHUNK])
            connection.execute(jobs.update().where(chunk, runs).values(again))
        for row in dead:
            ended = {"state": JobState.DEAD.value, "crashes": row.crashes + 1, "ended_ms": self._now_ms}
            ended |= {"why": describe_crashes(row.crashes + 1), "timer_ms": self._now_ms + self._keep_dead_ms}
            connection.execute(
                jobs.update().where(jobs.c.id == row.id, runs).values(**ended, **notify_owner(self._now_ms))
            )
        return len(queued), len(dead)


class CancelJob(Unfenced):
    """Cancels a job that has not ended; returns it as it was, None if there is none of this tenant."""

    def __init__(self, job_id: str, tenant: str, now_ms: int, keep_ms: int) -> None:
        self._job_id, self._tenant = job_id, tenant
        self._values = {"state": JobState.CANCELLED.value, "ended_ms": now_ms, "timer_ms": now_ms + keep_ms, "why": ""}
        self._values |= notify_owner(now_ms)

    def run(self, connection: sa.Connection) -> Job | None:
        """Cancel, unless it has ended."""
        found = read_job(connection, self._job_id, self._tenant)
        if found is None or found.state not in OPEN:
            return found
        still = sa.and_(jobs.c.id == found.id, jobs.c.state.in_(OPEN_STATES))
        if not connection.execute(jobs.update().where(still).values(self._values)).rowcount:
            return read_job(connection, self._job_id, self._tenant)
        delete_rows(connection, job_bodies, [{f"{KEY}id": found.id}])
        return found


class RequeueJob(Unfenced):
    """Queues a dead job again, as a new one; returns it as it was, None if there is none of this tenant."""

    def __init__(self, job_id: str, tenant: str, now_ms: int) -> None:
        self._job_id, self._tenant, self._now_ms = job_id, tenant, now_ms

    def run(self, connection: sa.Connection) -> Job | None:
        """Queue again, with its own time from now on."""
        found = read_job(connection, self._job_id, self._tenant)
        if found is None or found.state is not JobState.DEAD:
            return found
        values = {"state": JobState.QUEUED.value, "ended_ms": None, "tries": 0, "crashes": 0, "why": ""}
        values |= {"not_before_ms": self._now_ms, "timer_ms": self._now_ms + found.timeout_ms}
        values |= {"notify_ms": None, "notify_tries": 0}
        still = sa.and_(jobs.c.id == found.id, jobs.c.state == JobState.DEAD.value)
        done = connection.execute(jobs.update().where(still).values(values)).rowcount
        return found if done else read_job(connection, self._job_id, self._tenant)


class SweptJobs(NamedTuple):
    """What a sweep did. `next_ms`: when the next one has something to do, hub ms; None: there is no job at all."""

    expired: int
    deleted: int
    next_ms: int | None


class SweepJobs(Unfenced):
    """Lets time pass: open jobs whose own time is over expire, ended ones go with their bodies."""

    def __init__(self, now_ms: int, keep_ms: int) -> None:
        self._now_ms, self._keep_ms = now_ms, keep_ms

    def run(self, connection: sa.Connection) -> SweptJobs:
        """Expire and delete, at most some thousands."""
        query = sa.select(jobs.c.id, jobs.c.state, jobs.c.timeout_ms).where(jobs.c.timer_ms <= self._now_ms)
        rows = connection.execute(query.order_by(jobs.c.timer_ms).limit(_SWEEP_ROWS)).all()
        gone = [row.id for row in rows if row.state not in OPEN_STATES]
        delete_rows(connection, jobs, [{f"{KEY}id": each} for each in gone])
        over = {row.id: row.timeout_ms for row in rows if row.state in OPEN_STATES}
        for job_id, timeout_ms in over.items():
            values = {"state": JobState.EXPIRED.value, "ended_ms": self._now_ms, **notify_owner(self._now_ms)}
            values |= {"timer_ms": self._now_ms + self._keep_ms, "why": _describe_wait(timeout_ms)}
            still = sa.and_(jobs.c.id == job_id, jobs.c.state.in_(OPEN_STATES))
            connection.execute(jobs.update().where(still).values(values))
        delete_rows(connection, job_bodies, [{f"{KEY}id": each} for each in (*gone, *over)])
        following = connection.execute(sa.select(sa.func.min(jobs.c.timer_ms))).scalar()
        return SweptJobs(len(over), len(gone), None if following is None else int(following))


def erase_jobs(connection: sa.Connection, device: str, subject: bytes, before_ms: int) -> int:
    """Delete what was handed over about a subject of a device; returns how many jobs that were."""
    about = (jobs.c.device == device, jobs.c.subject == subject, jobs.c.made_ms <= before_ms)
    ids = list(connection.execute(sa.select(jobs.c.id).where(*about)).scalars())
    for table in (jobs, job_bodies):
        delete_rows(connection, table, [{f"{KEY}id": each} for each in ids])
    return len(ids)


def notify_owner(now_ms: int) -> dict[str, Any]:
    """Have the owner told that a job has ended, if it names a webhook."""
    return {"notify_ms": sa.case((jobs.c.hook.is_not(None), now_ms), else_=None)}


def _describe_wait(timeout_ms: int) -> str:
    return f"its own time of {timeout_ms / 1000:g} s was over before it was computed"


def _list_tenants(connection: sa.Connection) -> list[str]:
    """Tenants that have jobs waiting: a step in the index for each of them, however many jobs there are."""
    waits = sa.and_(WAITS, NOT_ENDED)
    owners = sa.select(sa.func.min(jobs.c.tenant).label("tenant")).where(waits).cte("owners", recursive=True)
    following = sa.select(sa.func.min(jobs.c.tenant)).where(waits, jobs.c.tenant > owners.c.tenant).scalar_subquery()
    owners = owners.union_all(sa.select(following).where(owners.c.tenant.is_not(None)))
    return [row.tenant for row in connection.execute(sa.select(owners.c.tenant)) if row.tenant is not None]


def _read_places(connection: sa.Connection, ids: Sequence[str]) -> dict[str, _JobPlace]:
    """Where these jobs are in their lives; until the transaction ends nobody else moves them."""
    columns = [jobs.c[name] for name in _JobPlace._fields]
    found: dict[str, _JobPlace] = {}
    for at in range(0, len(ids), _CHUNK):
        query = sa.select(*columns).where(jobs.c.id.in_(ids[at : at + _CHUNK])).order_by(jobs.c.id).with_for_update()
        found |= {row.id: _JobPlace(row.id, JobState(row.state), *row[2:]) for row in connection.execute(query)}
    return found


def _read_bodies(connection: sa.Connection, ids: Sequence[str]) -> dict[str, bytes]:
    query = sa.select(job_bodies.c.id, job_bodies.c.body).where(match_any(connection, job_bodies.c.id, ids))
    return {row.id: bytes(row.body) for row in connection.execute(query) if row.body is not None}


def _row_values(job: Job) -> dict[str, Any]:
    return {**msgspec.structs.asdict(job), "state": job.state.value}


def _body_values(new: NewJob) -> dict[str, Any]:
    return {"id": new.job.id, "body": new.body, "answer": None}


def _not_before(move: JobMove) -> int:
    return move.not_before_ms or move.job.not_before_ms


def _move_values(move: JobMove) -> dict[str, Any]:
    return {
        f"{KEY}id": move.job.id,
        f"{KEY}state": JobState.RUNNING.value,
        f"{KEY}claims": move.job.claims,
        "state": move.state.value,
        "ended_ms": move.at_ms if move.ends else None,
        "timer_ms": move.timer_ms,
        "tries": move.tries,
        "not_before_ms": _not_before(move),
        "why": move.why,
        "notify_ms": move.at_ms if move.ends and move.job.hook is not None else None,
    }
