"""Limit of a tenant's open jobs: what would be above it is refused, with the time at which there is room again. Pure.

Rule: a count of the database is good for a second. What is taken meanwhile is added to it, what ends meanwhile is not
taken off, so a hub alone never lets a tenant above its limit; several may by what they take within a second.
"""

import msgspec

from policies.serving.admission import RefuseQuestion, RetrySchedule, schedule_retry
from wire.protocol.messages import RefusalReason

COUNT_S = 1.0  # so long a count is good
_LEAST_PACE = 1.0  # jobs a second that are assumed to end until it was seen


class OpenJobs(msgspec.Struct, frozen=True):
    """Open jobs of a tenant: `counted` at `at_s`, and `taken` here since then.

    `pace`: jobs a second that have ended between the last two counts; `line`: when the next refused caller is told to
    come back.
    """

    counted: int
    at_s: float
    taken: int = 0
    pace: float = 0.0
    line: RetrySchedule = RetrySchedule()

    @property
    def total(self) -> int:
        """Open jobs at most."""
        return self.counted + self.taken


class JobQuotaError(Exception):
    """A tenant has as many open jobs as it may. `retry_after_s`: when there is likely to be room."""

    def __init__(self, most: int, retry_after_s: float) -> None:
        super().__init__(f"{most} jobs are open, as many as a tenant may have: ask again when some have ended")
        self.retry_after_s = retry_after_s


def needs_count(known: OpenJobs | None, jobs: int, most: int, now: float, *, shared: bool) -> bool:
    """Whether the database has to be counted before so many jobs more may be taken.

    `shared`: other hubs take jobs of the tenant too.
    """
    if known is None:
        return True
    is_old = not 0 <= now - known.at_s < COUNT_S
    return is_old and (shared or known.total + jobs > most)


def recount(known: OpenJobs | None, counted: int, seen: int, now: float) -> OpenJobs:
    """Return what is known after a count. `seen`: how many had been taken here when it began, so that it has them."""
    if known is None:
        return OpenJobs(counted, now)
    ended = known.counted + seen - counted
    pace = max(0.0, ended / (now - known.at_s)) if now > known.at_s else known.pace
    return OpenJobs(counted, now, known.taken - seen, pace, known.line)


def take_jobs(known: OpenJobs, jobs: int, most: int) -> OpenJobs | None:
    """Return what is known once so many jobs more are taken; None if that is above the limit."""
    return msgspec.structs.replace(known, taken=known.taken + jobs) if known.total + jobs <= most else None


def refuse_jobs(known: OpenJobs, jobs: int, most: int, now: float) -> tuple[OpenJobs, JobQuotaError]:
    """Return what is known after a refusal, and the refusal: callers are told to come back one after another."""
    pace = max(known.pace, _LEAST_PACE)
    refused = RefuseQuestion(RefusalReason.RATE, max(COUNT_S, (known.total + jobs - most) / pace))
    line, told = schedule_retry(known.line, refused, pace, now)
    return msgspec.structs.replace(known, line=line), JobQuotaError(most, told.retry_after_s)
