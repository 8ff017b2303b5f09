"""Gateway between `HubCore` and the database: gathers the core's commands into jobs, and reports their results.

Rule 1: endings are reported before stored questions: a question that has its verdict needs no receipt. Rule 2: a job
that failed is reported as failed, and nothing of it was sent to anybody. Rule 3: an erasure is answered once it is on
disk; two identical ones share one.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cloud_hub.core import commands as c
from cloud_hub.core.commands import Erase, Tombstone
from cloud_hub.core.core import HubCore
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.storage.retention import Tally
from cloud_hub.storage.store import Done, Job, Store, StoreError, read_aside
from cloud_hub.storage.writer import Writer
from wire.errors import LocalError
from wire.process.logging import Log, name

Hear = Callable[..., None]


@dataclass(frozen=True)
class StoredState:
    """What an earlier process left: the latest hub time (ms), unanswered questions, and erased subjects."""

    newest_ms: int
    owed: list[c.Question]
    tombstones: list[Tombstone]


class StoreGateway:
    """Owns the writer's thread; all methods are called on the event loop.

    `hear` passes an event to the core and executes its commands; `on_ended` gets the key of each ending once it is on
    disk; `now` is hub time in seconds. `ok` is False while the last job could not be written.
    """

    def __init__(
        self,
        *,
        core: HubCore,
        envelopes: HubEnvelopes,
        now: Callable[[], float],
        hear: Hear,
        on_ended: Callable[[c.Key], None],
        log: Log,
    ) -> None:
        self.ok = True
        self._url = ""
        self._core = core
        self._envelopes = envelopes
        self._now = now
        self._hear = hear
        self._on_ended = on_ended
        self._log = log
        self._job = Job()
        self._writer: Writer | None = None
        self._erasing: dict[Erase, asyncio.Future[Tombstone]] = {}

    # -- life cycle

    def open(self, url: str) -> StoredState:
        """Open the database and start the thread that writes to it. ExitError(DATABASE) if it cannot be used."""
        self._url = url
        store = Store.open(url)
        found = StoredState(store.newest_ms(), store.owed(), store.tombstones())
        self._writer = Writer(store, asyncio.get_running_loop(), self._on_written)
        return found

    @property
    def commits(self) -> int:
        """Number of transactions so far."""
        return self._writer.commits if self._writer else 0

    def check(self) -> None:
        """RuntimeError if the writer's thread has ended: nothing would be written any more."""
        if self._writer is None or not self._writer.alive:
            raise RuntimeError("the store's thread has ended")

    async def close(self) -> None:
        """Write what was submitted, then close the database."""
        if self._writer is not None:
            await self._writer.close()

    # -- requests of the web API

    async def erase(self, wish: Erase) -> Tombstone:
        """Erase a subject's questions, on disk and in memory.

        StoreError if that could not be written; then nothing was erased.
        """
        future = self._erasing.get(wish)
        if future is None:
            future = self._erasing[wish] = asyncio.get_running_loop().create_future()
            self._job.erases.append(wish)
            self.write()
        return await asyncio.shield(future)

    async def tallies(self) -> list[Tally]:
        """Daily counts as stored; `retention.published` says which of them may be shown."""
        return await asyncio.to_thread(read_aside, self._url)

    def testify(self, text: bytes) -> bytes:
        """Sign a statement (an erasure receipt) with the hub's reply key."""
        return self._envelopes.testify(text)

    # -- commands of the core, gathered into one job per round

    def write(self) -> None:
        """Submit the gathered commands as one job."""
        if self._job and self._writer:
            job, self._job = self._job, Job()
            self._writer.submit(job)

    def keep(self, command: c.Keep) -> None:
        """Gather a question to be stored."""
        self._job.keeps.append(command.question)

    def end(self, command: c.End) -> None:
        """Gather an ending to be stored."""
        self._job.endings.append(command.ending)

    def forget(self, command: c.Forget) -> None:
        """Gather a question to be deleted."""
        self._job.forgets.append(command.key)

    def find(self, command: c.Find) -> None:
        """Gather a lookup of keys and of the highest seq of streams."""
        self._job.finds.append(command)

    def prune(self, command: c.Prune) -> None:
        """Gather the deletion of old rows and expired verdicts."""
        self._job.prune_before_ms, self._job.purge_ms = command.before_ms, command.now_ms

    def seal(self, command: c.Judged) -> None:
        """Seal a verdict to its device and store it as the question's ending.

        `HubCore.on_unsealable` if that is impossible.
        """
        now = self._now()
        try:
            frame = self._envelopes.verdict(command.device, command.key, command.verdict, command.binding, now)
        except LocalError:
            self._hear(self._core.on_unsealable, command.key)
            return
        said = command.verdict.prediction
        ended = c.Ending(command.key, int(now * 1000), verdict=frame, label=said.label, model=said.model)
        self._job.endings.append(ended)

    # -- results of the jobs

    def _on_written(self, dones: Iterable[Done]) -> None:
        for done in dones:
            if done.error:
                self._on_unwritten(done)
            else:
                self._on_done(done)
        self._hear(self._core.flush)
        self.write()

    def _on_done(self, done: Done) -> None:
        self.ok, job = True, done.job
        if done.vanished:
            self._hear(self._core.on_vanished, done.vanished)
        self._hear(self._core.on_ended, [e for e in job.endings if e.key not in done.vanished])
        for ending in job.endings:
            self._on_ended(ending.key)
        self._hear(self._core.on_kept, [question.key for question in job.keeps])
        for find in job.finds:
            self._hear(self._core.on_found, find, done.rows, done.highest)
        for wish, (keys, stone) in zip(job.erases, done.erased, strict=True):
            self._hear(self._core.on_erased, keys, stone)
            self._erasing.pop(wish).set_result(stone)
        if done.more:
            self._job.prune_before_ms = job.prune_before_ms

    def _on_unwritten(self, done: Done) -> None:
        self.ok = False
        self._log.error("store_failed", error=name(done.error))
        self._hear(self._core.on_keep_failed, done.job.keeps)
        self._hear(self._core.on_end_failed, done.job.endings)
        for find in done.job.finds:
            self._hear(self._core.on_find_failed, find)
        for wish in done.job.erases:
            self._erasing.pop(wish).set_exception(StoreError(done.error))
