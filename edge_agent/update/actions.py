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

from edge_agent.runtime.answering import InferenceService
from edge_agent.update.installed import RepositoryNames, open_store
from edge_agent.update.types import ActionDone, CleanUpStore, GoldenSetChecked, ModelActivated
from edge_agent.update.worker_protocol import UpdateJob
from edge_agent.uplink.services import AgentServices
from models.bundle.manifest import BundleError
from models.runtime.golden import check_golden
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.runner import Runner
from models.update.floors import Quarantine, commit_floor, quarantine_name
from models.update.slots import Slot, Store
from models.update.trust import classify_failure
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, safe_name
from wire.protocol.rollout import InstallFailure

TICK_S = 1.0
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4096
STORE_ERRORS = (BundleError, OSError, sqlite3.Error, ExitError)
StepHook = Callable[[str], None]


def ignore_step(_: str) -> None:
    """A step hook that does nothing."""


class StoreActions:
    """Actions on the folder of the updates; each blocks.

    `step(name)`: called before each point at which a kill is tested.
    """

    def __init__(self, folder: Path, names: RepositoryNames, step: StepHook = ignore_step) -> None:
        self._folder = folder
        self._names = names
        self._step = step

    def activate(self, target: Slot) -> tuple[ModelActivated, Runner | None]:
        """Check that the serving bundle still opens, make the target current on trial, and load it.

        On a failure the store is as it was.
        """
        try:
            with open_store(self._folder) as store:
                self._check_fallback(store)
                if target not in (store.candidate, store.current):
                    raise BundleError(f"{target.path}: its slot is gone")
                self._step("flip")
                store.activate(target, trial=True)
                self._step("load")
                return ModelActivated(), self._load_slot(store, target)
        except STORE_ERRORS as error:
            return ModelActivated(report_failure_kind(error), str(error)[:300]), None

    def commit(self, target: Slot) -> ActionDone:
        """Raise the rollback floor to this slot and drop the one before: no older version may follow."""
        try:
            self._step("raise_floor")
            commit_floor(self._folder / "metadata", target)
            self._step("commit")
            with open_store(self._folder) as store:
                store.commit()
        except STORE_ERRORS as error:
            return ActionDone(report_failure_kind(error), str(error)[:300])
        return ActionDone()

    def roll_back(self, target: Slot) -> tuple[ActionDone, Slot | None]:
        """Make the bundle before current again, if it opens, and return its slot. If none does, nothing is current."""
        try:
            with open_store(self._folder) as store:
                self._step("roll_back")
                on_trial = store.current is not None and store.current.digest == target.digest
                before = store.previous if on_trial else store.current
                if before is None:
                    return self._abandon_all(store, "nothing served before")
                try:
                    store.open_slot(before)
                except BundleError as error:
                    return self._abandon_all(store, str(error))
                if on_trial:
                    store.roll_back()
                return ActionDone(), before
        except STORE_ERRORS as error:
            return ActionDone(report_failure_kind(error), str(error)[:300]), None

    def clean_up(self, wish: CleanUpStore) -> None:
        """Remove what was staged or partly downloaded, and quarantine what failed. Disk errors are ignored."""
        with suppress(*STORE_ERRORS), open_store(self._folder) as store:
            store.drop_staged()
            if wish.target is None:
                return
            store.forget_part(wish.target.digest)
            quarantine = Quarantine(store.metadata, self._names.agent)
            if wish.until_ms:
                quarantine.ban_until(wish.target.digest, wish.until_ms)
            if wish.hopeless and wish.target.path:
                name = quarantine_name(wish.target.path, new_interface=wish.target.new_interface)
                quarantine.record_failure(name, hopeless=True)

    def load(self, slot: Slot) -> Runner:
        """Open a slot and load its model. Raises BundleError, OSError or ExitError."""
        with open_store(self._folder) as store:
            return self._load_slot(store, slot)

    def _check_fallback(self, store: Store) -> None:
        """Check that a rollback is possible: the serving bundle's bytes are intact, and the runtime loads it."""
        self._step("prove")
        if store.current is not None and not store.on_trial:
            self._load_slot(store, store.current).close()

    def _load_slot(self, store: Store, slot: Slot) -> Runner:
        try:
            return OnnxRunner(store.open_slot(slot), self._names.threads, self._names.providers)
        except BundleError:
            if store.on_trial and store.current == slot:
                store.roll_back()
            raise

    def _abandon_all(self, store: Store, why: str) -> tuple[ActionDone, Slot | None]:
        store.abandon_slots()
        return ActionDone(InstallFailure.INTEGRITY, why[:300]), None


class ServingSlot(Protocol):
    """Which slot serves: `Updates`, as the install sees it."""

    @property
    def slot(self) -> Slot | None:
        """The slot that serves; None for none."""
        ...

    def set_serving(self, slot: Slot | None) -> None:
        """The install has made this slot serve."""
        ...


class InstallDependencies(NamedTuple):
    """What an install needs of the process. `busy`: lock of whoever uses the store. `job`: a worker's job as of now.

    `metered`: whether a download over a metered link is allowed. `tick_s`: the pause between two observations.
    """

    folder: Path
    names: RepositoryNames
    job: Callable[[], UpdateJob]
    busy: asyncio.Lock
    log: JsonLog
    metered: bool = False  # whether a download over a link that costs is allowed
    tick_s: float = TICK_S
    step: StepHook = ignore_step


class RuntimeActions:
    """Store actions together with what follows from them in the running agent; used on the event loop only."""

    def __init__(
        self, needs: InstallDependencies, served: ServingSlot, parts: AgentServices, answering: InferenceService
    ) -> None:
        self._needs = needs
        self._served = served
        self._parts = parts
        self._answering = answering
        self._store_actions = StoreActions(needs.folder, needs.names, needs.step)
        self._self_test_bytes = 0

    def note_self_test(self, resident_bytes: int) -> None:
        """Note how much memory, in bytes, the newest model took in its self-test."""
        self._self_test_bytes = resident_bytes

    async def clean_up(self, wish: CleanUpStore) -> None:
        """Clean up the store in a thread, while no one else uses it."""
        async with self._needs.busy:
            await asyncio.to_thread(self._store_actions.clean_up, wish)

    async def activate(self, target: Slot) -> ModelActivated:
        """Serve the target on trial; the model before stays loaded beside it."""
        rss = read_resident_bytes()
        before = self._answering.trial.seen.make_signals(rss)
        async with self._needs.busy:
            done, runner = await asyncio.to_thread(self._store_actions.activate, target)
            if runner is None:
                return done
            await self._answering.start_trial(runner)
            self._served.set_serving(target)
        self._parts.counts["installs_tried"] += 1
        self._needs.log.info("model_on_trial", path=safe_name(target.path), version=target.version)
        declared = max(rss + self._self_test_bytes, read_resident_bytes()) if rss else 0
        return ModelActivated(before=before, declared_bytes=declared)

    async def roll_back(self, target: Slot, why: str) -> ActionDone:
        """Serve the model before again. In memory first: it answers from this moment on, whatever the disk does."""
        at_once = self._answering.revert_trial()
        async with self._needs.busy:
            done, slot = await asyncio.to_thread(self._store_actions.roll_back, target)
            if not at_once and slot != self._served.slot:
                done, slot = await self._reload_previous(done, slot)
            if done.failure is not InstallFailure.DISK:
                self._served.set_serving(slot)
        self._parts.counts["installs_rolled_back"] += 1
        self._needs.log.error("rolled_back", path=safe_name(target.path), why=safe_name(why))
        return done

    async def _reload_previous(self, done: ActionDone, slot: Slot | None) -> tuple[ActionDone, Slot | None]:
        """The model before is not in memory any more: load it from its slot."""
        if slot is None:
            if done.failure is not InstallFailure.DISK:
                await self._answering.set_model(None)
            return done, None
        try:
            await self._answering.set_model(await asyncio.to_thread(self._store_actions.load, slot))
        except (BundleError, OSError) as error:
            await self._answering.set_model(None)
            return ActionDone(report_failure_kind(error), str(error)[:300]), None
        return done, slot

    async def commit(self, target: Slot) -> ActionDone:
        """Commit the target, and unload the model before."""
        async with self._needs.busy:
            done = await asyncio.to_thread(self._store_actions.commit, target)
        if done.failure is None:
            self._answering.commit_trial()
            self._parts.counts["installs_committed"] += 1
            self._needs.log.info("model_committed", path=safe_name(target.path), version=target.version)
        return done

    async def check_golden_set(self, target: Slot) -> GoldenSetChecked:
        """Run the very session that serves on its golden set."""
        runner = self._answering.model.runner
        async with self._needs.busy:
            return GoldenSetChecked(await asyncio.to_thread(_passes_golden, self._needs.folder, target, runner))


def report_failure_kind(error: BaseException) -> InstallFailure:
    """The failure class of the error that an action on the store ended with."""
    if isinstance(error, ExitError):
        return InstallFailure.DISK if error.code is ExitCode.DISK else InstallFailure.INTERNAL
    return InstallFailure.SELF_TEST if isinstance(error, BundleError) else classify_failure(error)


def read_resident_bytes() -> int:
    """Resident memory of this process in bytes; 0 where the kernel does not tell."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def _passes_golden(folder: Path, target: Slot, runner: Runner) -> bool:
    try:
        with open_store(folder) as store:
            bundle = store.open_slot(target)
        return check_golden(bundle, runner).passed
    except BundleError:
        return False
