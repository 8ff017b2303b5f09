"""What follows from the result of a running job: an ending, another try, or waiting. Pure.

Rule: what a job's input or model causes ends it; what the hub's state causes (busy, draining, rate) costs it no try.
Rule: a sample that failed alone on an engine that works is poisoned (see `core.scheduler`): it is not tried again.
"""

import msgspec

from cloud_hub.jobs.states import Job, JobMove, JobState
from policies.monitoring.backoff import compute_delay
from wire.protocol.messages import RefusalReason

RETRY_BASE_S = 2.0
RETRY_CAP_S = 300.0
SUSPECT_CRASHES = 2  # with so many a job is held beside no other suspect ...
DEAD_CRASHES = 4  # ... and with so many it is not begun again
_PASSING = frozenset({RefusalReason.BUSY, RefusalReason.RATE})
_FINAL = {RefusalReason.SCHEMA: JobState.FAILED, RefusalReason.ENGINE: JobState.DEAD}
MAX_WAIT_S = 30.0


class BatchLimits(msgspec.Struct, frozen=True):
    """Limits of a file, and of each of its lines."""

    max_bytes: int = 256 << 20
    max_lines: int = 50_000
    max_line_bytes: int = 16 << 20


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of jobs. Times in seconds.

    `timeout_s`: a job's own time if it names none; `tries`: how often one is tried; `keep_s`: how long an ended one is
    kept, `keep_dead_s` a dead one; `window`: how many jobs a hub has in its queues at once.
    `webhooks_inwards`: webhooks may be on this machine and in its own network. `tenant_open`: jobs of a tenant that
    have not ended.
    """

    timeout_s: float = 86_400.0
    tries: int = 5
    keep_s: float = 86_400.0
    keep_dead_s: float = 7 * 86_400.0
    window: int = 128
    tenant_open: int = 100_000
    webhooks_inwards: bool = False
    batches: BatchLimits = BatchLimits()


class JobAnswer(msgspec.Struct, frozen=True):
    """A job was computed. `output`: JSON of the protocol's response, sealed or not as the caller has it."""

    output: bytes


class JobRefusal(msgspec.Struct, frozen=True):
    """A job was not computed. `detail`: the same in words, "" = what stands here."""

    reason: RefusalReason
    retry_after_s: float = 0.0
    detail: str = ""


class WaitInQueue(msgspec.Struct, frozen=True):
    """The hub has no room for the job now: it is asked again by the same hub."""

    delay_s: float


JobOutcome = JobAnswer | JobRefusal
_MESSAGES = {
    RefusalReason.SCHEMA: "its input does not fit its model",
    RefusalReason.ENGINE: "the model failed on this input alone, while it computed others: the input is at fault",
    RefusalReason.MODEL_GONE: "no hub here serves its model",
}


def decide_move(
    job: Job, outcome: JobOutcome, settings: JobSettings, now_ms: int, chance: tuple[float, bool]
) -> JobMove | WaitInQueue:
    """Return what happens with a running job after a result.

    `chance`: a random number in 0..1 for the delay of another try, and whether its tenant's budget allows one now.
    """
    if isinstance(outcome, JobAnswer):
        return msgspec.structs.replace(_end(job, JobState.ANSWERED, settings, now_ms), answer=outcome.output)
    if now_ms >= job.timer_ms or outcome.reason is RefusalReason.EXPIRED:
        return _end(job, JobState.EXPIRED, settings, now_ms, describe_expiry(job))
    if outcome.reason in _PASSING:
        longest_s = min(MAX_WAIT_S, max(1.0, outcome.retry_after_s))
        return WaitInQueue(0.5 * longest_s * (1.0 + chance[0]))
    if outcome.reason is RefusalReason.DRAINING:
        return _queue_again(job, now_ms, now_ms, job.tries, "")
    why = outcome.detail or _MESSAGES.get(outcome.reason, outcome.reason.value)
    if outcome.reason in _FINAL:
        return _end(job, _FINAL[outcome.reason], settings, now_ms, why)
    return _retry(job, why, settings, now_ms, chance)


def _retry(job: Job, why: str, settings: JobSettings, now_ms: int, chance: tuple[float, bool]) -> JobMove:
    """Try again after a delay with full jitter; without budget only the delay is repeated, and no try is counted."""
    jitter, may_retry = chance
    tries = job.tries + 1 if may_retry or job.tries == 0 else job.tries
    if tries >= settings.tries:
        found = _end(job, JobState.DEAD, settings, now_ms, f"tried {tries} times: {why}")
        return msgspec.structs.replace(found, tries=tries)
    delay_s = compute_delay(tries, jitter, RETRY_BASE_S, RETRY_CAP_S) if may_retry else RETRY_CAP_S * (0.5 + jitter / 2)
    return _queue_again(job, now_ms, now_ms + int(delay_s * 1000), tries, why)


def _queue_again(job: Job, now_ms: int, not_before_ms: int, tries: int, why: str) -> JobMove:
    return JobMove(
        job=job,
        state=JobState.QUEUED,
        at_ms=now_ms,
        timer_ms=job.timer_ms,
        tries=tries,
        not_before_ms=not_before_ms,
        why=why,
    )


def _end(job: Job, state: JobState, settings: JobSettings, now_ms: int, why: str = "") -> JobMove:
    """Return the move that ends a job, as one more try."""
    timer_ms = now_ms + keep_ms(state, settings)
    return JobMove(job=job, state=state, at_ms=now_ms, timer_ms=timer_ms, tries=job.tries + 1, why=why)


def keep_ms(state: JobState, settings: JobSettings) -> int:
    """Return how long a job is kept that ends so, in ms."""
    return int(1000 * (settings.keep_dead_s if state is JobState.DEAD else settings.keep_s))


def describe_expiry(job: Job) -> str:
    """Return why a job expired, for people."""
    return f"its own time of {job.timeout_ms / 1000:g} s was over before it was computed"


def describe_crashes(crashes: int) -> str:
    """Return why a job is dead whose hub ended again and again, for people."""
    return f"its hub ended, or lost it to another one, {crashes} times while it had this job in hand"
