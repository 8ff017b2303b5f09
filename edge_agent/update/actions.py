"""What an install changes: in the store, its floors and its quarantine; and in the running agent, which model answers.

Law: an action on the store blocks and may be repeated; one that was cut short is done again from its beginning after a
restart, and then finds what is left to do. A model that goes back goes back in memory first, whatever the disk does;
`busy` is held from the store's change until the agent follows it, so that no look for updates comes between.
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
    """Nobody wants to know."""


class StoreActions:
    """On the folder of the updates; each blocks. `step` is told the name of each point before it is passed."""

    def __init__(self, folder: Path, names: Names, step: Step = silent) -> None:
        self._folder = folder
        self._names = names
        self._step = step

    def activate(self, target: Slot) -> tuple[Activated, Runner | None]:
        """Prove that what serves still opens, flip, load. On a failure the store is as it was."""
        try:
            with opened(self._folder) as store:
                self._prove(store)
                if target not in (store.candidate, store.current):
                    raise BundleError(f"{target.path}: it is not there any more")
                self._step("flip")
                store.activate(target, trial=True)
                self._step("load")
                return Activated(), self._loaded(store, target)
        except FAULTS as error:
            return Activated(failure_class(error), str(error)[:300]), None

    def commit(self, target: Slot) -> Done:
        """From now on nothing older, and nothing to go back for."""
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
        """What served before is current again, if it opens; it is returned. Else nothing is."""
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
        """Give back what was staged or half downloaded, and remember what failed. A disk that refuses is no reason."""
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
        """BundleError, OSError, ExitError."""
        with opened(self._folder) as store:
            return self._loaded(store, slot)

    def _prove(self, store: Store) -> None:
        """There is a way back: every byte of it is there, and the runtime takes it."""
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
    """`edge_agent.update.poller.Updates`, as installs see it: who serves, by name of the store."""

    @property
    def slot(self) -> Slot | None: ...

    def took(self, slot: Slot | None) -> None: ...


class InstallDependencies(NamedTuple):
    """What installs need of the process. `busy`: held by whoever has the store. `job`: what a worker is told now."""

    folder: Path
    names: Names
    job: Callable[[], UpdateJob]
    busy: asyncio.Lock
    log: Log
    metered: bool = False  # whether a download over a link that costs is allowed
    tick_s: float = TICK_S
    step: Step = silent


class RuntimeActions:
    """Owned by the event loop."""

    def __init__(self, needs: InstallDependencies, served: Served, parts: Parts, answering: Answering) -> None:
        self._needs = needs
        self._served = served
        self._parts = parts
        self._answering = answering
        self._store_actions = StoreActions(needs.folder, needs.names, needs.step)
        self._self_test_bytes = 0

    def note_self_test(self, resident_bytes: int) -> None:
        """The newest model took so much memory in its self-test."""
        self._self_test_bytes = resident_bytes

    async def clean_up(self, wish: CleanUp) -> None:
        async with self._needs.busy:
            await asyncio.to_thread(self._store_actions.clean_up, wish)

    async def activate(self, target: Slot) -> Activated:
        """The model before stays loaded beside it."""
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
        """In memory first: the model before answers from this moment on, whatever the disk does."""
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
        """It was not loaded any more."""
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
        async with self._needs.busy:
            done = await asyncio.to_thread(self._store_actions.commit, target)
        if done.failure is None:
            self._answering.settle()
            self._parts.counts["installs_committed"] += 1
            self._needs.log.info("model_committed", path=name(target.path), version=target.version)
        return done

    async def examine(self, target: Slot) -> Examined:
        """The very session that serves, on its golden set."""
        runner = self._answering.model.runner
        async with self._needs.busy:
            return Examined(await asyncio.to_thread(_same, self._needs.folder, target, runner))


def failure_class(error: BaseException) -> Failure:
    """Of what an action on the store ended with."""
    if isinstance(error, ExitError):
        return Failure.DISK if error.code is Exit.DISK else Failure.INTERNAL
    return Failure.SELF_TEST if isinstance(error, BundleError) else failure_of(error)


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
