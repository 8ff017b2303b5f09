"""What survives a kill, kept in memory: the device's database and the writer before it.

Law: the same transactions as the product's, and nothing of its guards. There is no unique index here: if a core writes
an answer twice, the twin keeps both and the history checker says so. A fact becomes history when it is committed.
"""

from collections import deque
from collections.abc import Callable
from random import Random

import msgspec

from edge_agent.commands import Answer, Correction, Finish, Mark, Memory, Row, State, Store
from edge_agent.records import Kind, Source
from policies.budget import Spend
from simulations.facts import Accepted, AnswerSeen, Event, Key, Outcome
from simulations.kernel import Kernel
from simulations.weather import Clock


class Put(msgspec.Struct, frozen=True, gc=False):
    """Charge, ledger entry and outbox row of one question, with its sealed frame. `expires_s`: true time."""

    store: Store
    frame: bytes
    digest: bytes
    expires_s: float


class Resealed(msgspec.Struct, frozen=True, gc=False):
    seq: int
    frame: bytes
    digest: bytes


Write = Put | Resealed | Answer | Correction | Finish | Mark


class _Kept(msgspec.Struct, gc=False):
    """An outbox row. Times are true times: clocks change with a reboot."""

    store: Store
    frame: bytes
    digest: bytes
    expires_s: float
    state: State = State.SEALED
    not_before_s: float = 0.0
    attempts: int = 0
    answered: bool = False


class DeviceDisk:
    """Twin of one `agent.db`. `tell` hears of every committed fact."""

    def __init__(self, device: str, epoch: int, tell: Callable[[Event], None]) -> None:
        self.device = device
        self.epoch = epoch
        self.spend = Spend()
        self.next_seq = 1
        self.rows: dict[int, _Kept] = {}
        self._tell = tell

    def commit(self, writes: tuple[Write, ...], clock: Clock, now_s: float) -> None:
        """One transaction: all of it, at true time `now_s`. `clock`: the one that times in `writes` were read from."""
        for write in writes:
            self._apply(write, clock, now_s)

    def frame(self, seq: int) -> bytes:
        return self.rows[seq].frame

    def memory(self, clock: Clock) -> Memory:
        """What `EdgeCore.restore` is given, its times on `clock`."""
        rows = tuple(self._row(seq, kept, clock) for seq, kept in self.rows.items())
        return Memory(self.epoch, self.next_seq, self.spend, rows)

    def _apply(self, write: Write, clock: Clock, now_s: float) -> None:
        if type(write) is Put:
            self._put(write, now_s)
        elif type(write) is Answer:
            self._answer(write)
        elif type(write) is Correction:
            key = self._key(write.seq)
            self._tell(AnswerSeen(self.device, write.id, Kind.CORRECTION, hub=True, why="verdict", key=key))
        elif type(write) is Finish:
            self.rows.pop(write.seq, None)
            self._tell(Outcome(self._key(write.seq), write.id, write.outcome, write.reason, now_s))
        elif type(write) is Mark and write.seq in self.rows:
            kept = self.rows[write.seq]
            kept.state, kept.attempts = write.state, write.attempts
            kept.not_before_s = clock.when(write.not_before) if write.not_before else 0.0
        elif type(write) is Resealed and write.seq in self.rows:
            kept = self.rows[write.seq]
            kept.frame, kept.digest = write.frame, write.digest

    def _put(self, put: Put, now_s: float) -> None:
        store = put.store
        self.rows[store.seq] = _Kept(store, put.frame, put.digest, put.expires_s)
        self.next_seq = max(self.next_seq, store.seq + 1)
        self.spend = store.permit.spend
        self._tell(Accepted(self._key(store.seq), store.id, now_s))

    def _answer(self, answer: Answer) -> None:
        if answer.seq is not None and answer.seq in self.rows:
            self.rows[answer.seq].answered = True
        hub = answer.source is Source.HUB
        key = None if answer.seq is None else self._key(answer.seq)
        self._tell(AnswerSeen(self.device, answer.id, Kind.ANSWER, hub=hub, why=answer.why, key=key))

    def _key(self, seq: int) -> Key:
        return Key(self.device, self.epoch, seq)

    def _row(self, seq: int, kept: _Kept, clock: Clock) -> Row:
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
            target=store.permit.targets[0],
            digest=kept.digest,
            size=store.charge_bytes,
            expires=clock.read(kept.expires_s),
            not_before=clock.read(kept.not_before_s) if kept.not_before_s else 0.0,
            attempts=kept.attempts,
            jitter=store.jitter,
        )


class Writer:
    """The writer task before a disk: what is submitted within `commit_s` shares a commit, in the order it came."""

    def __init__(self, kernel: Kernel, commit_s: float) -> None:
        self._kernel = kernel
        self._commit_s = commit_s
        self._pending: deque[tuple[Callable[[], None], Callable[[], None] | None]] = deque()
        self._dead = False

    def submit(self, commit: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """`commit` makes one step durable; `then` tells its owner, if the owner still lives."""
        if not self._pending:
            self._kernel.after(self._commit_s, self._flush)
        self._pending.append((commit, then))

    def kill(self, rng: Random) -> None:
        """The process dies now: some first part of what was pending reached the disk, and nobody was told."""
        self._dead = True
        for _ in range(rng.randint(0, len(self._pending))):
            self._pending.popleft()[0]()
        self._pending.clear()

    def _flush(self) -> None:
        if self._dead:
            return
        group, self._pending = self._pending, deque()
        for commit, _ in group:
            commit()
        for _, then in group:
            if then is not None and not self._dead:
                then()
