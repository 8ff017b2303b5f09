"""Gateway between `HubCore` and the database: the core's commands as jobs of one writer thread, and their results.

Rule 1: endings are reported before stored questions: a question that has its verdict needs no receipt. Rule 2: a job
that failed is reported as failed, and nothing of it was sent to anybody. Rule 3: an erasure is answered once it is on
disk; two identical ones share one.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloud_hub.core import commands
from cloud_hub.core.commands import Erasure, ErasureRequest, Tombstone
from cloud_hub.core.core import HubCore
from cloud_hub.database.connection import is_server, sqlite_file
from cloud_hub.jobs.runner import WorkFailedError
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.storage.costs import US_PER_S, CostEntry, Usage, merge_usages, read_costs_aside
from cloud_hub.storage.jobs import (
    NO_TERM,
    JobResult,
    ShardClaim,
    StoreError,
    StoreJob,
    StoreWork,
    UnfinishedErasureError,
)
from cloud_hub.storage.question_history import QuestionHistory, QuestionRecord, read_history_aside, read_newest_aside
from cloud_hub.storage.retention import LabelTally
from cloud_hub.storage.store import Store, read_owed_aside, read_tallies_aside
from cloud_hub.storage.writer import StoreWriter
from wire.errors import LocalError
from wire.process.files import list_set_aside
from wire.process.futures import await_shared
from wire.process.logging import JsonLog, safe_name
from wire.protocol.topics import compute_shard

CoreCall = Callable[..., None]


@dataclass(frozen=True)
class StoredState:
    """What an earlier process left: the latest hub time (ms), unanswered questions, and erased subjects.

    `damaged`: the name that its unusable database was renamed to, "" if it was sound.
    """

    newest_ms: int
    owed: list[commands.StoredQuestion]
    tombstones: list[Tombstone]
    damaged: str = ""


REWRITE_PAUSES = 9  # after a rewrite none is begun for so many times as long as it took
BILL_HELD_S = 0.2  # so long may what web requests used wait for a commit; a hub that is killed forgets it


class StoreGateway:
    """Owns the writer's thread; all methods are called on the event loop.

    `hears`: passes an event to the core and executes its commands; is called after the results of each commit.
    `on_ended` gets the key of each ending once it is on disk; `now` is hub time in seconds. `fault`: why a job could
    not be written, in words; "" once `probe` has found that all that is needed can be written again.
    """

    def __init__(
        self,
        *,
        core: HubCore,
        envelopes: HubEnvelopes,
        now: Callable[[], float],
        hears: tuple[CoreCall, Callable[[], None]],
        on_ended: Callable[[commands.QuestionKey], None],
        log: JsonLog,
    ) -> None:
        self.fault = ""
        self._on_fenced: Callable[[frozenset[int]], None] | None = None
        self._session = ""
        self._terms: dict[int, int] | None = None  # of the shards that are served; None = there are no leases
        self._url = ""
        self._core = core
        self._envelopes = envelopes
        self._now = now
        self._hear, self._end_round = hears
        self._on_ended = on_ended
        self._log = log
        self._job = StoreJob()
        self._writer: StoreWriter | None = None
        self._unbilled: list[Usage] = []
        self._bill_timer: asyncio.TimerHandle | None = None
        self._erasing: dict[ErasureRequest, asyncio.Future[Erasure]] = {}
        self._rewriting: asyncio.Future[str] | None = None  # of a rewrite that has not ended
        self._rewrite_began_s = self._rewrite_not_before_s = 0.0  # on the event loop's clock
        self._working: dict[int, asyncio.Future[Any]] = {}
        self._served = self._probing = False
        self._seen = 0  # commits when `probe` was called last

    # -- life cycle

    def open(self, url: str) -> StoredState:
        """Open the database and start the thread that writes to it. ExitError(DATABASE) if a newer program wrote it."""
        self._url, self._served = url, is_server(url)
        store = Store.open(url)
        store.session = self._session
        owed = store.read_unanswered() if self._terms is None else []
        found = StoredState(store.newest_ms(), owed, store.read_tombstones(), store.damaged)
        self._job.rewrite = store.needs_rewrite()  # an earlier process ended before it had done it
        self._writer = StoreWriter(store, asyncio.get_running_loop(), self._on_written)
        return found

    def list_damaged(self) -> list[str]:
        """Names of the damaged databases that were set aside and still lie in the state folder."""
        file = sqlite_file(self._url) if self._url else None
        return list_set_aside(file) if file else []

    @property
    def commits(self) -> int:
        """Number of transactions so far."""
        return self._writer.commits if self._writer else 0

    def check_alive(self) -> None:
        """RuntimeError if the writer's thread has ended: nothing would be written any more."""
        if self._writer is None or not self._writer.alive:
            raise RuntimeError("the store's thread has ended")

    async def close(self) -> None:
        """Write what was submitted, and the bill; then close the database."""
        self._cancel_bill_timer()
        if self._writer is not None:
            if self._job.is_bill_alone:
                self.submit_job(bill_at_once=True)
            await self._writer.close()

    def probe(self) -> None:
        """Ask a database that failed, or a server that nobody has asked for a second, whether it takes writes.

        Call it once a second: a hub that has nothing to do is told of what would keep it from its work, and of its end.
        """
        idle, self._seen = self.commits == self._seen, self.commits
        if (self.fault or (idle and self._served)) and not self._probing:
            self._probing = self._job.probe = True
            self._job.needs_room = bool(self.fault)
            self.submit_job()

    # -- leases

    def serve_by_lease(self, session: str, on_fenced: Callable[[frozenset[int]], None]) -> None:
        """Write questions of shards that were claimed only; call it before `open`.

        `session`: whose leases they are. `on_fenced` is called with the shards that turned out not to be.
        """
        self._session, self._terms, self._on_fenced = session, {}, on_fenced

    def claim_shards(self, terms: Mapping[int, int]) -> None:
        """Write questions of these shards from now on, under the terms of their leases."""
        if self._terms is not None:
            self._terms.update(terms)

    def release_shards(self, shards: Iterable[int]) -> None:
        """Write nothing more of these shards. What was gathered until now is still tried, under the old terms."""
        self.submit_job()
        for shard in shards:
            if self._terms is not None:
                self._terms.pop(shard, None)

    async def read_owed(self, shards: Collection[int]) -> list[commands.StoredQuestion]:
        """Unanswered questions of these shards, as stored. SQLAlchemyError if the database cannot be asked."""
        return await asyncio.to_thread(read_owed_aside, self._url, shards)

    @property
    def terms(self) -> Mapping[int, int] | None:
        """Shards that are served here, with the terms of their leases; None without leases."""
        return self._terms

    @property
    def shared(self) -> bool:
        """Whether other hubs may write to the database too."""
        return self._terms is not None

    def _claim(self, device: str) -> None:
        """Note under which lease the gathered job writes about this device."""
        if self._terms is not None:
            self._claim_shard(compute_shard(device))

    def _claim_shard(self, shard: int) -> None:
        if self._terms is not None:
            self._job.claims.add(ShardClaim(shard, self._terms.get(shard, NO_TERM)))

    async def run_work(self, work: StoreWork) -> Any:
        """Do a piece of work in the next commit; returns what it found. WorkFailedError if nothing was written."""
        future = self._working[id(work)] = _create_future()
        for shard in work.shards:
            self._claim_shard(shard)
        self._job.works.append(work)
        self.submit_job()
        try:
            return await await_shared(future)
        except StoreError as error:
            raise WorkFailedError(str(error)) from None

    # -- requests of the web API

    async def erase_subject(self, wish: ErasureRequest) -> Erasure:
        """Erase a subject's questions, on disk and in memory; returns once no file of the database holds them.

        StoreError if that could not be written; then nothing was erased. UnfinishedErasureError if a file still holds
        them: the same request tries again.
        """
        future = self._erasing.get(wish)
        if future is None:
            future = self._erasing[wish] = _create_future()
            self._job.erases.append(wish)
            self.submit_job()
        erasure = await await_shared(future)
        await self._finish_erasure()
        return erasure

    async def _finish_erasure(self) -> None:
        """Have the database rewritten; those that ask before it begins share one rewrite.

        It may take a tenth of the time at most, since questions wait meanwhile and any device can ask for it.
        """
        if self._rewriting is None:
            loop = asyncio.get_running_loop()
            self._rewriting = loop.create_future()
            loop.call_at(max(loop.time(), self._rewrite_not_before_s), self._submit_rewrite)
        unfinished = await await_shared(self._rewriting)
        aside = self.list_damaged()  # nothing can be erased in these
        if unfinished or aside:
            raise UnfinishedErasureError(unfinished or f"{', '.join(aside)} was set aside and has to be deleted")

    def _submit_rewrite(self) -> None:
        self._rewrite_began_s = asyncio.get_running_loop().time()
        self._job.rewrite = True
        self.submit_job()

    async def read_tallies(self) -> list[LabelTally]:
        """Daily counts as stored; `retention.publish_tallies` says which of them may be shown."""
        return await asyncio.to_thread(read_tallies_aside, self._url)

    async def read_history(self, device: str, since_ms: int, period_ms: int) -> QuestionHistory:
        """What became of a device's questions since a time, as stored; counts by periods of so many ms."""
        return await asyncio.to_thread(read_history_aside, self._url, device, since_ms, period_ms)

    async def read_newest(self, limit: int) -> list[QuestionRecord]:
        """The newest questions of all devices, newest first, as stored."""
        return await asyncio.to_thread(read_newest_aside, self._url, limit)

    def sign_statement(self, text: bytes) -> bytes:
        """Sign a statement (an erasure receipt) with the hub's reply key."""
        return self._envelopes.sign_statement(text)

    # -- commands of the core, gathered into one job per round

    def submit_job(self, *, bill_at_once: bool = False) -> None:
        """Submit the gathered commands as one job; what web requests used waits for something else to be written.

        `bill_at_once`: it does not. Nobody waits for the bill, and a commit for each answer cost more than the answer.
        """
        if not (self._job and self._writer):
            return
        if self._job.is_bill_alone and not bill_at_once:
            if self._bill_timer is None:
                self._bill_timer = asyncio.get_running_loop().call_later(BILL_HELD_S, self._submit_bill)
            return
        self._cancel_bill_timer()
        job, self._job = self._job, StoreJob()
        self._writer.submit(job)

    def _submit_bill(self) -> None:
        self._bill_timer = None
        self.submit_job(bill_at_once=True)

    def _cancel_bill_timer(self) -> None:
        if self._bill_timer is not None:
            self._bill_timer.cancel()
            self._bill_timer = None

    def store_question(self, command: commands.StoreQuestion) -> None:
        """Gather a question to be stored."""
        self._claim(command.question.key.device)
        self._job.keeps.append(command.question)

    def store_ending(self, command: commands.StoreEnding) -> None:
        """Gather an ending to be stored."""
        self._claim(command.ending.key.device)
        self._job.endings.append(command.ending)

    def delete_question(self, command: commands.DeleteQuestion) -> None:
        """Gather a question to be deleted."""
        self._claim(command.key.device)
        self._job.forgets.append(command.key)

    def look_up_questions(self, command: commands.LookUpQuestions) -> None:
        """Gather a lookup of keys and of the highest seq of streams."""
        self._job.finds.append(command)

    def prune_rows(self, command: commands.PruneRows) -> None:
        """Gather the deletion of old rows and expired verdicts."""
        self._job.prune_before_ms, self._job.purge_ms = command.before_ms, command.now_ms
        self._prune_served()

    def _prune_served(self) -> None:
        if self._terms is not None:
            self._job.prune_shards = frozenset(self._terms)
            self._job.claims |= {ShardClaim(*lease) for lease in self._terms.items()}

    def seal_verdict(self, command: commands.SealVerdict) -> None:
        """Seal a verdict to its device and store it as the question's ending.

        `HubCore.on_unsealable` if that is impossible.
        """
        now = self._now()
        try:
            frame = self._envelopes.seal_verdict(command.device, command.key, command.verdict, command.binding, now)
        except LocalError:
            self._hear(self._core.on_unsealable, command.key)
            return
        self._claim(command.key.device)
        self._job.endings.append(end_with_verdict(command, frame, now))

    def add_usages(self, used: Iterable[Usage]) -> None:
        """Gather what was used beside what verdicts used."""
        self._job.used.extend(used)

    async def read_costs(self, since_day: int, tenant: str | None) -> list[CostEntry]:
        """Sums of the bill as stored, since a day, of one tenant or of all."""
        return await asyncio.to_thread(read_costs_aside, self._url, since_day, tenant)

    # -- results of the jobs

    def _on_written(self, dones: Iterable[JobResult]) -> None:
        for done in dones:
            self._probing = self._probing and not done.job.probe
            if done.job.fenced:
                self._on_claims_lost(done.job.fenced)
            if done.error:
                self._on_unwritten(done)
            else:
                self._on_done(done)
        self._end_round()

    def _on_claims_lost(self, claims: set[ShardClaim]) -> None:
        """Tell of shards that were lost, unless it is known already, or they were gained once more since."""
        held = self._terms or {}
        lost = frozenset(claim.shard for claim in claims if held.get(claim.shard) == claim.term)
        if lost and self._on_fenced:
            self._on_fenced(lost)

    def _on_done(self, done: JobResult) -> None:
        job = done.job
        if job.needs_room:  # anything else may succeed on a full disk, too: a row that fits where another one was
            self.fault = ""
        if done.vanished:
            self._hear(self._core.on_vanished, done.vanished)
        self._hear(self._core.on_ended, [e for e in job.endings if e.key not in done.vanished])
        for ending in job.endings:
            self._on_ended(ending.key)
        self._hear(self._core.on_stored, [question.key for question in job.keeps])
        for find in job.finds:
            self._hear(self._core.on_found, find, done.rows, done.highest)
        for wish, erasure in zip(job.erases, done.erased, strict=True):
            self._hear(self._core.on_erased, erasure.keys, erasure.stone)
            self._erasing.pop(wish).set_result(erasure)
        for work, found in zip(job.works, done.found, strict=True):
            self._working.pop(id(work)).set_result(found)
        if job.rewrite:
            self._on_rewritten(done.unfinished)
        if done.more:
            self._job.prune_before_ms = job.prune_before_ms
            self._prune_served()

        self._job.used += self._unbilled
        self._unbilled = []

    def _on_unwritten(self, done: JobResult) -> None:
        self._unbilled = merge_usages([*self._unbilled, *done.job.used])  # billed once the database takes it
        self.fault = done.reason
        if done.defect is None:
            self._log.error("store_failed", error=safe_name(done.error))
        else:
            self._log.defect("store_failed", done.defect)
        self._hear(self._core.on_store_failed, done.job.keeps)
        self._hear(self._core.on_end_failed, done.job.endings)
        for find in done.job.finds:
            self._hear(self._core.on_find_failed, find)
        for wish in done.job.erases:
            self._erasing.pop(wish).set_exception(StoreError(done.error, done.reason))
        for work in done.job.works:
            self._working.pop(id(work)).set_exception(StoreError(done.error, done.reason))
        if done.job.rewrite:
            self._on_rewritten(done.reason or done.error)

    def _on_rewritten(self, unfinished: str) -> None:
        future, self._rewriting = self._rewriting, None
        now = asyncio.get_running_loop().time()
        self._rewrite_not_before_s = now + REWRITE_PAUSES * (now - self._rewrite_began_s)
        if unfinished:
            self._log.error("erasure_unfinished", why=safe_name(unfinished))
        if future is not None:
            future.set_result(unfinished)


def _create_future() -> asyncio.Future[Any]:
    """A future whose error counts as seen: its caller may have gone, and the log has the fault of the database."""
    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def end_with_verdict(command: commands.SealVerdict, frame: bytes, now: float) -> commands.QuestionEnding:
    """Return the ending that a sealed verdict is. `now` in hub seconds."""
    said = command.verdict.prediction
    return commands.QuestionEnding(
        command.key,
        int(now * 1000),
        verdict=frame,
        label=said.label,
        model=said.model,
        region=command.verdict.region,
        engine_us=round(command.engine_s * US_PER_S),
        question_bytes=command.question_bytes,
        usage=said.usage,
    )
