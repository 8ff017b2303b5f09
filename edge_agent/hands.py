"""Obeys the core: each list of commands is one step, written in one transaction; nothing is sent before its commit.

Law: a question that cannot be transformed, sealed or stored does not leave; the core hears why and answers here.
"""

import asyncio
from functools import partial

import msgspec

from edge_agent import accounts, answers, ledger, outbox
from edge_agent.commands import (
    Answer,
    Command,
    Correction,
    Finish,
    Mark,
    Raise,
    Reseal,
    SayHello,
    SendAsk,
    State,
    Store,
    Transmit,
    WakeAt,
)  # fmt: skip
from edge_agent.database import Op, Trouble
from edge_agent.desk import Asked
from edge_agent.outbox import OutboxRow
from edge_agent.parts import Parts
from edge_agent.records import AnswerRecord, Timings
from edge_agent.sender import Sender, result
from edge_agent.vault import VaultError
from policies.budget import Spend
from policies.reasons import FAULTS, Why
from wire.chain import Kind
from wire.errors import LocalError, RemoteError
from wire.messages import Ask, ModelRef

_UNFIT = (*FAULTS, msgspec.MsgspecError)  # what transforming and encoding a question can raise: deny


class Hands:
    """The one way from commands to deeds."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._core = parts.core
        self._alarm: asyncio.TimerHandle | None = None
        self.sender = Sender(parts, self._unsendable)
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
        for line in self._core.lines:
            if line.up:
                self._act(SayHello(line.name))

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
            self.sender.question(command.seq)
        elif isinstance(command, Mark):
            self._mark(command)
        elif isinstance(command, WakeAt):
            self._set_alarm(command.when)
        elif isinstance(command, SendAsk):
            self.sender.note(Ask(self._core.epoch, command.seqs), command.line)
            self._parts.counts["asks"] += 1
        elif isinstance(command, SayHello):
            self.sender.note(msgspec.structs.replace(self._parts.hello, epoch=self._core.epoch), command.line)
        elif isinstance(command, Raise):
            self._parts.database.write((partial(accounts.raise_to, totals=command.totals),), must=True)
        elif isinstance(command, Reseal):
            self._reseal(command)

    def _record(self, said: Answer | Correction, asked: Asked | None) -> AnswerRecord:
        parts = self._parts
        if said.seq is None:
            total_s = parts.clock.now() - asked.started if asked else 0.0
            timings = Timings(asked.infer_s if asked else 0.0, total_s)
            return parts.journal.record(said, "", (asked.trace, asked.subject) if asked else ("", b""), timings)
        memo = parts.desk.memo(said.seq)
        started = memo.started if memo else 0.0
        total_s = parts.clock.now() - started if started else 0.0
        timings = Timings(memo.infer_s if memo else 0.0, total_s, said.queue_s, said.compute_s)
        about = (memo.trace, memo.subject) if memo else ("", b"")
        return parts.journal.record(said, f"{self._core.epoch:x}-{said.seq}", about, timings)

    def _finish(self, end: Finish) -> tuple[Op, ...]:
        parts = self._parts
        parts.counts[f"outcome_{end.outcome}"] += 1
        parts.desk.forget(end.seq)
        self._marks.pop(end.seq, None)
        row = answers.End(end.seq, self._core.epoch, end.id, end.outcome, end.reason, parts.clock.ms())
        back = (partial(accounts.take_back, charges=end.unsent),) if end.unsent else ()
        ends = (partial(answers.finish, end=row), *self.sender.ended(end.seq), partial(outbox.delete, seq=end.seq))
        return (*ends, *back)

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
        ops: tuple[Op, ...] = (
            partial(accounts.charge, charges=store.permit.charges),
            partial(ledger.insert, row=row, kind=Kind.QUESTION, at_ms=row.created_ms, charges=store.permit.charges),
            partial(outbox.insert, row=row, sealed=sealed.frame),
        )
        parts.database.write(ops, partial(self._stored, row, asked))

    def _stored(self, row: OutboxRow, asked: Asked, trouble: Trouble | None) -> None:
        if trouble is None:
            self._parts.counts["accepted"] += 1
            self.sender.recorded((row.seq,))
            self.obey(self._core.on_stored(row.seq, row.digest, self._parts.clock.now()), asked)
        elif trouble is Trouble.OVERDRAWN:
            self._parts.counts["overdrawn"] += 1
            self._not_stored(row.seq, Why.DENIED_BUDGET, asked)
            self._parts.database.read(accounts.stored).add_done_callback(self._overdrawn)
        else:
            self._parts.counts["store_failed"] += 1
            self._not_stored(row.seq, Why.NO_DISK, asked)

    def _overdrawn(self, found: "asyncio.Future[Spend]") -> None:
        held = result(found)
        if held is not None:
            self._core.ruling.purse.overdrawn(held)

    def _unsendable(self, seq: int) -> None:
        self.obey(self._core.on_unsendable(seq, Why.DENIED_TOO_BIG, self._parts.clock.now()))

    def _not_stored(self, seq: int, why: Why, asked: Asked) -> None:
        self.obey(self._core.on_store_failed(seq, why, self._parts.clock.now()), asked)
        self._parts.desk.forget(seq)

    # Sealing anew

    def _reseal(self, command: Reseal) -> None:
        self._parts.desk.drop_frame(command.seq)
        row = self._parts.database.read(partial(outbox.one, seq=command.seq))
        row.add_done_callback(partial(self._reseal_row, command))

    def _reseal_row(self, command: Reseal, found: "asyncio.Future[OutboxRow | None]") -> None:
        parts, seq = self._parts, command.seq
        row = result(found)
        try:
            made = parts.desk.reseal(row, command.target) if row is not None else None
        except (VaultError, LocalError, RemoteError):
            made = None
        if made is None:
            parts.counts["reseal_failed"] += 1
            self.obey(self._core.on_store_failed(seq, Why.NO_DISK, parts.clock.now()))
            return
        new, sealed = made
        ops: tuple[Op, ...] = (
            *self.sender.ended(seq),
            partial(ledger.insert, row=new, kind=Kind.RESEALED, at_ms=parts.clock.ms()),
            partial(outbox.reseal, row=new, sealed=sealed.frame),
        )
        parts.database.write(ops, partial(self._resealed, new, sealed.frame))

    def _resealed(self, row: OutboxRow, frame: bytes, trouble: Trouble | None) -> None:
        parts = self._parts
        if trouble is not None:
            parts.counts["reseal_failed"] += 1
            self.obey(self._core.on_store_failed(row.seq, Why.NO_DISK, parts.clock.now()))
        elif self._core.open.get(row.seq) is not None:  # a verdict may have ended it meanwhile
            parts.counts["resealed"] += 1
            parts.desk.rebind(row)
            self.sender.recorded((row.seq,))
            parts.desk.keep_frame(row.seq, frame)
            self.obey(self._core.on_stored(row.seq, row.digest, parts.clock.now()))

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
