"""Executor of the core's commands: a list of commands is one step and one database transaction.

Rule: nothing is sent before its transaction has committed. A question that cannot be transformed, sealed or stored does
not leave; the core is told why and answers locally.
"""

import asyncio
from functools import partial

import msgspec

from edge_agent.core.commands import (
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
)
from edge_agent.core.records import AnswerRecord, SampleOrigin
from edge_agent.storage import accounts, answers, ledger, outbox
from edge_agent.storage.database import Op, Trouble
from edge_agent.storage.outbox import OutboxRow, VaultError
from edge_agent.uplink.outbound import LedgeredSender, result
from edge_agent.uplink.sealing import EscalationSource
from edge_agent.uplink.services import Parts
from policies.decisions.budget import Spend
from policies.model.reasons import FAULTS, Why
from wire.errors import LocalError, RemoteError
from wire.ledger.chain import Kind
from wire.protocol.messages import Ask, Hello, ModelRef

_UNKNOWN = SampleOrigin()
_UNFIT = (*FAULTS, msgspec.MsgspecError)  # raised by transforming and encoding a question: it is denied


class CommandExecutor:
    """Carries out what `EdgeCore` decides: stores, sends, records and sets alarms; used on the event loop only.

    `hello`: the hello that is sent on connections; its epoch is filled in from the core when it is sent.
    """

    def __init__(self, parts: Parts, hello: Hello) -> None:
        self._parts = parts
        self._core = parts.core
        self._hello = hello
        self._alarm: asyncio.TimerHandle | None = None
        self.sender = LedgeredSender(parts, self._unsendable)
        self.unrecorded = 0  # outcomes that no commit covers yet: their questions are still open on disk

    def execute(self, commands: list[Command], source: EscalationSource | None = None) -> None:
        """Execute the commands of one step in their order. `source`: the sample behind a `Store` among them."""
        ops: list[Op] = []
        said: list[AnswerRecord] = []
        owed, ended = False, 0
        for command in commands:
            if isinstance(command, Answer | Correction):
                said.append(self._record(command, source))
                ops.append(partial(answers.insert, r=said[-1]))
                owed = owed or command.seq is not None
            elif isinstance(command, Finish):
                ops += self._finish(command)
                owed, ended = True, ended + 1
            elif isinstance(command, Store) and source is not None:
                self._store(command, source)
            else:
                self._act(command)
        if ops:
            ops += self._parts.pending.take_marks()
            self.unrecorded += ended
            self._parts.database.write(tuple(ops), partial(self._committed, ended), must=owed, soon=True)
        for record in said:
            self._parts.journal.say(record)

    def introduce(self, models: tuple[ModelRef, ...]) -> None:
        """Send a hello with these models on all lines, now and on every later connection."""
        self._hello = msgspec.structs.replace(self._hello, models=models)
        for line in self._core.lines:
            if line.up:
                self._act(SayHello(line.name))

    def flush_marks(self) -> None:
        """Write the marks that still wait for a commit of something else."""
        marks = self._parts.pending.take_marks()
        if marks:
            self._parts.database.write(marks)

    def wake(self) -> None:
        """Run what is due in the core by its own alarms."""
        self._alarm = None
        self.execute(self._core.on_wake(self._parts.clock.now()))

    def rest(self) -> None:
        """Set no more alarms."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def close(self) -> None:
        """Cancel the alarm, and write what the next process has to know."""
        self.rest()
        self.flush_marks()
        self.sender.keep_unsent()

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
            self.sender.note(msgspec.structs.replace(self._hello, epoch=self._core.epoch), command.line)
        elif isinstance(command, Raise):
            self._parts.database.write((partial(accounts.raise_to, totals=command.totals),), must=True)
        elif isinstance(command, Reseal):
            self._reseal(command)

    def _record(self, said: Answer | Correction, source: EscalationSource | None) -> AnswerRecord:
        if said.seq is None:
            return self._parts.journal.record(said, "", source.origin if source else _UNKNOWN)
        pending = self._parts.pending.get(said.seq)
        return self._parts.journal.record(
            said, f"{self._core.epoch:x}-{said.seq}", pending.origin if pending else _UNKNOWN
        )

    def _finish(self, end: Finish) -> tuple[Op, ...]:
        parts = self._parts
        parts.counts[f"outcome_{end.outcome}"] += 1
        row = answers.End(
            seq=end.seq, epoch=self._core.epoch, id=end.id, outcome=end.outcome, reason=end.reason,
            at_ms=parts.clock.ms(),
        )  # fmt: skip
        back = (partial(accounts.take_back, charges=end.unsent),) if end.unsent else ()
        ends = (
            partial(answers.finish, end=row),
            *self.sender.end(end.seq),
            partial(outbox.delete, seq=end.seq),
        )
        return (*ends, *back)

    # Storing

    def _store(self, store: Store, source: EscalationSource) -> None:
        parts = self._parts
        try:
            row, sealed = parts.sealer.prepare(store, source, self._core.epoch)
        except LocalError:
            self._not_stored(store.seq, Why.DENIED_TOO_BIG, source)
            return
        except _UNFIT:
            parts.counts["unfit_questions"] += 1
            self._not_stored(store.seq, Why.DENIED_POLICY_ERROR, source)
            return
        parts.pending.add(row, source.origin)
        parts.pending.keep_frame(row.seq, sealed.frame)
        ops: tuple[Op, ...] = (
            partial(accounts.charge, charges=store.permit.charges),
            partial(ledger.insert, row=row, kind=Kind.QUESTION, at_ms=row.created_ms, charges=store.permit.charges),
            partial(outbox.insert, row=row, sealed=sealed.frame),
        )
        parts.database.write(ops, partial(self._stored, row, source))

    def _stored(self, row: OutboxRow, source: EscalationSource, trouble: Trouble | None) -> None:
        if trouble is None:
            self._parts.counts["accepted"] += 1
            self.sender.recorded(row.seq)
            self.execute(self._core.on_stored(row.seq, row.digest, self._parts.clock.now()))
        elif trouble is Trouble.OVERDRAWN:
            self._parts.counts["overdrawn"] += 1
            self._not_stored(row.seq, Why.DENIED_BUDGET, source)
            self._parts.database.read(accounts.stored).add_done_callback(self._overdrawn)
        else:
            self._parts.counts["store_failed"] += 1
            self._not_stored(row.seq, Why.NO_DISK, source)

    def _overdrawn(self, found: "asyncio.Future[Spend]") -> None:
        held = result(found)
        if held is not None:
            self._core.ruling.purse.overdrawn(held)

    def _unsendable(self, seq: int) -> None:
        self.execute(self._core.on_unsendable(seq, Why.DENIED_TOO_BIG, self._parts.clock.now()))

    def _not_stored(self, seq: int, why: Why, source: EscalationSource) -> None:
        self.execute(self._core.on_store_failed(seq, why, self._parts.clock.now()), source)
        self._parts.pending.end(seq)

    # Sealing anew

    def _reseal(self, command: Reseal) -> None:
        self._parts.pending.drop_frame(command.seq)
        row = self._parts.database.read(partial(outbox.one, seq=command.seq))
        row.add_done_callback(partial(self._reseal_row, command))

    def _reseal_row(self, command: Reseal, found: "asyncio.Future[OutboxRow | None]") -> None:
        parts, seq = self._parts, command.seq
        row = result(found)
        try:
            made = parts.sealer.reseal(row, command.target) if row is not None else None
        except (VaultError, LocalError, RemoteError):
            made = None
        if made is None:
            parts.counts["reseal_failed"] += 1
            self.execute(self._core.on_store_failed(seq, Why.NO_DISK, parts.clock.now()))
            return
        new, sealed = made
        ops: tuple[Op, ...] = (
            *self.sender.withhold(seq),
            partial(ledger.insert, row=new, kind=Kind.RESEALED, at_ms=parts.clock.ms()),
            partial(outbox.reseal, row=new, sealed=sealed.frame),
        )
        parts.database.write(ops, partial(self._resealed, new, sealed.frame))

    def _resealed(self, row: OutboxRow, frame: bytes, trouble: Trouble | None) -> None:
        parts = self._parts
        if trouble is not None:
            parts.counts["reseal_failed"] += 1
            self.execute(self._core.on_store_failed(row.seq, Why.NO_DISK, parts.clock.now()))
        elif self._core.open.get(row.seq) is not None:  # a verdict may have ended it meanwhile
            parts.counts["resealed"] += 1
            parts.pending.rebind(row)
            self.sender.recorded(row.seq)
            parts.pending.keep_frame(row.seq, frame)
            self.execute(self._core.on_stored(row.seq, row.digest, parts.clock.now()))
        else:
            self.sender.recorded(row.seq)

    # Remembering, waking

    def _mark(self, mark: Mark) -> None:
        not_before_ms = self._parts.clock.at_ms(mark.not_before) if mark.not_before else 0
        op = partial(
            outbox.mark,
            seq=mark.seq,
            state=mark.state,
            not_before_ms=not_before_ms,
            attempts=mark.attempts,
        )
        self._parts.pending.keep_mark(mark.seq, op)
        if mark.state is State.RECEIPTED:
            self._parts.pending.drop_frame(mark.seq)

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
