"""Jobs of the store: what one round of the event loop writes and reads, its result, and how a transaction fails.

Rule: a job that writes a question names the shard and the term under which its hub serves it, where hubs share the
database; without leases it names none.
"""

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol

import msgspec
import sqlalchemy as sa

from cloud_hub.core.commands import (
    Erasure,
    ErasureRequest,
    LookUpQuestions,
    QuestionEnding,
    QuestionKey,
    QuestionRow,
    StoredQuestion,
    Stream,
)
from cloud_hub.storage.costs import Usage
from wire.protocol.topics import compute_shard

FENCED = "FENCED"
NO_TERM = 0  # of no lease that was ever given


class ShardClaim(NamedTuple):
    """What a write rests on: that this process holds the lease of `shard` since it was given for the `term`-th time."""

    shard: int
    term: int


class StoreWork(Protocol):
    """A piece of work of another part of the hub, done in the transaction of a `StoreJob`, after its writes.

    It may be done twice: of a lost COMMIT nobody knows whether it was carried out.
    """

    @property
    def shards(self) -> AbstractSet[int]:
        """Shards under whose leases it is done."""

    def leave_out(self, shards: AbstractSet[int]) -> None:
        """Do nothing of these shards."""

    def run(self, connection: sa.Connection) -> Any:
        """Do it, in the transaction under way; returns what it found."""


class StoreJob(msgspec.Struct):
    """Writes and reads of one round of the event loop, executed in this order."""

    forgets: list[QuestionKey] = msgspec.field(default_factory=list)
    keeps: list[StoredQuestion] = msgspec.field(default_factory=list)
    endings: list[QuestionEnding] = msgspec.field(default_factory=list)
    finds: list[LookUpQuestions] = msgspec.field(default_factory=list)
    erases: list[ErasureRequest] = msgspec.field(default_factory=list)
    used: list[Usage] = msgspec.field(default_factory=list)  # beside what the endings used
    works: list[StoreWork] = msgspec.field(default_factory=list)
    prune_before_ms: int = 0
    purge_ms: int = 0
    probe: bool = False  # write something that changes nothing, to learn whether the database takes it
    needs_room: bool = False  # beside `probe`: also what a full disk has no place for
    rewrite: bool = False  # then rewrite the database, so that no file of it holds what was erased
    claims: set[ShardClaim] = msgspec.field(default_factory=set)  # under which its questions are written
    prune_shards: frozenset[int] | None = None  # whose rows are pruned and purged; None = all
    fenced: set[ShardClaim] = msgspec.field(default_factory=set)  # of its claims those that did not hold

    def __bool__(self) -> bool:
        return bool(self.used) or self._has_work

    @property
    def is_bill_alone(self) -> bool:
        """Whether there is nothing in it but what was used."""
        return bool(self.used) and not self._has_work

    @property
    def _has_work(self) -> bool:
        writes = (self.forgets, self.keeps, self.endings, self.erases, self.works)
        return any((*writes, self.finds, self.prune_before_ms, self.purge_ms, self.probe, self.rewrite))

    def leave_out(self, lost: AbstractSet[ShardClaim]) -> None:
        """Leave out what was to be written under claims that do not hold; `fenced` names them from now on."""
        found = self.claims & lost
        gone = {claim.shard for claim in found}
        self.claims -= found
        self.fenced |= found
        if not gone:
            return
        self.forgets = [key for key in self.forgets if compute_shard(key.device) not in gone]
        self.keeps = [question for question in self.keeps if compute_shard(question.key.device) not in gone]
        self.endings = [ending for ending in self.endings if compute_shard(ending.key.device) not in gone]
        for work in self.works:
            work.leave_out(gone)
        if self.prune_shards is not None:
            self.prune_shards -= gone


class JobResult(msgspec.Struct):
    """Result of a `StoreJob`. Without `error` it is durable, except `vanished`: endings that had no open row.

    `error`: the database's error class; `reason`: the same in words; `defect`: the error itself, if it is one of ours.
    `unfinished`: why the rewrite that it asked for was not done.
    """

    job: StoreJob
    rows: dict[QuestionKey, QuestionRow] = msgspec.field(default_factory=dict)
    highest: dict[Stream, int] = msgspec.field(default_factory=dict)
    vanished: set[QuestionKey] = msgspec.field(default_factory=set)
    erased: list[Erasure] = msgspec.field(default_factory=list)
    found: list[Any] = msgspec.field(default_factory=list)  # by each of its works
    more: bool = False  # more rows are left to be pruned
    error: str = ""
    reason: str = ""
    defect: BaseException | None = None
    unfinished: str = ""


class UnfinishedErasureError(Exception):
    """What was erased is still readable in a file of the hub; the message says why."""


class StoreError(Exception):
    """A transaction failed as a whole. The message is the database's error class, never a value.

    `reason`: the same in words. `lost`: the connection was lost, so a COMMIT may have been carried out all the same.
    `unavailable`: the server as a whole does not do its work, so no other job would fare better now. `fenced`: the
    claims that did not hold, of an error named `FENCED`; without them the same jobs may be given again. `defect`: the
    database's own error where the statement is at fault; only for `JsonLog.defect`.
    """

    def __init__(
        self,
        name: str,
        reason: str = "",
        *,
        lost: bool = False,
        unavailable: bool = False,
        fenced: frozenset[ShardClaim] = frozenset(),
        defect: BaseException | None = None,
    ) -> None:
        super().__init__(name)
        self.defect = defect
        self.reason = reason
        self.fenced = fenced
        self.lost = lost
        self.unavailable = unavailable
