"""States of a job, the moves between them, and a job as it is stored. Pure.

Rule: a job that has ended stays as it ended; only a dead one can be queued again, by a person.
"""

from enum import StrEnum
from typing import Any

import msgspec

from wire.protocol.topics import compute_shard


class JobState(StrEnum):
    """Where a job is in its life.

    `accepted`: stored, but it does not take its turn yet: its batch is still coming in. `queued`: it waits for its
    turn, or for its next try. `running`: a hub has it in its queues or on an engine. The others are endings: `failed`:
    its input cannot be computed by its model; `expired`: its own time was over first; `dead`: it was tried in vain, or
    found poisoned, and lies until somebody looks.
    """

    ACCEPTED = "accepted"
    QUEUED = "queued"
    RUNNING = "running"
    ANSWERED = "answered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"


_ENDED_BEFORE_ITS_TURN = frozenset({JobState.CANCELLED, JobState.EXPIRED})
MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.ACCEPTED: frozenset({JobState.QUEUED}) | _ENDED_BEFORE_ITS_TURN,
    JobState.QUEUED: frozenset({JobState.RUNNING}) | _ENDED_BEFORE_ITS_TURN,
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.ANSWERED, JobState.FAILED, JobState.DEAD})
    | _ENDED_BEFORE_ITS_TURN,
    JobState.DEAD: frozenset({JobState.QUEUED}),
}
OPEN = frozenset({JobState.ACCEPTED, JobState.QUEUED, JobState.RUNNING})
ENDED = frozenset(JobState) - OPEN


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is stored, without its body. Times in hub milliseconds; each field is explained at its table."""

    id: str
    tenant: str
    caller: str
    shard: int
    model: str
    state: JobState
    made_ms: int
    not_before_ms: int
    timer_ms: int
    timeout_ms: int
    fingerprint: bytes
    tries: int = 0
    crashes: int = 0
    claims: int = 0
    why: str = ""
    ended_ms: int | None = None
    known_by: bytes | None = None
    batch: str = ""
    line: int = 0
    device: str = ""
    subject: bytes | None = None
    hook: bytes | None = None
    notify_ms: int | None = None
    notify_tries: int = 0
    custom_id: str = ""


class ClaimedJob(msgspec.Struct, frozen=True):
    """A job that this hub has begun, with its sealed body."""

    job: Job
    body: bytes


class JobMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a running job, as the hub that has begun it decided it.

    It counts only if nobody has begun the job again since (`job.claims`). `answer`: sealed.
    """

    job: Job
    state: JobState
    at_ms: int
    timer_ms: int
    tries: int
    not_before_ms: int = 0
    why: str = ""
    answer: bytes | None = None

    @property
    def ends(self) -> bool:
        """Whether the job has ended with it."""
        return self.state in ENDED


def make_job_id(now_ms: int, random: bytes) -> str:
    """Return the id of a job: 12 hex digits of the time, so that ids sort by it, and 20 of ten random bytes."""
    return f"{now_ms:012x}{random.hex()}"


def shard_of_job(job_id: str) -> int:
    """Return the shard that a job belongs to."""
    return compute_shard(job_id)


def describe_job(job: Job) -> dict[str, Any]:
    """Return the fields of a job that callers see."""
    return {
        "id": job.id,
        "state": job.state.value,
        "model": job.model,
        "tenant": job.tenant,
        "made_ms": job.made_ms,
        "ended_ms": job.ended_ms,
        "until_ms": job.timer_ms,
        "tries": job.tries,
        "why": job.why,
        "batch": job.batch,
        "line": job.line,
        "custom_id": job.custom_id,
    }
