"""What the install machine does to the store, to floors and to the quarantine: each deed blocks, and may be repeated.

Law: a deed that was cut short is done again from its beginning after a restart, and then finds what is left to do.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edge_agent.install_words import Activated, CleanUp, Done
from edge_agent.installed import Names, opened
from models.floors import commit
from models.manifest import BundleError
from models.onnx import OnnxRunner
from models.quarantine import Quarantine
from models.runner import Runner
from models.store import Slot, Store
from models.trust import failure_of
from wire.exits import Exit, ExitError
from wire.rollout import Failure

FAULTS = (BundleError, OSError, sqlite3.Error, ExitError)
Step = Callable[[str], None]


def silent(_: str) -> None:
    """Nobody wants to know."""


class Deeds:
    """`step` is told the name of each point before it is passed."""

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


def failure_class(error: BaseException) -> Failure:
    """Of what a deed ended with."""
    if isinstance(error, ExitError):
        return Failure.DISK if error.code is Exit.DISK else Failure.INTERNAL
    return Failure.SELF_TEST if isinstance(error, BundleError) else failure_of(error)
