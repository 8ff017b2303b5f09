"""What the core wants of the store, gathered into one job a round, and what became of it.

Rule: endings are told before keepings: a question that has its verdict needs no receipt. What was not written is told
as that, and nothing was said of it to anybody.
"""

import asyncio
from collections.abc import Callable, Iterable

from cloud_hub import commands as c
from cloud_hub.archive import Archive
from cloud_hub.core import HubCore
from cloud_hub.envelopes import HubEnvelopes
from cloud_hub.retention import Erase
from cloud_hub.store import Done, Job, Store
from cloud_hub.writer import Writer
from wire.daemon_log import Log, name
from wire.errors import LocalError

Hear = Callable[..., None]


class Pen:
    """`hear` tells the core one thing and obeys; `ended` is told each ending that is on disk."""

    def __init__(self, core: HubCore, hear: Hear, log: Log, ended: Callable[[c.Key], None]) -> None:
        self.ok = True
        self.archive: Archive
        self._core = core
        self._hear = hear
        self._log = log
        self._ended = ended
        self._job = Job()
        self._writer: Writer | None = None

    def open(self, store: Store) -> None:
        """From now on its thread writes to this store."""
        self._writer = Writer(store, asyncio.get_running_loop(), self._on_written)

    @property
    def commits(self) -> int:
        return self._writer.commits if self._writer else 0

    def check(self) -> None:
        """RuntimeError if the thread has ended: nothing would ever be written again."""
        if self._writer is None or not self._writer.alive:
            raise RuntimeError("the store's thread has ended")

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()

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

    def erase(self, wish: Erase) -> None:
        self._job.erases.append(wish)
        self.write()

    def seal(self, command: c.Judged, envelopes: HubEnvelopes, now: float) -> None:
        """The verdict is sealed to its device and ends its question."""
        try:
            frame = envelopes.verdict(command.device, command.key, command.verdict, command.binding, now)
        except LocalError:
            self._hear(self._core.on_unsealable, command.key)
            return
        said = command.verdict.prediction
        ended = c.Ending(command.key, int(now * 1000), verdict=frame, label=said.label, model=said.model)
        self._job.endings.append(ended)

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
            self._ended(ending.key)
        self._hear(self._core.on_kept, [question.key for question in job.keeps])
        for find in job.finds:
            self._hear(self._core.on_found, find, done.rows, done.highest)
        for wish, (keys, stone) in zip(job.erases, done.erased, strict=True):
            self._hear(self._core.on_erased, keys, stone)
            self.archive.done(wish, stone)
        if done.more:
            self._job.prune_before_ms = job.prune_before_ms

    def _on_unwritten(self, done: Done) -> None:
        self.ok = False
        self._log.error("store_failed", error=name(done.error))
        self._hear(self._core.on_keep_failed, done.job.keeps)
        self._hear(self._core.on_end_failed, done.job.endings)
        for find in done.job.finds:
            self._hear(self._core.on_find_failed, find)
        self.archive.failed(done.job, done.error)
