"""Actions of an install: what it changes in the store, its floors and quarantine, and which model the agent serves.

Rule: an action on the store blocks and may be repeated; one that was cut short is done again from its beginning after a
restart, and then finds what is left to do. A rollback happens in memory first, whatever the disk does. `busy` is held
from the store's change until the agent follows it, so that no look for updates comes between.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from edge_agent.runtime.answering import Answering
from edge_agent.update.installed import Names, opened
from edge_agent.update.types import Activated, CleanUp, Done, Examined
from edge_agent.update.worker_protocol import UpdateJob
from edge_agent.uplink.services import Parts
from models.bundle.manifest import BundleError
from models.runtime.golden import check_golden
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.runner import Runner
from models.update.floors import Quarantine, commit
from models.update.slots import Slot, Store
from models.update.trust import failure_of
from wire.process.exit_codes import Exit, ExitError
from wire.process.logging import Log, name
from wire.protocol.rollout import Failure

TICK_S = 1.0
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4096
FAULTS = (BundleError, OSError, sqlite3.Error, ExitError)
Step = Callable[[str], None]


def silent(_: str) -> None:
    """A step hook that does nothing."""


class StoreActions:
    """Actions on the folder of the updates; each blocks.

    `step(name)`: called before each point at which a kill is tested.
    """

    def __init__(self, folder: Path, names: Names, step: Step = silent) -> None:
        self._folder = folder
        self._names = names
        self._step = step

    def activate(self, target: Slot) -> tuple[Activated, Runner | None]:
        """Check that the serving bundle still opens, make the target current on trial, and load it.

        On a failure the store is as it was.
        """
        try:
            with opened(self._folder) as store:
                self._prove(store)
                if target not in (store.candidate, store.current):
                    raise BundleError(f"{target.path}: its slot is gone")
                self._step("flip")
                store.activate(target, trial=True)
                self._step("load")
                return Activated(), self._loaded(store, target)
        except FAULTS as error:
            return Activated(failure_class(error), str(error)[:300]), None

    def commit(self, target: Slot) -> Done:
        """Raise the rollback floor to this slot and drop the one before: no older version may follow."""
        try:
            self._step("raise_floor")
            commit(self._folder / "metadata", target)
            self._step("commit")
            with opened(self._folder) as store:
                store.commit()
        except FAULTS as error:
            return Done(failure_class(error), str(error)[:300])
        return Done()

    def roll_back(self, target: Slot) -> tuple[Done, Slot | None]:
        """Make the bundle before current again, if it opens, and return its slot. If none does, nothing is current."""
        try:
            with opened(self._folder) as store:
                self._step("roll_back")
                on_trial = store.current is not None and store.current.digest == target.digest
                before = store.previous if on_trial else store.current
                if before is None:
                    return self._nothing(store, "nothing served before")
                try:
                    store.open(before)
                except BundleError as error:
                    return self._nothing(store, str(error))
                if on_trial:
                    store.roll_back()
                return Done(), before
        except FAULTS as error:
            return Done(failure_class(error), str(error)[:300]), None

    def clean_up(self, wish: CleanUp) -> None:
        """Remove what was staged or partly downloaded, and quarantine what failed. Disk errors are ignored."""
        with suppress(*FAULTS), opened(self._folder) as store:
            store.drop()
            if wish.target is None:
                return
            store.forget_part(wish.target.digest)
            quarantine = Quarantine(store.metadata, self._names.agent)
            if wish.until_ms:
                quarantine.ban(wish.target.digest, wish.until_ms)
            if wish.hopeless and wish.target.path:
                quarantine.note(wish.target.path, hopeless=True)

    def load(self, slot: Slot) -> Runner:
        """Open a slot and load its model. Raises BundleError, OSError or ExitError."""
        with opened(self._folder) as store:
            return self._loaded(store, slot)

    def _prove(self, store: Store) -> None:
        """Check that a rollback is possible: the serving bundle's bytes are intact, and the runtime loads it."""
        self._step("prove")
        if store.current is not None and not store.on_trial:
            self._loaded(store, store.current).close()

    def _loaded(self, store: Store, slot: Slot) -> Runner:
        try:
            return OnnxRunner(store.open(slot), self._names.threads)
        except BundleError:
            if store.on_trial and store.current == slot:
                store.roll_back()
            raise

    def _nothing(self, store: Store, why: str) -> tuple[Done, Slot | None]:
        store.abandon()
        return Done(Failure.INTEGRITY, why[:300]), None


class Served(Protocol):
    """Which slot serves: `Updates`, as the install sees it."""

    @property
    def slot(self) -> Slot | None:
        """The slot that serves; None for none."""
        ...

    def took(self, slot: Slot | None) -> None:
        """The install has made this slot serve."""
        ...


class InstallDependencies(NamedTuple):
    """What an install needs of the process. `busy`: lock of whoever uses the store. `job`: a worker's job as of now.

    `metered`: whether a download over a metered link is allowed. `tick_s`: the pause between two observations.
    """

    folder: Path
    names: Names
    job: Callable[[], UpdateJob]
    busy: asyncio.Lock
    log: Log
    metered: bool = False  # whether a download over a link that costs is allowed
    tick_s: float = TICK_S
    step: Step = silent


class RuntimeActions:
    """Store actions together with what follows from them in the running agent; used on the event loop only."""

    def __init__(self, needs: InstallDependencies, served: Served, parts: Parts, answering: Answering) -> None:
        self._needs = needs
        self._served = served
        self._parts = parts
        self._answering = answering
        self._store_actions = StoreActions(needs.folder, needs.names, needs.step)
        self._self_test_bytes = 0

    def note_self_test(self, resident_bytes: int) -> None:
        """Note how much memory, in bytes, the newest model took in its self-test."""
        self._self_test_bytes = resident_bytes

    async def clean_up(self, wish: CleanUp) -> None:
        """Clean up the store in a thread, while no one else uses it."""
        async with self._needs.busy:
            await asyncio.to_thread(self._store_actions.clean_up, wish)

    async def activate(self, target: Slot) -> Activated:
        """Serve the target on trial; the model before stays loaded beside it."""
        rss = resident_bytes()
        before = self._answering.trial.seen.signals(rss)
        async with self._needs.busy:
            done, runner = await asyncio.to_thread(self._store_actions.activate, target)
            if runner is None:
                return done
            await self._answering.try_out(runner)
            self._served.took(target)
        self._parts.counts["installs_tried"] += 1
        self._needs.log.info("model_on_trial", path=name(target.path), version=target.version)
        declared = max(rss + self._self_test_bytes, resident_bytes()) if rss else 0
        return Activated(before=before, declared_bytes=declared)

    async def roll_back(self, target: Slot, why: str) -> Done:
        """Serve the model before again. In memory first: it answers from this moment on, whatever the disk does."""
        at_once = self._answering.go_back()
        async with self._needs.busy:
            done, slot = await asyncio.to_thread(self._store_actions.roll_back, target)
            if not at_once and slot != self._served.slot:
                done, slot = await self._load_again(done, slot)
            if done.failure is not Failure.DISK:
                self._served.took(slot)
        self._parts.counts["installs_rolled_back"] += 1
        self._needs.log.error("rolled_back", path=name(target.path), why=name(why))
        return done

    async def _load_again(self, done: Done, slot: Slot | None) -> tuple[Done, Slot | None]:
        """The model before is not in memory any more: load it from its slot."""
        if slot is None:
            if done.failure is not Failure.DISK:
                await self._answering.use(None)
            return done, None
        try:
            await self._answering.use(await asyncio.to_thread(self._store_actions.load, slot))
        except (BundleError, OSError) as error:
            await self._answering.use(None)
            return Done(failure_class(error), str(error)[:300]), None
        return done, slot

    async def commit(self, target: Slot) -> Done:
        """Commit the target, and unload the model before."""
        async with self._needs.busy:
            done = await asyncio.to_thread(self._store_actions.commit, target)
        if done.failure is None:
            self._answering.settle()
            self._parts.counts["installs_committed"] += 1
            self._needs.log.info("model_committed", path=name(target.path), version=target.version)
        return done

    async def examine(self, target: Slot) -> Examined:
        """Run the very session that serves on its golden set."""
        runner = self._answering.model.runner
        async with self._needs.busy:
            return Examined(await asyncio.to_thread(_same, self._needs.folder, target, runner))


def failure_class(error: BaseException) -> Failure:
    """The failure class of the error that an action on the store ended with."""
    if isinstance(error, ExitError):
        return Failure.DISK if error.code is Exit.DISK else Failure.INTERNAL
    return Failure.SELF_TEST if isinstance(error, BundleError) else failure_of(error)


def resident_bytes() -> int:
    """Resident memory of this process in bytes; 0 where the kernel does not tell."""
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
