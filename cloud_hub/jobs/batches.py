"""Batches of jobs: a file of JSON lines that comes in bounded memory, counts as a whole, and shows its progress.

Rule: a file with one wrong line, too long, or broken off leaves nothing behind. Rule: at no time is more than a part of
it in memory.
"""

from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

import msgspec

from cloud_hub.jobs.batch_table import (
    BatchView,
    CancelBatch,
    CloseBatch,
    DropBatch,
    JobBatch,
    OpenBatch,
    ReleaseJobs,
    read_answers,
    read_batch,
)
from cloud_hub.jobs.decisions import BatchLimits, keep_ms
from cloud_hub.jobs.desk import JobConflictError, JobDesk, JobOrder
from cloud_hub.jobs.states import ENDED, Job, JobState
from cloud_hub.jobs.table import AddJobs, NewJob
from wire.http.oip import OipError
from wire.text import strip_mark

RECEIVE_S = 900.0  # in which a file has to be here
PART_JOBS = 128  # stored at once ...
PART_BYTES = 1 << 20  # ... or at so many bytes
MAX_ANSWERS = 1000


class BatchReceivingError(Exception):
    """A batch with the same Idempotency-Key is coming in right now."""


ReadLine = Callable[[bytes], JobOrder]  # OipError says what is wrong with it


async def split_lines(chunks: AsyncIterator[bytes], limits: BatchLimits) -> AsyncIterator[bytes]:
    """Yield the lines of a file, empty ones too. OipError(413) once it, or a line of it, is too long."""
    rest, total, first = bytearray(), 0, True
    async for chunk in chunks:
        total += len(chunk)
        if total > limits.max_bytes:
            raise OipError(413, f"the file is longer than {limits.max_bytes} bytes")
        rest += chunk
        *lines, left = bytes(rest).split(b"\n") if b"\n" in chunk else [b""]
        rest = bytearray(left) if lines else rest
        for line in lines:
            yield strip_mark(line) if first else line
            first = False
        if len(rest) > limits.max_line_bytes:
            raise OipError(413, f"a line is longer than {limits.max_line_bytes} bytes")
    if rest:
        yield strip_mark(bytes(rest)) if first else bytes(rest)


class BatchDesk:
    """Takes and shows batches, over the desk of jobs."""

    def __init__(self, desk: JobDesk, limits: BatchLimits) -> None:
        self._desk = desk
        self._limits = limits

    async def submit(self, chunks: AsyncIterator[bytes], read_line: ReadLine, tenant: str, key: str) -> JobBatch:
        """Store a file of jobs, or find the one that the same Idempotency-Key stored.

        OipError(400 or 413) says which line is wrong; BatchReceivingError; JobConflictError if the key was another
        file's; JobQuotaError if the tenant has too many open; WorkFailedError or SQLAlchemyError if it could not be
        written. Then nothing of it is left.
        """
        batch = self._desk.prepare_batch(tenant, key, RECEIVE_S)
        known: JobBatch | None = await self._desk.run_work(OpenBatch(batch))
        if known is not None:
            return await self._compare(known, chunks)
        whole = False
        try:
            lines, fingerprint = await self._receive(batch, split_lines(chunks, self._limits), read_line)
            whole = await self._desk.run_work(CloseBatch(batch.id, lines, fingerprint))
        finally:
            if not whole:
                await self._drop(batch)
        await self._release(batch)
        return msgspec.structs.replace(batch, lines=lines)

    async def _receive(self, batch: JobBatch, lines: AsyncIterator[bytes], read_line: ReadLine) -> tuple[int, bytes]:
        """Store the lines in parts; returns how many there are, and their digest."""
        digest, part, size, number, jobs = sha256(), list[NewJob](), 0, 0, 0
        async for line in lines:
            number += 1
            digest.update(line + b"\n")
            if not line.strip():
                continue
            jobs += 1
            if jobs > self._limits.max_lines:
                raise OipError(413, f"the file has more than {self._limits.max_lines} lines")
            if jobs > self._desk.settings.tenant_open:
                raise OipError(
                    413, f"the file has more jobs than a tenant may have open, {self._desk.settings.tenant_open}"
                )
            part.append(self._prepare(batch, line, number, read_line))
            size += len(line)
            if len(part) >= PART_JOBS or size >= PART_BYTES:
                await self._add_part(batch, part)
                part, size = [], 0
        if not jobs:
            raise OipError(400, "the file has no line")
        await self._add_part(batch, part)
        return jobs, digest.digest()

    async def _add_part(self, batch: JobBatch, part: list[NewJob]) -> None:
        async with self._desk.reserve(batch.tenant, len(part)):
            await self._desk.run_work(AddJobs(part))

    def _prepare(self, batch: JobBatch, line: bytes, number: int, read_line: ReadLine) -> NewJob:
        try:
            new = self._desk.prepare(read_line(line), anywhere=True)
        except OipError as error:
            raise OipError(error.status, f"line {number}: {error}") from None
        changes: dict[str, Any] = {"state": JobState.ACCEPTED, "batch": batch.id, "line": number}
        return NewJob(msgspec.structs.replace(new.job, timer_ms=batch.timer_ms + 60_000, **changes), new.body)

    async def _compare(self, known: JobBatch, chunks: AsyncIterator[bytes]) -> JobBatch:
        """Return the earlier batch if this is the same file."""
        if not known.lines:
            raise BatchReceivingError
        digest = sha256()
        async for line in split_lines(chunks, self._limits):
            digest.update(line + b"\n")
        if digest.digest() != known.fingerprint:
            raise JobConflictError
        await self._release(known)  # its hub may have ended in the middle of it
        return known

    async def _release(self, batch: JobBatch) -> None:
        while await self._desk.run_work(ReleaseJobs(batch.id, self._desk.now_ms())):
            self._desk.expect_now()
        self._desk.expect_now()

    async def _drop(self, batch: JobBatch) -> None:
        while await self._desk.run_work(DropBatch(batch.id)):
            pass

    async def show(self, batch_id: str, tenant: str) -> BatchView | None:
        """Return a batch of a tenant ("" = of any) with its progress; None if there is none."""
        return await self._desk.read(lambda rows: read_batch(rows, batch_id, tenant))

    async def list_answers(self, batch_id: str, tenant: str, after: int) -> list[tuple[Job, bytes]] | None:
        """Return the job and the answer of answered jobs after a line, at most `MAX_ANSWERS`; None: no such batch."""
        if await self.show(batch_id, tenant) is None:
            return None
        found = await self._desk.read(lambda rows: read_answers(rows, batch_id, after, MAX_ANSWERS))
        return [(job, self._desk.open_answer(job.id, sealed)) for job, sealed in found]

    async def cancel(self, batch_id: str, tenant: str) -> int | None:
        """Cancel what has not ended; returns how many jobs that were, None if there is no such batch."""
        if await self.show(batch_id, tenant) is None:
            return None
        keep, total = keep_ms(JobState.CANCELLED, self._desk.settings), 0
        while count := await self._desk.run_work(CancelBatch(batch_id, self._desk.now_ms(), keep)):
            total += count
        return total


def describe_batch(view: BatchView) -> dict[str, Any]:
    """Return the fields of a batch that callers see. `state`: receiving, running or ended."""
    ended = sum(count for state, count in view.states.items() if state in ENDED)
    left = sum(view.states.values()) - ended
    state = "receiving" if not view.batch.lines else "running" if left else "ended"
    counts = {each.value: view.states.get(each, 0) for each in JobState}
    return {"id": view.batch.id, "state": state, "made_ms": view.batch.made_ms, "lines": view.batch.lines} | {
        "ended": ended,
        "jobs": counts,
    }
