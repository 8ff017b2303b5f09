"""The hub's only way to its database: what core and web API want of it, as one job a round, and what became of it.

Rule 1: endings are told before keepings: a question that has its verdict needs no receipt. Rule 2: what was not written
is told as that, and nothing was said of it to anybody. Rule 3: an erasure is answered when it is on disk; two that ask
for the same share one.
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
    """What an earlier process left: the latest hub time it knew (ms), questions without an ending, erased subjects."""

    newest_ms: int
    owed: list[c.Question]
    tombstones: list[Tombstone]


class StoreGateway:
    """Owns the thread that writes. `hear` tells the core one thing and obeys; `on_ended` is told what is on disk.

    `now` is hub time in seconds. `ok` is False while the last job could not be written.
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

    # -- for the process

    def open(self, url: str) -> StoredState:
        """Open the database and start the thread that writes to it. ExitError(DATABASE) if it cannot be used."""
        self._url = url
        store = Store.open(url)
        found = StoredState(store.newest_ms(), store.owed(), store.tombstones())
        self._writer = Writer(store, asyncio.get_running_loop(), self._on_written)
        return found

    @property
    def commits(self) -> int:
        return self._writer.commits if self._writer else 0

    def check(self) -> None:
        """RuntimeError if the thread has ended: nothing would ever be written again."""
        if self._writer is None or not self._writer.alive:
            raise RuntimeError("the store's thread has ended")

    async def close(self) -> None:
        """Write what was submitted, then close the database."""
        if self._writer is not None:
            await self._writer.close()

    # -- for the web API

    async def erase(self, wish: Erase) -> Tombstone:
        """Forget a subject, on disk and in memory. StoreError if that could not be written: then nothing was."""
        future = self._erasing.get(wish)
        if future is None:
            future = self._erasing[wish] = asyncio.get_running_loop().create_future()
            self._job.erases.append(wish)
            self.write()
        return await asyncio.shield(future)

    async def tallies(self) -> list[Tally]:
        """Counts as they lie in the store; `aggregates.published` says what of them may be shown."""
        return await asyncio.to_thread(read_aside, self._url)

    def testify(self, text: bytes) -> bytes:
        """The hub's signature that something was done."""
        return self._envelopes.testify(text)

    # -- commands of the core: gathered, then written as one job

    def write(self) -> None:
        """Hand over what was gathered."""
        if self._job and self._writer:
            job, self._job = self._job, Job()
            self._writer.submit(job)

    def keep(self, command: c.Keep) -> None:
        self._job.keeps.append(command.question)

    def end(self, command: c.End) -> None:
        self._job.endings.append(command.ending)

    def forget(self, command: c.Forget) -> None:
        self._job.forgets.append(command.key)

    def find(self, command: c.Find) -> None:
        self._job.finds.append(command)

    def prune(self, command: c.Prune) -> None:
        self._job.prune_before_ms, self._job.purge_ms = command.before_ms, command.now_ms

    def seal(self, command: c.Judged) -> None:
        """The verdict is sealed to its device and ends its question."""
        now = self._now()
        try:
            frame = self._envelopes.verdict(command.device, command.key, command.verdict, command.binding, now)
        except LocalError:
            self._hear(self._core.on_unsealable, command.key)
            return
        said = command.verdict.prediction
        ended = c.Ending(command.key, int(now * 1000), verdict=frame, label=said.label, model=said.model)
        self._job.endings.append(ended)

    # -- what became of the jobs

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
