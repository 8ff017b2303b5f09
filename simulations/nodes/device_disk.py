"""In-memory twin of a device's database and of the writer task before it: what survives a kill.

Rule: the same transactions as the product's, and none of its guards. There is no unique index here: if a core writes an
answer twice, the twin keeps both and the history checker reports it. A fact becomes history when it is committed.
"""

from collections.abc import Callable, Iterable
from random import Random

import msgspec

from edge_agent.question.commands import (
    Answer,
    CoreSnapshot,
    Correction,
    Finish,
    MarkState,
    OutboxState,
    RaiseSpend,
    Store,
    StoredQuestion,
)
from edge_agent.question.records import AnswerKind, AnswerSource
from policies.decisions import budget
from policies.decisions.budget import BudgetSpend
from policies.decisions.routing import HubSite
from policies.model.policy import AccountUnit
from simulations.checking.events import AnswerRecorded, HistoryEvent, QuestionAccepted, QuestionEnded, QuestionKey
from simulations.kernel.process_clock import Scheduler
from simulations.scenario.conditions import DeviceClock, QuestionFate


class SampleTruth(msgspec.Struct, frozen=True, gc=False):
    """What the run knows of a sample and no core does: when it was taken, and which answer is right.

    `at_s`: true time. `edge`, `hub`: the labels that the two models give it. `data_class`: what it really is.
    `committed`: where it is audited for a rollout, the label of the model that is committed; -1 elsewhere. `fate`: what
    was drawn for its question before it was asked.
    """

    at_s: float
    truth: int
    edge: int
    hub: int
    data_class: str
    committed: int = -1
    fate: QuestionFate | None = None


class StoreWrite(msgspec.Struct, frozen=True, gc=False):
    """Transaction that stores one question.

    Charge, ledger entry, outbox row and sealed frame. `expires_s`: true time.
    """

    store: Store
    frame: bytes
    digest: bytes
    expires_s: float
    sampled: SampleTruth


class ResealWrite(msgspec.Struct, frozen=True, gc=False):
    """Transaction that replaces a question's frame: sealed again under another key, perhaps for another hub."""

    seq: int
    frame: bytes
    digest: bytes
    target: HubSite


Write = StoreWrite | ResealWrite | Answer | Correction | Finish | MarkState | RaiseSpend


class OutboxRow(msgspec.Struct, gc=False):
    """An outbox row. Times are true times, since clocks change with a reboot."""

    store: Store
    frame: bytes
    digest: bytes
    expires_s: float
    sampled: SampleTruth
    target: HubSite
    state: OutboxState = OutboxState.SEALED
    not_before_s: float = 0.0
    attempts: int = 0
    answered: bool = False


class DeviceDisk:
    """Twin of one `agent.db`. `tell` is called with every committed fact."""

    __slots__ = ("device", "epoch", "next_seq", "rows", "spend", "tell")

    def __init__(self, device: str, epoch: int, tell: Callable[[HistoryEvent], None]) -> None:
        self.device = device
        self.epoch = epoch
        self.spend = BudgetSpend()
        self.next_seq = 1
        self.rows: dict[int, OutboxRow] = {}
        self.tell = tell

    def load_memory(self, clock: DeviceClock) -> CoreSnapshot:
        """What `EdgeCore.restore` is given after a restart, its times on `clock`."""
        rows = tuple(self._row(seq, kept, clock) for seq, kept in self.rows.items())
        return CoreSnapshot(self.epoch, self.next_seq, self.spend, rows)

    # Transactions: all of it, at true time `now_s`. `clock`: the one that times in them were read from

    def store_question(self, put: StoreWrite, now_s: float) -> bool:
        """Store a question. False if an account holds less than the core thought: then nothing is written.

        `now_s`: true time of the commit.
        """
        store = put.store
        totals = self.spend.totals
        for each in store.permit.charges:
            if totals.get((each.key, each.period), 0) + each.amount > each.limit:
                return False
        spend = budget.add_charges(self.spend, store.permit.charges, store.permit.spend.day)
        self.spend = store.permit.spend if spend == store.permit.spend else spend  # thousands wait: one object for both
        self.rows[store.seq] = OutboxRow(
            store=store,
            frame=put.frame,
            digest=put.digest,
            expires_s=put.expires_s,
            sampled=put.sampled,
            target=store.permit.targets[0],
        )
        self.next_seq = max(self.next_seq, store.seq + 1)
        day = max((each.period for each in store.permit.charges if each.key == AccountUnit.BYTES), default=0)
        self.tell(QuestionAccepted(self._key(store.seq), store.id, now_s, len(put.frame), day))
        return True

    def commit(self, writes: Iterable[Write], clock: DeviceClock, now_s: float) -> None:
        """Apply writes in one transaction at true time `now_s`. `clock`: the one that times in them were read from."""
        for write in writes:
            if isinstance(write, Answer):
                self._apply_answer(write)
            elif isinstance(write, Finish):
                self._apply_finish(write, now_s)
            elif isinstance(write, MarkState):
                self._apply_mark(write, clock)
            else:
                self._apply_other(write)

    def _apply_other(self, write: Write) -> None:
        if isinstance(write, Correction):
            key = self._key(write.seq)
            self.tell(AnswerRecorded(self.device, write.id, AnswerKind.CORRECTION, hub=True, why="verdict", key=key))
        elif isinstance(write, ResealWrite) and write.seq in self.rows:
            kept = self.rows[write.seq]
            kept.frame, kept.digest, kept.target = write.frame, write.digest, write.target
            kept.state = OutboxState.SEALED
        elif isinstance(write, RaiseSpend):
            told = {(key, period): amount for key, period, amount in write.totals}
            totals = {at: max(self.spend.totals.get(at, 0), amount) for at, amount in told.items()}
            self.spend = BudgetSpend(self.spend.day, {**self.spend.totals, **totals}, self.spend.known)

    def _apply_mark(self, mark: MarkState, clock: DeviceClock) -> None:
        kept = self.rows.get(mark.seq)
        if kept is not None:
            kept.state, kept.attempts = mark.state, mark.attempts
            kept.not_before_s = clock.true_time_at(mark.not_before) if mark.not_before else 0.0

    def _apply_finish(self, finish: Finish, now_s: float) -> None:
        self.rows.pop(finish.seq, None)
        if finish.unsent:
            self.spend = budget.remove_charges(self.spend, finish.unsent)
        self.tell(QuestionEnded(self._key(finish.seq), finish.id, finish.outcome, finish.reason, now_s))

    def _apply_answer(self, answer: Answer) -> None:
        seq = answer.seq
        if seq is None:
            self.tell(AnswerRecorded(self.device, answer.id, AnswerKind.ANSWER, hub=False, why=answer.why))
            return
        kept = self.rows.get(seq)
        if kept is not None:
            kept.answered = True
        hub = answer.source is AnswerSource.HUB
        self.tell(
            AnswerRecorded(self.device, answer.id, AnswerKind.ANSWER, hub=hub, why=answer.why, key=self._key(seq))
        )

    def _key(self, seq: int) -> QuestionKey:
        return QuestionKey(self.device, self.epoch, seq)

    def _row(self, seq: int, kept: OutboxRow, clock: DeviceClock) -> StoredQuestion:
        store = kept.store
        return StoredQuestion(
            seq=seq,
            id=store.id,
            state=kept.state,
            local=store.local,
            answered=kept.answered,
            policy=store.permit.policy,
            data_class=store.data_class,
            egress=store.permit.egress,
            target=kept.target,
            digest=kept.digest,
            size=store.charge_bytes,
            expires=clock.read(kept.expires_s),
            not_before=clock.read(kept.not_before_s) if kept.not_before_s else 0.0,
            attempts=kept.attempts,
            jitter=store.jitter,
        )


DeferredCall = tuple[Callable[..., object], tuple[object, ...]]


class SimulatedWriter:
    """Writer task before a disk: what is submitted within `commit_s` shares one commit, in order.

    `done` is called once all owners of a commit have been notified.
    """

    __slots__ = ("_commit_s", "_dead", "_done", "_kernel", "_left", "_out", "_pending")

    def __init__(self, kernel: Scheduler, commit_s: float, done: Callable[[], None]) -> None:
        self._kernel = kernel
        self._commit_s = commit_s
        self._done = done
        self._pending: list[tuple[DeferredCall, DeferredCall | None]] = []  # an empty deque takes 600 bytes more
        self._dead = False
        self._left = -1  # commits until the power goes; -1 = it stays
        self._out: Callable[[], None] | None = None

    @property
    def idle(self) -> bool:
        """Nothing is pending, and no power cut is scheduled."""
        return not self._pending and self._left < 0

    def submit(self, commit: DeferredCall, then: DeferredCall | None = None) -> None:
        """Queue `commit`, which makes one step durable; `then` notifies its owner afterwards, if it still lives."""
        if not self._pending:
            self._kernel.schedule_after(self._commit_s, self._flush)
        self._pending.append((commit, then))

    def commit_some(self, rng: Random) -> None:
        """A random prefix of what is pending reaches the disk now; its owners are notified when they would have been.

        Who commits it must not do so again.
        """
        for (call, args), _ in self._pending[: rng.randint(0, len(self._pending))]:
            call(*args)

    def kill(self, rng: Random) -> None:
        """The process dies: a random prefix of what was pending reached the disk, and nobody was notified."""
        self._dead = True
        group, self._pending = self._pending, []
        for (call, args), _ in group[: rng.randint(0, len(group))]:
            call(*args)

    def cut_power_after(self, count: int, out: Callable[[], None]) -> None:
        """Cut the power after `count` more commits: the rest is lost, nobody is notified, and `out` is called."""
        self._left, self._out = count, out

    def restore_power(self) -> None:
        """Cancel a power cut that has not happened."""
        self._left, self._out = -1, None

    def _flush(self) -> None:
        if self._dead:
            return
        group, self._pending = self._pending, []
        for (call, args), _ in group:
            if self._left == 0:
                self._lose_power()
                return
            self._left -= self._left > 0
            call(*args)
        if self._left == 0:
            self._lose_power()
            return
        for _, then in group:
            if then is not None and not self._dead:
                call, args = then
                call(*args)
        if not self._dead:
            self._done()

    def _lose_power(self) -> None:
        self._dead = True
        out, self._out = self._out, None
        if out is not None:
            out()
