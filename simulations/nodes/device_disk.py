"""In-memory twin of a device's database and of the writer task before it: what survives a kill.

Rule: the same transactions as the product's, and none of its guards. There is no unique index here: if a core writes an
answer twice, the twin keeps both and the history checker reports it. A fact becomes history when it is committed.
"""

from collections import deque
from collections.abc import Callable, Iterable
from random import Random

import msgspec

from edge_agent.core.commands import Answer, Correction, Finish, Mark, Memory, Raise, Row, State, Store
from edge_agent.core.records import Kind, Source
from policies.decisions import budget
from policies.decisions.budget import Spend
from policies.decisions.routing import HubSite
from policies.model.policy import Coin
from simulations.checking.events import Accepted, AnswerSeen, Event, Key, Outcome
from simulations.kernel.kernel import Kernel
from simulations.scenario.conditions import Clock


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """What the run knows of a sample and no core does: when it was taken, and which answer is right.

    `at_s`: true time. `edge`, `hub`: the labels that the two models give it. `data_class`: what it really is.
    `committed`: where it is audited for a rollout, the label of the model that is committed; -1 elsewhere.
    """

    at_s: float
    truth: int
    edge: int
    hub: int
    data_class: str
    committed: int = -1


class Put(msgspec.Struct, frozen=True, gc=False):
    """Transaction that stores one question.

    Charge, ledger entry, outbox row and sealed frame. `expires_s`: true time.
    """

    store: Store
    frame: bytes
    digest: bytes
    expires_s: float
    sampled: Sampled


class Resealed(msgspec.Struct, frozen=True, gc=False):
    """Transaction that replaces a question's frame: sealed again under another key, perhaps for another hub."""

    seq: int
    frame: bytes
    digest: bytes
    target: HubSite


Write = Put | Resealed | Answer | Correction | Finish | Mark | Raise


class Kept(msgspec.Struct, gc=False):
    """An outbox row. Times are true times, since clocks change with a reboot."""

    store: Store
    frame: bytes
    digest: bytes
    expires_s: float
    sampled: Sampled
    target: HubSite
    state: State = State.SEALED
    not_before_s: float = 0.0
    attempts: int = 0
    answered: bool = False


class DeviceDisk:
    """Twin of one `agent.db`. `tell` is called with every committed fact."""

    __slots__ = ("device", "epoch", "next_seq", "rows", "spend", "tell")

    def __init__(self, device: str, epoch: int, tell: Callable[[Event], None]) -> None:
        self.device = device
        self.epoch = epoch
        self.spend = Spend()
        self.next_seq = 1
        self.rows: dict[int, Kept] = {}
        self.tell = tell

    def frame(self, seq: int) -> bytes:
        """Sealed frame of a stored question."""
        return self.rows[seq].frame

    def memory(self, clock: Clock) -> Memory:
        """What `EdgeCore.restore` is given after a restart, its times on `clock`."""
        rows = tuple(self._row(seq, kept, clock) for seq, kept in self.rows.items())
        return Memory(self.epoch, self.next_seq, self.spend, rows)

    # Transactions: all of it, at true time `now_s`. `clock`: the one that times in them were read from

    def put(self, put: Put, now_s: float) -> bool:
        """Store a question. False if an account holds less than the core thought: then nothing is written.

        `now_s`: true time of the commit.
        """
        store = put.store
        totals = self.spend.totals
        for each in store.permit.charges:
            if totals.get((each.key, each.period), 0) + each.amount > each.limit:
                return False
        self.spend = budget.added(self.spend, store.permit.charges, store.permit.spend.day)
        self.rows[store.seq] = Kept(
            store=store,
            frame=put.frame,
            digest=put.digest,
            expires_s=put.expires_s,
            sampled=put.sampled,
            target=store.permit.targets[0],
        )
        self.next_seq = max(self.next_seq, store.seq + 1)
        day = max((each.period for each in store.permit.charges if each.key == Coin.BYTES), default=0)
        self.tell(Accepted(self._key(store.seq), store.id, now_s, len(put.frame), day))
        return True

    def commit(self, writes: Iterable[Write], clock: Clock, now_s: float) -> None:
        """Apply writes in one transaction at true time `now_s`. `clock`: the one that times in them were read from."""
        for write in writes:
            if isinstance(write, Answer):
                self._answer(write)
            elif isinstance(write, Finish):
                self._finish(write, now_s)
            elif isinstance(write, Mark):
                self._mark(write, clock)
            else:
                self._other(write)

    def _other(self, write: Write) -> None:
        if isinstance(write, Correction):
            key = self._key(write.seq)
            self.tell(AnswerSeen(self.device, write.id, Kind.CORRECTION, hub=True, why="verdict", key=key))
        elif isinstance(write, Resealed) and write.seq in self.rows:
            kept = self.rows[write.seq]
            kept.frame, kept.digest, kept.target = write.frame, write.digest, write.target
            kept.state = State.SEALED
        elif isinstance(write, Raise):
            told = {(key, period): amount for key, period, amount in write.totals}
            totals = {at: max(self.spend.totals.get(at, 0), amount) for at, amount in told.items()}
            self.spend = Spend(self.spend.day, {**self.spend.totals, **totals}, self.spend.known)

    def _mark(self, mark: Mark, clock: Clock) -> None:
        kept = self.rows.get(mark.seq)
        if kept is not None:
            kept.state, kept.attempts = mark.state, mark.attempts
            kept.not_before_s = clock.when(mark.not_before) if mark.not_before else 0.0

    def _finish(self, finish: Finish, now_s: float) -> None:
        self.rows.pop(finish.seq, None)
        if finish.unsent:
            self.spend = budget.without(self.spend, finish.unsent)
        self.tell(Outcome(self._key(finish.seq), finish.id, finish.outcome, finish.reason, now_s))

    def _answer(self, answer: Answer) -> None:
        seq = answer.seq
        if seq is None:
            self.tell(AnswerSeen(self.device, answer.id, Kind.ANSWER, hub=False, why=answer.why))
            return
        kept = self.rows.get(seq)
        if kept is not None:
            kept.answered = True
        hub = answer.source is Source.HUB
        self.tell(AnswerSeen(self.device, answer.id, Kind.ANSWER, hub=hub, why=answer.why, key=self._key(seq)))

    def _key(self, seq: int) -> Key:
        return Key(self.device, self.epoch, seq)

    def _row(self, seq: int, kept: Kept, clock: Clock) -> Row:
        store = kept.store
        return Row(
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


Unit = tuple[Callable[..., object], tuple[object, ...]]


class Writer:
    """Writer task before a disk: what is submitted within `commit_s` shares one commit, in order.

    `done` is called once all owners of a commit have been notified.
    """

    __slots__ = ("_commit_s", "_dead", "_done", "_kernel", "_left", "_out", "_pending")

    def __init__(self, kernel: Kernel, commit_s: float, done: Callable[[], None]) -> None:
        self._kernel = kernel
        self._commit_s = commit_s
        self._done = done
        self._pending: deque[tuple[Unit, Unit | None]] = deque()
        self._dead = False
        self._left = -1  # commits until the power goes; -1 = it stays
        self._out: Callable[[], None] | None = None

    @property
    def idle(self) -> bool:
        """Nothing is pending, and no power cut is scheduled."""
        return not self._pending and self._left < 0

    def submit(self, commit: Unit, then: Unit | None = None) -> None:
        """Queue `commit`, which makes one step durable; `then` notifies its owner afterwards, if it still lives."""
        if not self._pending:
            self._kernel.after(self._commit_s, self._flush)
        self._pending.append((commit, then))

    def kill(self, rng: Random) -> None:
        """The process dies: a random prefix of what was pending reached the disk, and nobody was notified."""
        self._dead = True
        for _ in range(rng.randint(0, len(self._pending))):
            call, args = self._pending.popleft()[0]
            call(*args)
        self._pending.clear()

    def cut_after(self, count: int, out: Callable[[], None]) -> None:
        """Cut the power after `count` more commits: the rest is lost, nobody is notified, and `out` is called."""
        self._left, self._out = count, out

    def spare(self) -> None:
        """Cancel a power cut that has not happened."""
        self._left, self._out = -1, None

    def _flush(self) -> None:
        if self._dead:
            return
        group, self._pending = self._pending, deque()
        for (call, args), _ in group:
            if self._left == 0:
                self._go_dark()
                return
            self._left -= self._left > 0
            call(*args)
        if self._left == 0:
            self._go_dark()
            return
        for _, then in group:
            if then is not None and not self._dead:
                call, args = then
                call(*args)
        if not self._dead:
            self._done()

    def _go_dark(self) -> None:
        self._dead = True
        out, self._out = self._out, None
        if out is not None:
            out()
