"""What an install changes in the running agent: which model answers, which stays beside it, what is current on disk.

Law: a model that goes back goes back in memory first, whatever the disk does; `busy` is held from the store's change
until the agent follows it, so that no look for updates comes between.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from edge_agent.answering import Answering
from edge_agent.errand_job import Job
from edge_agent.install_deeds import Deeds, Step, failure_class, silent
from edge_agent.install_words import Activated, CleanUp, Done, Examined
from edge_agent.installed import Names, opened
from edge_agent.parts import Parts
from models.golden import check_golden
from models.manifest import BundleError
from models.runner import Runner
from models.store import Slot
from wire.daemon_log import Log, name
from wire.rollout import Failure

TICK_S = 1.0
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4096


class Served(Protocol):
    """`edge_agent.updates.Updates`, as the install machine sees it: who serves, by name of the store."""

    @property
    def slot(self) -> Slot | None: ...

    def took(self, slot: Slot | None) -> None: ...


class Tools(NamedTuple):
    """What the machine works with. `busy`: held by whoever has the store. `job`: an errand's orders as they are now."""

    folder: Path
    names: Names
    job: Callable[[], Job]
    busy: asyncio.Lock
    log: Log
    metered: bool = False  # whether a download over a link that costs is allowed
    tick_s: float = TICK_S
    step: Step = silent


class Acts:
    """Owned by the event loop. `resident_bytes`: what the newest model took in its self-test."""

    def __init__(self, tools: Tools, served: Served, parts: Parts, answering: Answering) -> None:
        self._tools = tools
        self._served = served
        self._parts = parts
        self._answering = answering
        self._deeds = Deeds(tools.folder, tools.names, tools.step)
        self.resident_bytes = 0

    async def clean_up(self, wish: CleanUp) -> None:
        async with self._tools.busy:
            await asyncio.to_thread(self._deeds.clean_up, wish)

    async def activate(self, target: Slot) -> Activated:
        """The model before stays loaded beside it."""
        rss = resident_bytes()
        before = self._answering.trial.seen.signals(rss)
        async with self._tools.busy:
            done, runner = await asyncio.to_thread(self._deeds.activate, target)
            if runner is None:
                return done
            await self._answering.try_out(runner)
            self._served.took(target)
        self._parts.counts["installs_tried"] += 1
        self._tools.log.info("model_on_trial", path=name(target.path), version=target.version)
        declared = max(rss + self.resident_bytes, resident_bytes()) if rss else 0
        return Activated(before=before, declared_bytes=declared)

    async def roll_back(self, target: Slot, why: str) -> Done:
        """In memory first: the model before answers from this moment on, whatever the disk does."""
        at_once = self._answering.go_back()
        async with self._tools.busy:
            done, slot = await asyncio.to_thread(self._deeds.roll_back, target)
            if not at_once and slot != self._served.slot:
                done, slot = await self._load_again(done, slot)
            if done.failure is not Failure.DISK:
                self._served.took(slot)
        self._parts.counts["installs_rolled_back"] += 1
        self._tools.log.error("rolled_back", path=name(target.path), why=name(why))
        return done

    async def _load_again(self, done: Done, slot: Slot | None) -> tuple[Done, Slot | None]:
        """It was not loaded any more."""
        if slot is None:
            if done.failure is not Failure.DISK:
                await self._answering.use(None)
            return done, None
        try:
            await self._answering.use(await asyncio.to_thread(self._deeds.load, slot))
        except (BundleError, OSError) as error:
            await self._answering.use(None)
            return Done(failure_class(error), str(error)[:300]), None
        return done, slot

    async def commit(self, target: Slot) -> Done:
        async with self._tools.busy:
            done = await asyncio.to_thread(self._deeds.commit, target)
        if done.failure is None:
            self._answering.settle()
            self._parts.counts["installs_committed"] += 1
            self._tools.log.info("model_committed", path=name(target.path), version=target.version)
        return done

    async def examine(self, target: Slot) -> Examined:
        """The very session that serves, on its golden set."""
        runner = self._answering.model.runner
        async with self._tools.busy:
            return Examined(await asyncio.to_thread(_same, self._tools.folder, target, runner))


def resident_bytes() -> int:
    """Of this process; 0 where the kernel does not tell."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def _same(folder: Path, target: Slot, runner: Runner) -> bool:
    try:
        with opened(folder) as store:
            bundle = store.open(target)
        return check_golden(bundle, runner).passed
    except BundleError:
        return False
