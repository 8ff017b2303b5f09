"""Reader of installed updates: the current bundle as a runner, the policies, and the hub keys on this device's disk.

Rule: no network here. What lies in the store was verified when it came, and is read and hashed again.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from edge_agent.identity.hubs import read_keys
from edge_agent.identity.identity import HubKeys
from edge_agent.system.policy_layers import Documents, read_published
from models.bundle.manifest import BundleError
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.runner import Runner
from models.update.floors import Quarantine, commit
from models.update.slots import Slot, Store
from models.update.trust import Refusal
from wire.process.exit_codes import Exit, ExitError
from wire.protocol.rollout import Failure

FOLDER = "updates"
PATIENCE_S = 3.0  # a worker of ours may be just ending
_POLL_S = 0.05


class Names(msgspec.Struct, frozen=True):
    """What this device takes from the update repository, by name.

    `family` "", no `policies`: not from there. `agent`: our version. `threads`: of the runtime.
    """

    family: str
    policies: tuple[str, ...]
    regions: tuple[str, ...]
    agent: str
    threads: int = 1

    @property
    def documents(self) -> tuple[str, ...]:
        """Paths of all documents in the repository: policies and hub keys."""
        return (*map(policy_path, self.policies), *map(keys_path, self.regions))


class Installed(msgspec.Struct, frozen=True):
    """What is installed. `slot`: what should serve; `runner`: its model, None if `slot` is None or serves already.

    `committed`: the model before, where `slot` is on trial and that one opens. `policies`: None while one that is named
    has not come or cannot be read. `hubs`: () while no file of hub keys ever came. `versions`: of the documents, by
    path.
    """

    slot: Slot | None = None
    runner: Runner | None = None
    committed: Runner | None = None
    policies: Documents | None = None
    hubs: tuple[HubKeys, ...] = ()
    versions: dict[str, int] = {}
    refusals: tuple[Refusal, ...] = ()


def policy_path(name: str) -> str:
    """Path of a policy in the update repository."""
    return f"policy/{name}.toml"


def keys_path(region: str) -> str:
    """Path of a region's hub keys in the update repository."""
    return f"keys/{region}.json"


def look(folder: Path, names: Names, serving: Slot | None = None, shun: str = "") -> Installed:
    """Read what is installed, and load the current bundle unless it is the one that serves. Blocks.

    Raises ExitError(LOCKED, DISK) if the store cannot be opened. `shun`: digest of a bundle that must not serve
    although it is current: the one before it does then.
    """
    with opened(folder) as store:
        slot, runner, refusals = _runner(store, names, serving, shun) if names.family else (None, None, ())
        committed = _committed(store, names) if runner and store.on_trial and slot == store.current else None
        found = {path: store.document(path) for path in names.documents}
    held = {path: pair for path, pair in found.items() if pair}
    versions = {path: document.version for path, (document, _) in held.items()}
    texts = {path: data for path, (_, data) in held.items()}
    policies = read_published(texts.get(policy_path(name)) for name in names.policies)
    return Installed(
        slot=slot, runner=runner, committed=committed, policies=policies, hubs=_hubs(texts, names.regions),
        versions=versions, refusals=refusals,
    )  # fmt: skip


def keep(folder: Path, slot: Slot) -> None:
    """The slot serves: raise the floor, so that nothing older of its family follows.

    sqlite3.Error if the disk refuses.
    """
    commit(folder / "metadata", slot)


Found = tuple[Slot | None, Runner | None, tuple[Refusal, ...]]


def _runner(store: Store, names: Names, serving: Slot | None, shun: str) -> Found:
    """Load the current slot, or the one before it where it does not open, which is left behind then."""
    refusals: tuple[Refusal, ...] = ()
    if shun and store.current and store.current.digest == shun:
        return (store.previous, _committed(store, names), ()) if store.previous else (None, None, ())
    while (slot := store.current) is not None:
        if slot == serving:
            return slot, None, refusals
        try:
            return slot, _load(store, names, slot), refusals
        except BundleError as error:
            refusals = (*refusals, Refusal(Failure.SELF_TEST, str(error)[:300]))
        if store.roll_back() is None:
            store.abandon()
    return None, None, refusals


def _committed(store: Store, names: Names) -> Runner | None:
    """Load the previous slot; None if there is none that opens."""
    try:
        return OnnxRunner(store.open(store.previous), names.threads) if store.previous else None
    except BundleError:
        return None


def _load(store: Store, names: Names, slot: Slot) -> Runner:
    bundle = store.open(slot)
    try:
        return OnnxRunner(bundle, names.threads)
    except BundleError:
        Quarantine(store.metadata, names.agent).note(slot.path, hopeless=False)
        raise


def _hubs(texts: dict[str, bytes], regions: tuple[str, ...]) -> tuple[HubKeys, ...]:
    found: list[HubKeys] = []
    for region in regions:
        try:
            found += read_keys(texts[keys_path(region)], region)
        except (KeyError, ValueError):
            continue
    return tuple(found)


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """The store, opened. Waits up to 3 s for a worker of ours that is just ending. Raises ExitError(LOCKED, DISK)."""
    deadline = time.monotonic() + PATIENCE_S
    store = Store(folder)
    while True:
        try:
            store.__enter__()
            break
        except ExitError as stop:
            if stop.code is not Exit.LOCKED or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        except (OSError, sqlite3.Error) as error:
            raise ExitError(Exit.DISK, f"{folder}: {error}") from None
    try:
        yield store
    finally:
        store.__exit__(None, None, None)
