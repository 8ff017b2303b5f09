"""In-memory twin of a hub's store: one row per (device, epoch, seq), which survives a kill; and who writes it by lease.

Rule: as in the real store a row is inserted once and ends once. It is deleted once its device has recorded the outcome
and no message about it can be on the way any more. How far each stream has come is kept for ever.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from copy import copy
from enum import Enum, auto

import msgspec

from cloud_hub.core.commands import LookUpQuestions, QuestionEnding, QuestionKey, QuestionRow, StoredQuestion, Stream
from cloud_hub.region.leases import Lease
from cloud_hub.storage.jobs import ShardClaim
from simulations.kernel.kernel import Kernel
from simulations.nodes.lease_table import LeaseSnapshot, SimulatedLeaseTable
from wire.protocol.messages import RefusalReason
from wire.protocol.topics import compute_shard

LINGERS_S = 120.0  # no message is on its way for longer


class Written(Enum):
    """What became of one write."""

    DONE = auto()
    FAILED = auto()  # nothing was written, or nobody was told that it was
    VANISHED = auto()  # an ending of a question that had ended otherwise, or has no row
    FENCED = auto()  # another process serves this shard


class HubRow(msgspec.Struct, gc=False):
    """Row of one question. `over`: its device has recorded the outcome."""

    question: StoredQuestion
    verdict: bytes | None = None
    refusal: RefusalReason | None = None
    over: bool = False


class StoreSnapshot(msgspec.Struct, frozen=True):
    """Backup of a hub's store. `effects`: the verdicts in it that were stored since the first backup."""

    rows: dict[QuestionKey, HubRow]
    highest: dict[Stream, int]
    effects: tuple[QuestionKey, ...]
    leases: LeaseSnapshot


class HubDisk:
    """Twin of a hub's store. `leases`: of the processes that share it.

    `effect` and `undone` are called for every verdict that was stored, or is gone again after a restore of a backup. A
    backup older than an earlier restore brings verdicts back that this one had undone: `effect` again. `taken` and
    `written` are called for each lease that changes hands and each write under one.
    """

    def __init__(
        self,
        kernel: Kernel,
        effect: Callable[[QuestionKey], None],
        undone: Callable[[QuestionKey], None],
        taken: Callable[[Lease], None],
        written: Callable[[str, ShardClaim], None],
    ) -> None:
        self.leases = SimulatedLeaseTable(kernel, taken)
        self._written = written
        self._kernel = kernel
        self._effect = effect
        self._undone = undone
        self._rows: dict[QuestionKey, HubRow] = {}
        self._highest: dict[Stream, int] = {}
        self._over: deque[tuple[float, QuestionKey]] = deque()
        self._since: list[QuestionKey] | None = None  # effects since the first backup

    def __len__(self) -> int:
        return len(self._rows)

    def open_questions(self) -> list[StoredQuestion]:
        """Questions without verdict or refusal, which a restarted hub has to compute."""
        return [kept.question for kept in self._rows.values() if kept.verdict is None and kept.refusal is None]

    def owed_questions(self, shards: Collection[int]) -> list[StoredQuestion]:
        """Those of them that are of these shards."""
        return [question for question in self.open_questions() if compute_shard(question.key.device) in shards]

    def holds(self, session: str, claim: ShardClaim) -> bool:
        """The fence: whether a process may write about the devices of a shard."""
        return self.leases.holds(session, claim)

    def write(self, session: str, claim: ShardClaim, act: Callable[[], Written]) -> Written:
        """Write under a lease, if it holds."""
        if not self.holds(session, claim):
            return Written.FENCED
        result = act()
        if result is Written.DONE:
            self._written(session, claim)
        return result

    def store_question(self, question: StoredQuestion) -> Written:
        """Store a question; it fails if there is a row already."""
        key = question.key
        if key in self._rows:
            return Written.FAILED
        self._rows[key] = HubRow(question)
        stream = key.device, key.epoch
        if key.seq > self._highest.get(stream, -1):
            self._highest[stream] = key.seq
        return Written.DONE

    def store_ending(self, ending: QuestionEnding) -> Written:
        """Store the verdict or refusal of a question."""
        kept = self._rows.get(ending.key)
        if kept is None:
            return Written.VANISHED
        if kept.verdict is not None or kept.refusal is not None:
            same = (kept.verdict, kept.refusal) == (ending.verdict, ending.refusal)
            return Written.DONE if same else Written.VANISHED
        kept.verdict, kept.refusal = ending.verdict, ending.refusal
        if kept.over:
            self._over.append((self._kernel.now + LINGERS_S, ending.key))
        if ending.verdict is not None:
            self._effect(ending.key)
            if self._since is not None:
                self._since.append(ending.key)
        return Written.DONE

    def raise_highest(self, stream: Stream, seq: int) -> None:
        """Know of a stream that it has come so far, though its rows are deleted already."""
        if seq > self._highest.get(stream, -1):
            self._highest[stream] = seq

    def forget_question(self, key: QuestionKey) -> Written:
        """Delete the row of a question."""
        self._rows.pop(key, None)
        return Written.DONE

    def find_rows(self, find: LookUpQuestions) -> tuple[Mapping[QuestionKey, QuestionRow], Mapping[Stream, int]]:
        """Rows of these keys, and the highest seq of these streams."""
        found = {key: self._rows.get(key) for key in find.keys}
        rows = {key: _to_row(kept) for key, kept in found.items() if kept is not None}
        highest = {stream: self._highest[stream] for stream in find.streams if stream in self._highest}
        return rows, highest

    # What a real store need not do

    def mark_over(self, key: QuestionKey) -> None:
        """The device has recorded the outcome: the row is deleted `LINGERS_S` after its ending."""
        kept = self._rows.get(key)
        if kept is not None:
            kept.over = True
            if kept.verdict is not None or kept.refusal is not None:
                self._over.append((self._kernel.now + LINGERS_S, key))

    def delete_expired(self) -> None:
        """Delete the rows that are due; called once a second or so."""
        now = self._kernel.now
        while self._over and self._over[0][0] <= now:
            self._rows.pop(self._over.popleft()[1], None)

    def snapshot(self) -> StoreSnapshot:
        """Take a backup of this moment."""
        if self._since is None:
            self._since = []
        rows = {key: copy(kept) for key, kept in self._rows.items()}
        return StoreSnapshot(rows, dict(self._highest), tuple(self._since), self.leases.snapshot())

    def restore_snapshot(self, snapshot: StoreSnapshot) -> None:
        """Restore a backup; verdicts that were stored since are reported as undone, those that are back as stored."""
        now, then = set(self._since or ()), set(snapshot.effects)
        for key in sorted(now - then):
            self._undone(key)
        for key in sorted(then - now):
            self._effect(key)
        self._since = list(snapshot.effects)
        self._rows = {key: copy(kept) for key, kept in snapshot.rows.items()}
        self._highest = dict(snapshot.highest)
        self.leases.restore_snapshot(snapshot.leases)


def _to_row(kept: HubRow) -> QuestionRow:
    question = kept.question
    return QuestionRow(question.key, question.digest, question.fingerprint, kept.verdict, kept.refusal)
