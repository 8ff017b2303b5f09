"""Obeys the core: each list of commands is one step, written in one transaction; nothing is sent before its commit.

Law: a question that cannot be transformed, sealed or stored does not leave; the core hears why and answers here.
"""

import asyncio
import sqlite3
from collections import Counter
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from edge_agent import answers, ledger, meta, outbox
from edge_agent.clock import HubClock
from edge_agent.commands import (
    Answer,
    Command,
    Correction,
    Finish,
    Mark,
    Reseal,
    SayHello,
    SendAsk,
    State,
    Store,
    Transmit,
    WakeAt,
)  # fmt: skip
from edge_agent.core import EdgeCore
from edge_agent.database import Database, Op, Trouble
from edge_agent.desk import Asked, Desk
from edge_agent.envelope import Envelopes
from edge_agent.journal import Journal
from edge_agent.ledger import Entry
from edge_agent.link import Link
from edge_agent.outbox import OutboxRow
from edge_agent.records import AnswerRecord, Timings
from edge_agent.vault import VaultError
from policies.reasons import FAULTS, Why
from wire.errors import LocalError
from wire.messages import Ask, Hello, ModelRef, UpNote
from wire.topics import Channel

T = TypeVar("T")
_UNFIT = (*FAULTS, msgspec.MsgspecError)  # what transforming and encoding a question can raise: deny


class Parts(NamedTuple):
    """Everything the hands work with, each owned by the event loop."""

    core: EdgeCore
    database: Database
    desk: Desk
    journal: Journal
    link: Link
    envelopes: Envelopes
    clock: HubClock
    counts: Counter[str]
    hello: Hello  # with epoch 0: the core knows it later
    max_age_s: float


class Hands:
    """The one way from commands to deeds."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._core = parts.core
        self._alarm: asyncio.TimerHandle | None = None
        self._marks: dict[int, Op] = {}
        self.unrecorded = 0  # outcomes on their way to the disk: their questions are still open there

    def obey(self, commands: list[Command], asked: Asked | None = None) -> None:
        """`asked`: the sample behind a `Store` in this step."""
        ops: list[Op] = []
        said: list[AnswerRecord] = []
        owed, ended = False, 0
        for command in commands:
            if isinstance(command, Answer | Correction):
                said.append(self._record(command, asked))
                ops.append(partial(answers.insert, r=said[-1]))
                owed = owed or command.seq is not None
            elif isinstance(command, Finish):
                ops += self._finish(command)
                owed, ended = True, ended + 1
            elif isinstance(command, Store) and asked is not None:
                self._store(command, asked)
            else:
                self._act(command)
        if ops:
            ops += self._take_marks()
            self.unrecorded += ended
            self._parts.database.write(tuple(ops), partial(self._committed, ended), must=owed, soon=True)
        for record in said:
            self._parts.journal.say(record)

    def introduce(self, models: tuple[ModelRef, ...]) -> None:
        """Say hello with these models, now and from now on."""
        hello = msgspec.structs.replace(self._parts.hello, models=models)
        self._parts = self._parts._replace(hello=hello)
        if self._core.link.up:
            self._act(SayHello())

    def flush_marks(self) -> None:
        """What is worth remembering but not worth a commit of its own."""
        if self._marks:
            self._parts.database.write(self._take_marks())

    def wake(self) -> None:
        self._alarm = None
        self.obey(self._core.on_wake(self._parts.clock.now()))

    def rest(self) -> None:
        """No more alarms."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # One command

    def _act(self, command: Command) -> None:
        if isinstance(command, Transmit):
            self._transmit(command.seq)
        elif isinstance(command, Mark):
            self._mark(command)
        elif isinstance(command, WakeAt):
            self._set_alarm(command.when)
        elif isinstance(command, SendAsk):
            self._note(Ask(self._core.epoch, command.seqs))
            self._parts.counts["asks"] += 1
        elif isinstance(command, SayHello):
            self._note(msgspec.structs.replace(self._parts.hello, epoch=self._core.epoch))
            self._parts.clock.said_hello()
        elif isinstance(command, Reseal):
            self._reseal(command.seq)

    def _record(self, said: Answer | Correction, asked: Asked | None) -> AnswerRecord:
        parts = self._parts
        if said.seq is None:
            total_s = parts.clock.now() - asked.started if asked else 0.0
            timings = Timings(asked.infer_s if asked else 0.0, total_s)
            return parts.journal.record(said, "", asked.trace if asked else "", timings)
        memo = parts.desk.memo(said.seq)
        started = memo.started if memo else 0.0
        total_s = parts.clock.now() - started if started else 0.0
        timings = Timings(memo.infer_s if memo else 0.0, total_s, said.queue_s, said.compute_s)
        return parts.journal.record(said, f"{self._core.epoch:x}-{said.seq}", memo.trace if memo else "", timings)

    def _finish(self, end: Finish) -> tuple[Op, ...]:
        parts = self._parts
        parts.counts[f"outcome_{end.outcome}"] += 1
        parts.desk.forget(end.seq)
        self._marks.pop(end.seq, None)
        row = answers.End(end.seq, self._core.epoch, end.id, end.outcome, end.reason, parts.clock.ms())
        return (partial(answers.finish, end=row), partial(outbox.delete, seq=end.seq))

    # Storing

    def _store(self, store: Store, asked: Asked) -> None:
        parts = self._parts
        try:
            row, sealed = parts.desk.prepare(store, asked, self._core.epoch, parts.max_age_s)
        except LocalError:
            self._not_stored(store.seq, Why.DENIED_TOO_BIG, asked)
            return
        except _UNFIT:
            parts.counts["unfit_questions"] += 1
            self._not_stored(store.seq, Why.DENIED_POLICY_ERROR, asked)
            return
        parts.desk.remember(row, asked)
        parts.desk.keep_frame(row.seq, sealed.frame)
        day = store.permit.spend.day
        ops: tuple[Op, ...] = (
            partial(meta.charge, day=day, size_bytes=row.charge),
            partial(ledger.insert, row=row, kind=Entry.QUESTION, at_ms=row.created_ms),
            partial(outbox.insert, row=row, sealed=sealed.frame),
        )
        parts.database.write(ops, partial(self._stored, row, asked))

    def _stored(self, row: OutboxRow, asked: Asked, trouble: Trouble | None) -> None:
        if trouble is None:
            self._parts.counts["accepted"] += 1
            self.obey(self._core.on_stored(row.seq, row.digest, self._parts.clock.now()), asked)
        else:
            self._parts.counts["store_failed"] += 1
            self._not_stored(row.seq, Why.NO_DISK, asked)

    def _not_stored(self, seq: int, why: Why, asked: Asked) -> None:
        self.obey(self._core.on_store_failed(seq, why, self._parts.clock.now()), asked)
        self._parts.desk.forget(seq)

    # Sealing anew

    def _reseal(self, seq: int) -> None:
        self._parts.desk.drop_frame(seq)
        row = self._parts.database.read(partial(outbox.one, seq=seq))
        row.add_done_callback(partial(self._reseal_row, seq))

    def _reseal_row(self, seq: int, found: "asyncio.Future[OutboxRow | None]") -> None:
        parts = self._parts
        row = _result(found)
        try:
            sealed = parts.desk.reseal(row) if row is not None else None
        except (VaultError, LocalError):
            sealed = None
        if row is None or sealed is None:
            parts.counts["reseal_failed"] += 1
            self.obey(self._core.on_store_failed(seq, Why.NO_DISK, parts.clock.now()))
            return
        new = msgspec.structs.replace(row, digest=sealed.digest, key_id=sealed.key_id, size=len(sealed.frame))
        ops: tuple[Op, ...] = (
            partial(ledger.insert, row=new, kind=Entry.RESEALED, at_ms=parts.clock.ms()),
            partial(outbox.reseal, seq=seq, digest=new.digest, key_id=new.key_id, sealed=sealed.frame),
        )
        parts.database.write(ops, partial(self._resealed, new, sealed.frame))

    def _resealed(self, row: OutboxRow, frame: bytes, trouble: Trouble | None) -> None:
        parts = self._parts
        if trouble is not None:
            parts.counts["reseal_failed"] += 1
            self.obey(self._core.on_store_failed(row.seq, Why.NO_DISK, parts.clock.now()))
        elif self._core.open.get(row.seq) is not None:  # a verdict may have ended it meanwhile
            parts.counts["resealed"] += 1
            parts.desk.keep_frame(row.seq, frame)
            self.obey(self._core.on_stored(row.seq, row.digest, parts.clock.now()))

    # Sending

    def _transmit(self, seq: int) -> None:
        frame = self._parts.desk.frame(seq)
        if frame is not None:
            self._post(seq, frame)
        else:
            found = self._parts.database.read(partial(outbox.sealed, seq=seq))
            found.add_done_callback(partial(self._post_found, seq))

    def _post_found(self, seq: int, found: "asyncio.Future[bytes | None]") -> None:
        question = self._core.open.get(seq)
        frame = _result(found)
        if frame is not None and question is not None and question.state is State.SENT:
            self._post(seq, frame)

    def _post(self, seq: int, frame: bytes) -> None:
        try:
            if self._parts.link.post(Channel.QUESTION, frame):
                self._parts.counts["sent"] += 1
        except LocalError:
            self._parts.counts["unsendable"] += 1
            self.obey(self._core.on_unsendable(seq, Why.DENIED_TOO_BIG, self._parts.clock.now()))

    def _note(self, note: UpNote) -> None:
        try:
            self._parts.link.post(Channel.ASK, self._parts.envelopes.note(note, self._parts.clock.ms()))
        except LocalError:
            self._parts.counts["unsendable"] += 1

    # Remembering, waking

    def _mark(self, mark: Mark) -> None:
        not_before_ms = self._parts.clock.at_ms(mark.not_before) if mark.not_before else 0
        self._marks[mark.seq] = partial(
            outbox.mark, seq=mark.seq, state=mark.state, not_before_ms=not_before_ms, attempts=mark.attempts
        )
        if mark.state is State.RECEIPTED:
            self._parts.desk.drop_frame(mark.seq)

    def _take_marks(self) -> tuple[Op, ...]:
        marks = tuple(self._marks.values())
        self._marks.clear()
        return marks

    def _committed(self, ended: int, trouble: Trouble | None) -> None:
        self.unrecorded -= ended
        if trouble is None:
            self._parts.journal.committed()
        else:
            self._parts.counts["record_failed"] += 1

    def _set_alarm(self, when: float) -> None:
        delay_s = max(0.0, when - self._parts.clock.now())
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            if self._alarm.when() <= loop.time() + delay_s:
                return
            self._alarm.cancel()
        self._alarm = loop.call_later(delay_s, self.wake)


def _result(future: "asyncio.Future[T]") -> T | None:
    if future.cancelled() or isinstance(future.exception(), sqlite3.Error):
        return None
    return future.result()
