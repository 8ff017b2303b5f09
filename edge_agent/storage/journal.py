"""Answer journal: records answers, delivers them to waiting callers, and streams committed ones as events.

Rule: a caller may get an answer before its commit, an event stream never. Records of purely local answers are written
together, every `answers_every_s`, or with the next record that must be durable; every `flush_s` while a stream is open,
and at once for whoever asks for one by its id. A crash loses those not yet written, and nothing that a hub knows of.
Beyond `pending_max_rows` unwritten ones the newest are dropped from the record and counted; their callers still get
them.
"""

import asyncio
import sqlite3
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from edge_agent.question.commands import Answer, Correction
from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource, EventRecord, SampleOrigin, Timings
from edge_agent.storage import answers
from edge_agent.storage.database import Database, DatabaseTrouble
from edge_agent.system.clock import HubClock
from edge_agent.system.settings import AgentSettings
from policies.model.reasons import DecisionReason

_FULL_GROUP = 256  # rows that are written without waiting for more
_PAGE_ROWS = 256
_WHY_COUNT = {why: f"answers_why_{why}" for why in DecisionReason}


class Journal:
    """Makes and writes answer records. Owned by the event loop; `counts` is shared for reading only."""

    def __init__(self, settings: AgentSettings, database: Database, clock: HubClock, counts: Counter[str]) -> None:
        self._settings = settings
        self._db = database
        self._clock = clock
        self._counts = counts
        self._pending: list[AnswerRecord] = []
        self._unwritten = 0
        self._callers: dict[str, asyncio.Future[AnswerRecord]] = {}
        self._recent: OrderedDict[str, tuple[AnswerRecord, ...]] = OrderedDict()
        self._news = asyncio.Event()
        self._streams = 0  # open event streams
        self._flush_timer: asyncio.TimerHandle | None = None
        self._listener: Callable[[AnswerRecord], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_settings(self, settings: AgentSettings) -> None:
        """Go by these limits from now on."""
        self._settings = settings

    def open(self) -> None:
        """Bind it to the running event loop, which flushes it from now on."""
        self._loop = asyncio.get_running_loop()

    def listen(self, listener: Callable[[AnswerRecord], None]) -> None:
        """Call `listener` with every record of a question from now on, as it is delivered."""
        self._listener = listener

    # Writing

    def record_local(
        self, answer: Answer, trace: str, timings: Timings, subject: bytes = b"", energy_j: float = 0.0
    ) -> AnswerRecord:
        """Record an answer that needs no hub (the hot path); it is written later, and nobody waits for that."""
        # by position, as every local answer passes here: eleven keywords cost 3 % of the agent's added time
        record = AnswerRecord(
            answer.id, AnswerKind.ANSWER, answer.source, answer.why, answer.prediction, answer.policy,
            answer.data_class, "", trace, timings, self._clock.hub_ms(), 0, subject, energy_j,
        )  # fmt: skip
        counts = self._counts
        counts["answers_local"] += 1
        counts[_WHY_COUNT[answer.why]] += 1
        if self._unwritten >= self._settings.pending_max_rows:
            counts["answers_dropped"] += 1
            return record
        self._unwritten += 1
        self._pending.append(record)
        if len(self._pending) == 1 and self._loop is not None:
            wait_s = self._settings.flush_s if self._streams else self._settings.answers_every_s
            self._flush_timer = self._loop.call_later(wait_s, self.flush)
        elif len(self._pending) >= _FULL_GROUP:
            self.flush()
        return record

    def make_record(self, said: Answer | Correction, seq: str, origin: SampleOrigin, asked_mj: int = 0) -> AnswerRecord:
        """Make the record of an answer or correction that the core returned for a question.

        `asked_mj`: energy of sending the question, in millijoules.
        """
        kind, source, why = AnswerKind.CORRECTION, AnswerSource.HUB, said.why
        if isinstance(said, Answer):
            kind, source = AnswerKind.ANSWER, said.source
        self._counts["corrections" if kind is AnswerKind.CORRECTION else f"answers_{source}"] += 1
        self._counts[_WHY_COUNT[why]] += 1
        total_s = self._clock.now() - origin.started if origin.started else 0.0
        return AnswerRecord(
            id=said.id, kind=kind, source=source, why=why, prediction=said.prediction, policy=said.policy,
            data_class=said.data_class, seq=seq, trace=origin.trace,
            timings=Timings(origin.infer_s, total_s, said.queue_s, said.compute_s),
            at_ms=self._clock.hub_ms(), subject=origin.subject,
            energy_j=origin.energy_j + asked_mj / 1e3 if kind is AnswerKind.ANSWER else 0.0,
        )  # fmt: skip

    def deliver_record(self, record: AnswerRecord) -> None:
        """Deliver an answer to the caller who waits for it, and keep it for those who ask shortly after."""
        self._recent[record.id] = (*self._recent.get(record.id, ()), record)
        if len(self._recent) > self._settings.recent_records:
            self._recent.popitem(last=False)
        if self._listener is not None:
            self._listener(record)
        if record.kind is AnswerKind.ANSWER:
            caller = self._callers.pop(record.id, None)
            if caller is not None and not caller.done():
                caller.set_result(record)

    def forget_subject(self, subject: bytes) -> None:
        """Remove the records of an erased subject from memory."""
        for record in [record for records in self._recent.values() for record in records if record.subject == subject]:
            self._recent.pop(record.id, None)

    def expect_answer(self, id: str) -> "asyncio.Future[AnswerRecord]":  # noqa: A002 - the public name
        """A future that gets the answer of this id."""
        caller: asyncio.Future[AnswerRecord] = asyncio.get_running_loop().create_future()
        self._callers[id] = caller
        return caller

    def flush(self, *, soon: bool = False) -> None:
        """Pass the waiting local answers to the writer. `soon`: to be committed with what is written next."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._pending:
            batch, self._pending = self._pending, []
            insert = partial(answers.insert_answers, records=batch)
            self._db.write((insert,), partial(self._on_written, len(batch)), soon=soon)

    def on_commit(self) -> None:
        """New rows can be read: wake every stream and every long poll."""
        self._news.set()
        self._news = asyncio.Event()

    def _on_written(self, rows: int, trouble: DatabaseTrouble | None) -> None:
        self._unwritten -= rows
        if trouble is None:
            self.on_commit()
        else:
            self._counts["answers_dropped"] += rows

    # Reading

    async def records_for(self, id: str) -> tuple[list[AnswerRecord], bool]:  # noqa: A002
        """(records, whether the hub still owes one). Without a database: what memory holds."""
        self.flush()
        try:
            return await self._db.read(partial(_read_standing, id=id))
        except sqlite3.Error:
            return list(self._recent.get(id, ())), id in self._callers

    async def wait_for(self, id: str, timeout_s: float) -> list[AnswerRecord]:  # noqa: A002
        """The records of an id, once the hub owes none of them or `timeout_s` seconds have passed."""
        until = self._clock.now() + timeout_s
        while True:
            news = self._news
            records, owed = await self.records_for(id)
            left = until - self._clock.now()
            if left <= 0 or not (owed or id in self._callers):
                return records
            try:
                async with asyncio.timeout(left):
                    await news.wait()
            except TimeoutError:
                return (await self.records_for(id))[0]

    async def stream_events(self, after: int) -> AsyncIterator[EventRecord]:
        """Stream committed records after position `after`, without end."""
        self._streams += 1
        self.flush()
        try:
            while True:
                news = self._news
                page = await self._read_page(after)
                for record in page:
                    after = record.event
                    yield EventRecord(record.event, record)
                if len(page) < _PAGE_ROWS:
                    await news.wait()
        finally:
            self._streams -= 1

    async def last_event(self) -> int:
        """The newest event number, where a stream starts that wants only new records."""
        self.flush()
        try:
            return await self._db.read(answers.read_last_event)
        except sqlite3.Error:
            return 0

    async def _read_page(self, after: int) -> list[AnswerRecord]:
        try:
            return await self._db.read(partial(answers.read_records_after, event=after, limit=_PAGE_ROWS))
        except sqlite3.Error:
            return []  # the stream goes on when the database does

    async def store_truth(self, id: str, truth: float) -> bool:  # noqa: A002
        """Store what was true. False if the id is unknown, or if the disk does not take it."""
        self.flush()
        try:
            return await self._db.read(partial(answers.store_truth, id=id, truth=truth, at_ms=self._clock.hub_ms()))
        except sqlite3.Error:
            return False

    async def explain_answer(self, id: str) -> dict[str, Any]:  # noqa: A002
        """The explanation of one answer (see `answers.facts`); empty without a database."""
        self.flush()
        try:
            return await self._db.read(partial(answers.explain_answer, id=id))
        except sqlite3.Error:
            return {}


def _read_standing(db: sqlite3.Connection, id: str) -> tuple[list[AnswerRecord], bool]:  # noqa: A002
    """The records of an id, and whether its question is still in the outbox."""
    owed = db.execute("select 1 from outbox where id=?", (id,)).fetchone() is not None
    return answers.read_records(db, id), owed
