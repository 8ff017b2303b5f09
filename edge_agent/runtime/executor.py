"""Executor of the core's commands: a list of commands is one step and one database transaction.

Rule: nothing is sent before its transaction has committed. A question that cannot be transformed, sealed or stored does
not leave; the core is told why and answers locally.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from edge_agent.question.commands import (
    Answer,
    Command,
    Correction,
    Finish,
    MarkState,
    OutboxState,
    RaiseSpend,
    Reseal,
    SendAsk,
    SendHello,
    Store,
    Transmit,
    WakeAt,
)
from edge_agent.question.records import AnswerRecord, SampleOrigin
from edge_agent.question.seal import EscalationSource
from edge_agent.storage import accounts, answers, ledger, outbox
from edge_agent.storage.database import DatabaseOperation, DatabaseTrouble
from edge_agent.storage.outbox import OutboxRow, PayloadError
from edge_agent.uplink.outbound import LedgeredSender, read_result
from edge_agent.uplink.services import AgentServices
from policies.decisions.budget import BudgetSpend
from policies.model.reasons import EVALUATION_ERRORS, DecisionReason
from wire.errors import LocalError, RemoteError
from wire.ledger.chain import EntryKind
from wire.protocol.messages import HelloNote, ModelRef, StatusRequest

_UNKNOWN_ORIGIN = SampleOrigin()
# raised by transforming and encoding a question: it is denied
_QUESTION_ERRORS = (*EVALUATION_ERRORS, msgspec.MsgspecError)


class CommandExecutor:
    """Carries out what `EdgeCore` decides: stores, sends, records and sets alarms; used on the event loop only.

    `hello`: the hello that is sent on connections; its epoch is filled in from the core when it is sent.
    """

    def __init__(self, parts: AgentServices, hello: HelloNote) -> None:
        self._parts = parts
        self._core = parts.core
        self._hello = hello
        self._alarm: asyncio.TimerHandle | None = None
        self.sender = LedgeredSender(parts, self._on_unsendable, self._on_outdated_frame)
        self.on_commit_due: Callable[[], None] | None = None  # queues what may be written with a commit of ours
        self.unrecorded = 0  # outcomes that no commit covers yet: their questions are still open on disk

    def execute(self, commands: list[Command], source: EscalationSource | None = None) -> None:
        """Execute the commands of one step in their order. `source`: the sample behind a `Store` among them."""
        ops: list[DatabaseOperation] = []
        said: list[AnswerRecord] = []
        owed, ended = False, 0
        for command in commands:
            if isinstance(command, Answer | Correction):
                said.append(self._record_answer(command, source))
                ops.append(partial(answers.insert_answer, r=said[-1]))
                owed = owed or command.seq is not None
            elif isinstance(command, Finish):
                ops += self._finish_operations(command)
                owed, ended = True, ended + 1
            elif isinstance(command, Store) and source is not None:
                self._store_question(command, source)
            else:
                self._execute_one(command)
        if ops:
            ops += self._parts.pending.take_marks()
            self.unrecorded += ended
            self._parts.journal.flush(soon=True)  # this commit carries the local answers that came before
            if self.on_commit_due is not None:
                self.on_commit_due()
            self._parts.database.write(tuple(ops), partial(self._on_committed, ended), must=owed, soon=True)
        for record in said:
            self._parts.journal.deliver_record(record)

    def announce_models(self, models: tuple[ModelRef, ...]) -> None:
        """Send a hello with these models on all lines, now and on every later connection."""
        self._hello = msgspec.structs.replace(self._hello, models=models)
        for line in self._core.connections:
            if line.up:
                self._execute_one(SendHello(line.name))

    def flush_marks(self) -> None:
        """Write the marks that still wait for a commit of something else."""
        marks = self._parts.pending.take_marks()
        if marks:
            self._parts.database.write(marks)

    def run_due(self) -> None:
        """Run what is due in the core by its own alarms."""
        self._alarm = None
        self.execute(self._core.on_wake(self._parts.clock.now()))

    def cancel_alarm(self) -> None:
        """Set no more alarms."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def close(self) -> None:
        """Cancel the alarm, and write what the next process has to know."""
        self.cancel_alarm()
        self.flush_marks()
        self.sender.save_unsent()

    # One command

    def _execute_one(self, command: Command) -> None:
        if isinstance(command, Transmit):
            self.sender.send_question(command.seq)
        elif isinstance(command, MarkState):
            self._mark_state(command)
        elif isinstance(command, WakeAt):
            self._set_alarm(command.when)
        elif isinstance(command, SendAsk):
            self.sender.send_note(StatusRequest(self._core.epoch, command.seqs), command.line)
            self._parts.counts["asks"] += 1
        elif isinstance(command, SendHello):
            self.sender.send_note(msgspec.structs.replace(self._hello, epoch=self._core.epoch), command.line)
        elif isinstance(command, RaiseSpend):
            self._parts.database.write((partial(accounts.raise_totals, totals=command.totals),), must=True)
        elif isinstance(command, Reseal):
            self._reseal_question(command)

    def _record_answer(self, said: Answer | Correction, source: EscalationSource | None) -> AnswerRecord:
        if said.seq is None:
            return self._parts.journal.make_record(said, "", source.origin if source else _UNKNOWN_ORIGIN)
        pending = self._parts.pending.get(said.seq)
        return self._parts.journal.make_record(
            said, f"{self._core.epoch:x}-{said.seq}", pending.origin if pending else _UNKNOWN_ORIGIN,
            self._core.permissions.question_mj,
        )  # fmt: skip

    def _finish_operations(self, end: Finish) -> tuple[DatabaseOperation, ...]:
        parts = self._parts
        parts.counts[f"outcome_{end.outcome}"] += 1
        row = answers.QuestionEnd(
            seq=end.seq, epoch=self._core.epoch, id=end.id, outcome=end.outcome, reason=end.reason,
            at_ms=parts.clock.hub_ms(),
        )  # fmt: skip
        back = (partial(accounts.refund_charges, charges=end.unsent),) if end.unsent else ()
        ends = (
            partial(answers.insert_outcome, end=row),
            *self.sender.end_question(end.seq),
            partial(outbox.delete_row, seq=end.seq),
        )
        return (*ends, *back)

    # Storing

    def _store_question(self, store: Store, source: EscalationSource) -> None:
        parts = self._parts
        try:
            row, sealed = parts.sealer.prepare_row(store, source, self._core.epoch)
        except LocalError:
            self._fail_store(store.seq, DecisionReason.DENIED_TOO_BIG, source)
            return
        except _QUESTION_ERRORS:
            parts.counts["unfit_questions"] += 1
            self._fail_store(store.seq, DecisionReason.DENIED_POLICY_ERROR, source)
            return
        parts.pending.add(row, source.origin)
        parts.pending.keep_frame(row.seq, sealed.frame)
        ops: tuple[DatabaseOperation, ...] = (
            partial(accounts.add_charges, charges=store.permit.charges),
            partial(
                ledger.append_question,
                row=row,
                kind=EntryKind.QUESTION,
                at_ms=row.created_ms,
                charges=store.permit.charges,
            ),
            partial(outbox.insert_row, row=row, sealed=sealed.frame),
        )
        parts.database.write(ops, partial(self._on_question_stored, row, source))

    def _on_question_stored(self, row: OutboxRow, source: EscalationSource, trouble: DatabaseTrouble | None) -> None:
        if trouble is None:
            self._parts.counts["accepted"] += 1
            self.sender.on_recorded(row.seq)
            self.execute(self._core.on_stored(row.seq, row.digest, self._parts.clock.now()))
        elif trouble is DatabaseTrouble.OVERDRAWN:
            self._parts.counts["overdrawn"] += 1
            self._fail_store(row.seq, DecisionReason.DENIED_BUDGET, source)
            self._parts.database.read(accounts.read_spend).add_done_callback(self._on_overdrawn)
        else:
            self._parts.counts["store_failed"] += 1
            self._fail_store(row.seq, DecisionReason.NO_DISK, source)

    def _on_overdrawn(self, found: "asyncio.Future[BudgetSpend]") -> None:
        held = read_result(found)
        if held is not None:
            self._core.permissions.spend.raise_to_stored(held)

    def _on_unsendable(self, seq: int) -> None:
        self.execute(self._core.on_unsendable(seq, DecisionReason.DENIED_TOO_BIG, self._parts.clock.now()))

    def _on_outdated_frame(self, seq: int) -> None:
        self.execute(self._core.on_outdated_frame(seq, self._parts.clock.now()))

    def _fail_store(self, seq: int, why: DecisionReason, source: EscalationSource) -> None:
        self.execute(self._core.on_store_failed(seq, why, self._parts.clock.now()), source)
        self._parts.pending.end(seq)

    # Sealing anew

    def _reseal_question(self, command: Reseal) -> None:
        self._parts.pending.drop_frame(command.seq)
        row = self._parts.database.read(partial(outbox.read_row, seq=command.seq))
        row.add_done_callback(partial(self._reseal_row, command))

    def _reseal_row(self, command: Reseal, found: "asyncio.Future[OutboxRow | None]") -> None:
        parts, seq = self._parts, command.seq
        row = read_result(found)
        try:
            made = parts.sealer.reseal_row(row, command.target) if row is not None else None
        except (PayloadError, LocalError, RemoteError):
            made = None
        if made is None:
            parts.counts["reseal_failed"] += 1
            self.execute(self._core.on_store_failed(seq, DecisionReason.NO_DISK, parts.clock.now()))
            return
        new, sealed = made
        ops: tuple[DatabaseOperation, ...] = (
            *self.sender.withhold_unsent(seq),
            partial(ledger.append_question, row=new, kind=EntryKind.RESEALED, at_ms=parts.clock.hub_ms()),
            partial(outbox.reseal_row, row=new, sealed=sealed.frame),
        )
        parts.database.write(ops, partial(self._on_resealed, new, sealed.frame))

    def _on_resealed(self, row: OutboxRow, frame: bytes, trouble: DatabaseTrouble | None) -> None:
        parts = self._parts
        if trouble is not None:
            parts.counts["reseal_failed"] += 1
            self.execute(self._core.on_store_failed(row.seq, DecisionReason.NO_DISK, parts.clock.now()))
        elif self._core.open_questions.get(row.seq) is not None:  # a verdict may have ended it meanwhile
            parts.counts["resealed"] += 1
            parts.pending.rebind(row)
            self.sender.on_recorded(row.seq)
            parts.pending.keep_frame(row.seq, frame)
            self.execute(self._core.on_stored(row.seq, row.digest, parts.clock.now()))
        else:
            self.sender.on_recorded(row.seq)

    # Remembering, waking

    def _mark_state(self, mark: MarkState) -> None:
        not_before_ms = self._parts.clock.to_sure_ms(mark.not_before) if mark.not_before else 0
        op = partial(
            outbox.mark_state,
            seq=mark.seq,
            state=mark.state,
            not_before_ms=not_before_ms,
            attempts=mark.attempts,
        )
        self._parts.pending.keep_mark(mark.seq, op)
        if mark.state is OutboxState.RECEIPTED:
            self._parts.pending.drop_frame(mark.seq)

    def _on_committed(self, ended: int, trouble: DatabaseTrouble | None) -> None:
        self.unrecorded -= ended
        if trouble is None:
            self._parts.journal.on_commit()
        else:
            self._parts.counts["record_failed"] += 1

    def _set_alarm(self, when: float) -> None:
        delay_s = max(0.0, when - self._parts.clock.now())
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            if self._alarm.when() <= loop.time() + delay_s:
                return
            self._alarm.cancel()
        self._alarm = loop.call_later(delay_s, self.run_due)
