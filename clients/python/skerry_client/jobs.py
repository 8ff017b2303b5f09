"""Jobs and batches of a hub: work that is handed over, left alone, and come back for."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from skerry_client.errors import APIResponseValidationError, APITimeoutError, check_seconds
from skerry_client.exchange.commands import (
    Item,
    Items,
    Pause,
    Request,
    Steps,
    build_path,
    encode_json,
    fetch_object,
    parse_object,
    post_json,
    send,
)
from skerry_client.exchange.operations import AsyncCalls, BlockingCalls, iteration, operation
from skerry_client.inference import Prediction, ServedModel, build_json_inference, fetch_model, read_predictions
from skerry_client.reading import read_list, read_value

PAGE = 100
ANSWERS_PAGE = 1000  # a hub gives at most so many at once
FIRST_POLL_S = 0.1
MAX_POLL_S = 2.0


class JobState(StrEnum):
    """Where a job is in its life; the last five are endings."""

    ACCEPTED = "accepted"
    QUEUED = "queued"
    RUNNING = "running"
    ANSWERED = "answered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"


_OPEN = frozenset({JobState.ACCEPTED, JobState.QUEUED, JobState.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job. `why`: what its last try met, or why it ended so. `answer`: of an answered one, asked for by id."""

    id: str
    state: JobState
    model: str
    tenant: str = ""
    made_ms: int = 0
    ended_ms: int | None = None
    until_ms: int = 0
    tries: int = 0
    why: str = ""
    batch: str = ""
    line: int = 0
    answer: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state not in _OPEN

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """What the model said, for each sample; none before it is answered."""
        return () if self.answer is None else read_predictions(self.answer, f"job {self.id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Progress of a file of jobs. `state`: receiving, running or ended; `jobs`: how many are in which state."""

    id: str
    state: str
    lines: int
    ended: int
    jobs: dict[str, int]
    made_ms: int = 0


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer of one line of a batch, lines counted from 1."""

    line: int
    job: str
    answer: dict[str, Any]

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """What the model said, for each sample of the line."""
        return read_predictions(self.answer, f"job {self.job}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What else a job says of itself (docs/jobs.md).

    `timeout_s`: its own time, 0 = the hub's default; `webhook`: a URL that is told of its end; `device`, `subject`:
    whom it is about, a device of the tenant and the keyed hash (hex) of a person there.
    """

    timeout_s: float = 0.0
    webhook: str = ""
    device: str = ""
    subject: str = ""

    def fields(self) -> dict[str, Any]:
        """The fields that are set."""
        return {key: value for key, value in asdict(self).items() if value}


_NO_OPTIONS = JobOptions()


class JobOperations:
    """Jobs: each a request for inference that outlives its caller."""

    @operation
    def submit(
        self,
        model: str,
        sample: object,
        *,
        key: str | None = None,
        options: JobOptions = _NO_OPTIONS,
    ) -> Steps[Job]:
        """Hand one sample over to a model, `NAME` or `NAME@VERSION`; returns once it is stored.

        `key`: its Idempotency-Key: the same key and sample is the same job, whoever sends it again; drawn if left out.
        SampleError if it does not fit the model.
        """
        served = yield from fetch_model(model.partition("@")[0])
        asked = {"model": model, "request": build_json_inference(served, [sample]), **options.fields()}
        request = post_json("/v1/jobs", asked, key=key or uuid.uuid4().hex)
        return read_value(Job, (yield from fetch_object(request)), request.where)

    @operation
    def get(self, job: Job | str) -> Steps[Job]:
        """Return what became of a job, with its answer. NotFoundError for an unknown one."""
        return (yield from _fetch_job("GET", job))

    @operation
    def wait(self, job: Job | str, *, wait_s: float = 60.0) -> Steps[Job]:
        """Return a job once it has ended. APITimeoutError if it has not within `wait_s`."""
        check_seconds("wait_s", wait_s)
        spent_s, pause_s = 0.0, FIRST_POLL_S
        while True:
            found = yield from _fetch_job("GET", job)
            if found.ended:
                return found
            if spent_s >= wait_s:
                raise APITimeoutError(f"job {found.id} is {found.state} after {wait_s:g} s: ask again, or cancel it")
            yield Pause(pause_s, pause_s)
            spent_s, pause_s = spent_s + pause_s, min(MAX_POLL_S, pause_s * 1.5)

    @iteration
    def list(self, *, state: "JobState | str | Sequence[JobState | str] | None" = None) -> Items[Job]:
        """Iterate over this caller's jobs, the oldest first; `state`: of these states alone. Without their answers."""
        states = None if state is None else [state] if isinstance(state, str) else [*state]
        after = None
        while after != "":
            request = Request("GET", build_path("v1", "jobs", state=states, limit=PAGE, after=after), safe=True)
            found = yield from fetch_object(request)
            for job in read_list(Job, found, "jobs", request.where):
                yield Item(job)
            after = str(found.get("next") or "")

    @operation
    def cancel(self, job: Job | str) -> Steps[Job]:
        """Cancel a job. ConflictError if it has ended."""
        return (yield from _fetch_job("DELETE", job))

    @operation
    def requeue(self, job: Job | str) -> Steps[Job]:
        """Queue a dead job again. ConflictError if it is not dead."""
        return (yield from _fetch_job("POST", job, "requeue"))


def _fetch_job(method: str, job: Job | str, *more: str) -> Steps[Job]:
    path = build_path("v1", "jobs", job if isinstance(job, str) else job.id, *more)
    request = Request(method, path, safe=method == "GET")
    return read_value(Job, (yield from fetch_object(request)), request.where)


class BatchOperations:
    """Batches: many jobs handed over as one file."""

    @operation
    def submit(
        self,
        model: str,
        samples: Iterable[object],
        *,
        key: str | None = None,
        options: JobOptions = _NO_OPTIONS,
    ) -> Steps[Batch]:
        """Hand over a job for each sample, all or none; returns once they are stored. Keys and options as of a job."""
        served = yield from fetch_model(model.partition("@")[0])
        lines = b"".join(_encode_line(model, served, sample, options) for sample in samples)
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": f'"{key or uuid.uuid4().hex}"'}
        request = Request("POST", "/v1/batches", lines, headers, safe=True)
        return read_value(Batch, (yield from fetch_object(request)), request.where)

    @operation
    def get(self, batch: Batch | str) -> Steps[Batch]:
        """Return the progress of a batch. NotFoundError for an unknown one."""
        return (yield from _fetch_batch("GET", batch))

    @operation
    def wait(self, batch: Batch | str, *, wait_s: float = 600.0) -> Steps[Batch]:
        """Return a batch once all its jobs have ended. APITimeoutError if they have not within `wait_s`."""
        check_seconds("wait_s", wait_s)
        spent_s, pause_s = 0.0, FIRST_POLL_S
        while True:
            found = yield from _fetch_batch("GET", batch)
            if found.state == "ended":
                return found
            if spent_s >= wait_s:
                raise APITimeoutError(f"batch {found.id}: {found.ended} of {found.lines} ended after {wait_s:g} s")
            yield Pause(pause_s, pause_s)
            spent_s, pause_s = spent_s + pause_s, min(MAX_POLL_S, pause_s * 1.5)

    @iteration
    def answers(self, batch: Batch | str, *, after: int = 0) -> Items[BatchAnswer]:
        """Iterate over the answers that are there, in the order of the samples, behind a line."""
        count = ANSWERS_PAGE
        while count == ANSWERS_PAGE:
            name = batch if isinstance(batch, str) else batch.id
            request = Request("GET", build_path("v1", "batches", name, "answers", after=after), safe=True)
            lines = (yield from send(request)).body.splitlines()
            count = len(lines)
            for line in lines:
                answer = read_value(BatchAnswer, parse_object(line, request.where), request.where)
                if answer.line <= after:
                    raise APIResponseValidationError(f"{request.where}: line {answer.line} came again")
                after = answer.line
                yield Item(answer)

    @operation
    def cancel(self, batch: Batch | str) -> Steps[Batch]:
        """Cancel what has not ended of a batch. ConflictError if everything has."""
        return (yield from _fetch_batch("DELETE", batch))


def _encode_line(model: str, served: ServedModel, sample: object, options: JobOptions) -> bytes:
    return encode_json({"model": model, "request": build_json_inference(served, [sample]), **options.fields()}) + b"\n"


def _fetch_batch(method: str, batch: Batch | str) -> Steps[Batch]:
    path = build_path("v1", "batches", batch if isinstance(batch, str) else batch.id)
    request = Request(method, path, safe=method == "GET")
    return read_value(Batch, (yield from fetch_object(request)), request.where)


class Jobs(JobOperations, BlockingCalls):
    """Jobs of a hub; each call blocks until its reply is there."""


class AsyncJobs(JobOperations, AsyncCalls):
    """Jobs of a hub, on asyncio."""


class Batches(BatchOperations, BlockingCalls):
    """Batches of a hub; each call blocks until its reply is there."""


class AsyncBatches(BatchOperations, AsyncCalls):
    """Batches of a hub, on asyncio."""
