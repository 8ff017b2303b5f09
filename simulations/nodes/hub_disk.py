"""In-memory twin of a hub's store: one row per (device, epoch, seq), which survives a kill.

Rule: a row is deleted once its device has recorded the outcome and no message about it can be on the way any more. How
far each stream has come is kept for ever.
"""

from collections import deque
from collections.abc import Callable, Mapping
from copy import copy

import msgspec

from cloud_hub.core.commands import LookUpQuestions, QuestionEnding, QuestionKey, QuestionRow, StoredQuestion, Stream
from simulations.kernel.kernel import Kernel
from wire.protocol.messages import RefusalReason

LINGERS_S = 120.0  # no message is on its way for longer


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


class HubDisk:
    """Twin of a hub's store.

    `effect` and `undone` are called for every verdict that was stored, or is gone again after a restore of a
    backup. A backup older than an earlier restore brings verdicts back that this one had undone: `effect` again.
    """

    def __init__(
        self, kernel: Kernel, effect: Callable[[QuestionKey], None], undone: Callable[[QuestionKey], None]
    ) -> None:
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

    def store_question(self, question: StoredQuestion) -> None:
        """Store a question."""
        key = question.key
        self._rows[key] = HubRow(question)
        stream = key.device, key.epoch
        if key.seq > self._highest.get(stream, -1):
            self._highest[stream] = key.seq

    def store_ending(self, ending: QuestionEnding) -> None:
        """Store the verdict or refusal of a question; ignored if its row is gone."""
        kept = self._rows.get(ending.key)
        if kept is None:
            return  # nothing to update: forgotten, or never kept
        kept.verdict, kept.refusal = ending.verdict, ending.refusal
        if kept.over:
            self._over.append((self._kernel.now + LINGERS_S, ending.key))
        if ending.verdict is not None:
            self._effect(ending.key)
            if self._since is not None:
                self._since.append(ending.key)

    def forget_question(self, key: QuestionKey) -> None:
        """Delete the row of a question."""
        self._rows.pop(key, None)

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
        return StoreSnapshot(rows, dict(self._highest), tuple(self._since))

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


def _to_row(kept: HubRow) -> QuestionRow:
    question = kept.question
    return QuestionRow(question.key, question.digest, question.fingerprint, kept.verdict, kept.refusal)
