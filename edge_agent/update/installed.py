"""Reader of installed updates: the current bundle as a runner, the policies, and the hub keys on this device's disk.

Rule: no network here. What lies in the store was verified when it came, and is read and hashed again.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from edge_agent.identity.hubs import parse_hub_keys
from edge_agent.identity.identity import HubKeys
from edge_agent.system.policy_layers import PolicyDocuments, parse_published
from models.bundle.manifest import BundleError
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.runner import Runner
from models.update.floors import Quarantine, commit_floor
from models.update.slots import Slot, Store
from models.update.trust import Refusal
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.rollout import InstallFailure

UPDATES_FOLDER_NAME = "updates"
LOCK_TIMEOUT_S = 3.0  # a worker of ours may be just ending
_POLL_S = 0.05


class RepositoryNames(msgspec.Struct, frozen=True):
    """What this device takes from the update repository, by name.

    `family` "", no `policies`: not from there. `agent`: our version. `threads`, `providers`: of the runtime.
    """

    family: str
    policies: tuple[str, ...]
    regions: tuple[str, ...]
    agent: str
    threads: int = 1
    providers: tuple[str, ...] | None = None

    @property
    def documents(self) -> tuple[str, ...]:
        """Paths of all documents in the repository: policies and hub keys."""
        return (*map(policy_target_path, self.policies), *map(keys_target_path, self.regions))


class InstalledUpdates(msgspec.Struct, frozen=True):
    """What is installed. `slot`: what should serve; `runner`: its model, None if `slot` is None or serves already.

    `committed`: the model before, where `slot` is on trial and that one opens. `policies`: None while one that is named
    has not come or cannot be read. `hubs`: () while no file of hub keys ever came. `versions`: of the documents, by
    path.
    """

    slot: Slot | None = None
    runner: Runner | None = None
    committed: Runner | None = None
    policies: PolicyDocuments | None = None
    hubs: tuple[HubKeys, ...] = ()
    versions: dict[str, int] = {}
    refusals: tuple[Refusal, ...] = ()


def policy_target_path(name: str) -> str:
    """Path of a policy in the update repository."""
    return f"policy/{name}.toml"


def keys_target_path(region: str) -> str:
    """Path of a region's hub keys in the update repository."""
    return f"keys/{region}.json"


def read_installed(
    folder: Path, names: RepositoryNames, serving: Slot | None = None, shun: str = ""
) -> InstalledUpdates:
    """Read what is installed, and load the current bundle unless it is the one that serves. Blocks.

    Raises ExitError(LOCKED, DISK) if the store cannot be opened. `shun`: digest of a bundle that must not serve
    although it is current: the one before it does then.
    """
    with open_store(folder) as store:
        slot, runner, refusals = _open_current(store, names, serving, shun) if names.family else (None, None, ())
        committed = _open_previous(store, names) if runner and store.on_trial and slot == store.current else None
        found = {path: store.read_document(path) for path in names.documents}
    held = {path: pair for path, pair in found.items() if pair}
    versions = {path: document.version for path, (document, _) in held.items()}
    texts = {path: data for path, (_, data) in held.items()}
    policies = parse_published(texts.get(policy_target_path(name)) for name in names.policies)
    return InstalledUpdates(
        slot=slot, runner=runner, committed=committed, policies=policies, hubs=_read_hubs(texts, names.regions),
        versions=versions, refusals=refusals,
    )  # fmt: skip


def commit_slot(folder: Path, slot: Slot) -> None:
    """The slot serves: raise the floor, so that nothing older of its family follows.

    sqlite3.Error if the disk refuses.
    """
    commit_floor(folder / "metadata", slot)


CurrentBundle = tuple[Slot | None, Runner | None, tuple[Refusal, ...]]


def _open_current(store: Store, names: RepositoryNames, serving: Slot | None, shun: str) -> CurrentBundle:
    """Load the current slot, or the one before it where it does not open, which is left behind then."""
    refusals: tuple[Refusal, ...] = ()
    if shun and store.current and store.current.digest == shun:
        return (store.previous, _open_previous(store, names), ()) if store.previous else (None, None, ())
    while (slot := store.current) is not None:
        if slot == serving:
            return slot, None, refusals
        try:
            return slot, _load_slot(store, names, slot), refusals
        except BundleError as error:
            refusals = (*refusals, Refusal(InstallFailure.SELF_TEST, str(error)[:300]))
        if store.roll_back() is None:
            store.abandon_slots()
    return None, None, refusals


def _open_previous(store: Store, names: RepositoryNames) -> Runner | None:
    """Load the previous slot; None if there is none that opens."""
    try:
        return OnnxRunner(store.open_slot(store.previous), names.threads, names.providers) if store.previous else None
    except BundleError:
        return None


def _load_slot(store: Store, names: RepositoryNames, slot: Slot) -> Runner:
    bundle = store.open_slot(slot)
    try:
        return OnnxRunner(bundle, names.threads, names.providers)
    except BundleError:
        Quarantine(store.metadata, names.agent).record_failure(slot.path, hopeless=False)
        raise


def _read_hubs(texts: dict[str, bytes], regions: tuple[str, ...]) -> tuple[HubKeys, ...]:
    found: list[HubKeys] = []
    for region in regions:
        try:
            found += parse_hub_keys(texts[keys_target_path(region)], region)
        except (KeyError, ValueError):
            continue
    return tuple(found)


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    """The store, opened. Waits up to 3 s for a worker of ours that is just ending. Raises ExitError(LOCKED, DISK)."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    store = Store(folder)
    while True:
        try:
            store.__enter__()
            break
        except ExitError as stop:
            if stop.code is not ExitCode.LOCKED or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        except (OSError, sqlite3.Error) as error:
            raise ExitError(ExitCode.DISK, f"{folder}: {error}") from None
    try:
        yield store
    finally:
        store.__exit__(None, None, None)
