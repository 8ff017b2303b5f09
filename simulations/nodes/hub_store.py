"""What one process of a hub writes to the disk and reads from it, in commits; under its leases where it shares it.

Rule: as in the real store each write names the shard and the term under which it is made, and what does not hold when
it is committed is not written, and not reported to the core. Rule: what nobody is told of may be written all the same.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from cloud_hub.core.commands import LookUpQuestions, QuestionEnding, QuestionKey, QuestionRow, StoredQuestion, Stream
from cloud_hub.storage.jobs import NO_TERM, ShardClaim
from simulations.kernel.kernel import Kernel
from simulations.kernel.process_clock import ProcessClock
from simulations.nodes.device_disk import SimulatedWriter
from simulations.nodes.hub_disk import HubDisk, Written
from simulations.scenario.conditions import ConditionSampler
from wire.protocol.topics import compute_shard

ROUND_TRIP_S = 0.02  # to the database or the broker and back, at most

Found = tuple[Mapping[QuestionKey, QuestionRow], Mapping[Stream, int]]


class DatabaseLink(msgspec.Struct):
    """How a process reaches its database, over all its lives. `cut`, `leases_cut`: by so many faults; `cuts`: so far.

    While only the leases are cut it writes on and does not notice that they end: it has no guard.
    """

    cut: int = 0
    leases_cut: int = 0
    cuts: int = 0


class ProcessContext(NamedTuple):
    """What the parts of one life of a process share. `clock`: of this life; `kernel`: of whatever outlives it."""

    disk: HubDisk
    link: DatabaseLink
    kernel: Kernel
    clock: ProcessClock
    dice: Random

    def draw_trip_s(self) -> float:
        """Draw how long something is on its way to the database or the broker."""
        return self.dice.uniform(0.0, ROUND_TRIP_S / 2)


class StoreResults(Protocol):
    """The process, as it is told what became of what it wrote and asked."""

    def on_stored(self, question: StoredQuestion) -> None: ...

    def on_store_failed(self, question: StoredQuestion) -> None: ...

    def on_ended(self, ending: QuestionEnding) -> None: ...

    def on_end_failed(self, ending: QuestionEnding) -> None: ...

    def on_vanished(self, key: QuestionKey) -> None: ...

    def on_found(
        self, find: LookUpQuestions, rows: Mapping[QuestionKey, QuestionRow], highest: Mapping[Stream, int]
    ) -> None: ...

    def on_find_failed(self, find: LookUpQuestions) -> None: ...

    def on_fenced(self, shard: int) -> None: ...

    def on_commit(self) -> None: ...


class _Write:
    """One write, which reaches the disk at most once, and what is said of it when its commit is over."""

    __slots__ = ("_act", "_claim", "_cuts", "_store", "_tell", "result")

    def __init__(
        self,
        store: "HubStore",
        claim: ShardClaim | None,
        act: Callable[[], Written],
        tell: Callable[[Written], None],
    ) -> None:
        self.result: Written | None = None
        self._cuts = store.link.cuts
        self._store = store
        self._claim = claim
        self._act = act
        self._tell = tell

    def commit(self) -> None:
        """Write it, if it was not written before the process was stopped or cut off."""
        if self.result is None:
            self.result = self._store.try_write(self._claim, self._act)

    def report(self) -> None:
        """Tell the process what became of it."""
        if self._cuts != self._store.link.cuts:
            self._tell(Written.FAILED)  # the answer was lost with the connection
        elif self.result is Written.FENCED and self._claim is not None:
            self._store.on_fenced(self._claim)
        elif self.result is not None:
            self._tell(self.result)


class _Read:
    """One lookup; it sees what was written with it, and is read before a process is stopped or afterwards."""

    __slots__ = ("_cuts", "_find", "_found", "_store")

    def __init__(self, store: "HubStore", find: LookUpQuestions) -> None:
        self._cuts = store.link.cuts
        self._found: Found | None = None
        self._find = find
        self._store = store

    def commit(self) -> None:
        """Nothing is written; a process that is being stopped has its answer waiting."""
        if self._store.stopping:
            self._found = self._store.read(self._find)

    def report(self) -> None:
        """Tell the process what was found."""
        found = self._found or self._store.read(self._find)
        self._store.tell_found(self._find, found if self._cuts == self._store.link.cuts else None)


class HubStore:
    """Store of one life of a process. `session`: of its leases; "" = it shares the disk with nobody."""

    def __init__(
        self, context: ProcessContext, weather: ConditionSampler, commit_s: float, results: StoreResults
    ) -> None:
        self.session = ""
        self.stopping = False
        self.link = context.link
        self.writer = SimulatedWriter(context.clock, commit_s, results.on_commit)
        self._terms: dict[int, int] = {}
        self._disk = context.disk
        self._weather = weather
        self._results = results

    # Leases

    def claim_shards(self, terms: Mapping[int, int]) -> None:
        """Write about the devices of these shards from now on, in these terms."""
        self._terms |= terms

    def serves(self, device: str) -> bool:
        """Whether the process believes to have the lease of a device's shard; it needs none if it shares nothing."""
        return not self.session or compute_shard(device) in self._terms

    def release_shards(self, shards: Iterable[int]) -> None:
        """Write nothing more about them; what was submitted is still tried, in the old terms."""
        for shard in shards:
            self._terms.pop(shard, None)

    def on_fenced(self, claim: ShardClaim) -> None:
        """A write was not made; unless that is known, or the shard was gained once more since, it is lost."""
        if self._terms.get(claim.shard) == claim.term:
            self._results.on_fenced(claim.shard)

    def try_write(self, claim: ShardClaim | None, act: Callable[[], Written]) -> Written:
        """Write if the database can be reached and the claim holds."""
        if self.link.cut:
            return Written.FAILED
        return act() if claim is None else self._disk.write(self.session, claim, act)

    # Interruptions

    def on_stopped(self, dice: Random) -> None:
        """The process is stopped: of what it is writing some was on its way already."""
        self.stopping = True
        self.writer.commit_some(dice)
        self.stopping = False

    # Writes and reads

    def store_question(self, question: StoredQuestion) -> None:
        """Store a question."""

        def tell(result: Written) -> None:
            known = result is Written.DONE
            (self._results.on_stored if known else self._results.on_store_failed)(question)

        fails = self._weather.store_fails(question.key)
        self._submit(question.key, lambda: self._disk.store_question(question), tell, fails=fails)

    def store_ending(self, ending: QuestionEnding) -> None:
        """Store the ending of a question."""

        def tell(result: Written) -> None:
            if result is Written.VANISHED:
                self._results.on_vanished(ending.key)
            else:
                (self._results.on_ended if result is Written.DONE else self._results.on_end_failed)(ending)

        fails = self._weather.ending_fails(ending.key)
        self._submit(ending.key, lambda: self._disk.store_ending(ending), tell, fails=fails)

    def delete_question(self, key: QuestionKey) -> None:
        """Delete a question."""
        self._submit(key, lambda: self._disk.forget_question(key), _tell_nobody)

    def look_up(self, find: LookUpQuestions) -> None:
        """Look up rows, after what was submitted before."""
        found = _Read(self, find)
        self.writer.submit((found.commit, ()), (found.report, ()))

    def read(self, find: LookUpQuestions) -> Found | None:
        """The rows as they are now; None if the database cannot be reached."""
        return None if self.link.cut else self._disk.find_rows(find)

    def tell_found(self, find: LookUpQuestions, found: Found | None) -> None:
        """Tell the process what a lookup found."""
        if found is None:
            self._results.on_find_failed(find)
        else:
            self._results.on_found(find, *found)

    def _submit(
        self, key: QuestionKey, act: Callable[[], Written], tell: Callable[[Written], None], *, fails: bool = False
    ) -> None:
        claim = None
        if self.session:
            shard = compute_shard(key.device)
            claim = ShardClaim(shard, self._terms.get(shard, NO_TERM))
        write = _Write(self, claim, act, tell)
        if fails:
            write.result = Written.FAILED
        self.writer.submit((write.commit, ()), (write.report, ()))


def _tell_nobody(_result: Written) -> None:
    """A deletion that failed is found out when the question comes again."""
