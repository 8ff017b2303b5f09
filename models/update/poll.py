"""One poll of the update repository: fetches the wanted documents and stages the chosen bundle in the store.

Rule: each thing is refused alone and by name, what was there stays, and a bundle is only staged here: whoever runs it
decides when it serves.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from tuf.api.metadata import TargetFile

from models.bundle.manifest import BundleError
from models.signing.roles import BUNDLE_SUFFIX, INTERFACE_FIELD, Permit
from models.update.client import RefusedError, TrustedSession, UpdateClient, custom_version
from models.update.slots import Slot, Store, StoredDocument
from models.update.trust import Refusal, classify_failure, is_target_path
from models.update.tuf_view import ListedTarget
from wire.protocol.rollout import InstallFailure

MAX_DOCUMENT_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")


class AvailableTarget(msgspec.Struct, frozen=True):
    """Bundle that the repository lists. `custom`: what its publisher says of it, as `min_agent` and `target`.

    `digest`: SHA-256 of it, hex. `permit`: what lets whoever chooses it go below the floor.
    """

    path: str
    version: int
    length: int
    custom: dict[str, object]
    digest: str = ""
    permit: Permit | None = None

    @property
    def new_interface(self) -> bool:
        """Whether its signers let input, kind and labels differ from those of the model before."""
        return self.custom.get(INTERFACE_FIELD) is True


class RefreshEvidence(Protocol):
    """Interface of what a choice may ask of its refresh: `models.update.client.TrustedSession`."""

    def floor_under(self, path: str) -> int:
        """Version below which nothing of this path's line is installed; 0 = none."""
        ...

    def permits(self, family: str) -> tuple[Permit, ...]:
        """Signed permits for downgrades of a family."""
        ...


TargetChoice = Callable[[tuple[AvailableTarget, ...], RefreshEvidence], AvailableTarget | None]
DocumentCheck = Callable[[str, bytes], Refusal | None]


def accept_document(path: str, data: bytes) -> Refusal | None:
    """Accept every document: the default of `PollRequest.check`."""
    del path, data
    return None


def choose_newest(offers: tuple[AvailableTarget, ...], vouched: RefreshEvidence) -> AvailableTarget | None:
    """Choose the newest bundle: the default of `PollRequest.choose`."""
    del vouched
    return offers[0] if offers else None


class PollRequest(msgspec.Struct, frozen=True):
    """Request of one poll. `documents`: paths under `policy/` and `keys/`. `family` "" wants no bundle.

    `choose` sees the newest bundle first. `check` judges a document that is new here before it replaces the old one.
    """

    documents: tuple[str, ...] = ()
    family: str = ""
    choose: TargetChoice = choose_newest
    check: DocumentCheck = accept_document


class PollResult(msgspec.Struct, frozen=True):
    """Result of one poll: documents that changed and are in the store now, a staged bundle, what was refused.

    `alarm`: two polls in a row met expired metadata. `refreshed`: the repository was reached and vouched for.
    """

    documents: tuple[StoredDocument, ...] = ()
    staged: Slot | None = None
    refusals: tuple[Refusal, ...] = ()
    alarm: bool = False
    refreshed: bool = False


def poll_repository(errand: UpdateClient, store: Store, wants: PollRequest) -> PollResult:
    """Poll the repository once.

    Never raises for what the repository, the network or the disk did: see `PollResult.refusals`.
    """
    try:
        return _poll_session(errand, store, wants)
    except RefusedError as refused:
        return PollResult(refusals=(refused.refusal,), alarm=errand.alarm)
    finally:
        errand.close()


def _poll_session(errand: UpdateClient, store: Store, wants: PollRequest) -> PollResult:
    session = errand.refresh()
    refusals: list[Refusal] = []
    documents = [
        _try_step(refusals, store, partial(_fetch_document, session, store, wants.check, path))
        for path in wants.documents
    ]
    staged = _try_step(refusals, store, partial(_fetch_bundle, session, store, wants)) if wants.family else None
    return PollResult(tuple(each for each in documents if each), staged, tuple(refusals), errand.alarm, refreshed=True)


def _try_step(refusals: list[Refusal], store: Store, call: Callable[[], T | None]) -> T | None:
    """Return the result, or None with the refusal recorded; after a full disk what is not in use is freed."""
    try:
        return call()
    except RefusedError as refused:
        refusal = refused.refusal
    except (BundleError, OSError) as error:
        refusal = Refusal(classify_failure(error), str(error))
    if refusal.failure is InstallFailure.DISK:
        with suppress(OSError):
            store.reclaim_space()
    refusals.append(refusal)
    return None


def _fetch_document(session: TrustedSession, store: Store, check: DocumentCheck, path: str) -> StoredDocument | None:
    """Fetch a document if it is new here. The floor rises after it is stored: a crash between only brings it again."""
    found = session.approved_target(path)
    if found is None:
        return None
    document = StoredDocument(path, custom_version(found.info), _target_digest(found))
    held = store.read_document(path)
    if held and held[0] == document:
        return None
    if found.info.length > MAX_DOCUMENT_BYTES:
        raise RefusedError(
            Refusal(InstallFailure.INTEGRITY, f"{path}: {found.info.length} bytes, at most {MAX_DOCUMENT_BYTES}")
        )
    with store.reserve_part(document.digest, found.info.length, alone=False) as part:
        session.download(found, part)
        part.file.seek(0)
        data = part.file.read()
        refusal = check(path, data)
        if refusal:
            part.discard()
            raise RefusedError(refusal)
        store.keep_document(document, data)
        part.discard()
    session.raise_floor(found)
    return document


def list_available_targets(session: TrustedSession, family: str) -> tuple[AvailableTarget, ...]:
    """List every bundle of a family in the repository, the newest first."""
    listed = (
        AvailableTarget(i.path, custom_version(i), i.length, _custom_fields(i), str(i.hashes.get("sha256", "")))
        for i in session.targets_below(f"models/{family}")
    )
    found = (each for each in listed if is_target_path(each.path) and each.path.endswith(BUNDLE_SUFFIX))
    return tuple(sorted(found, key=lambda each: each.version, reverse=True))


def build_slot(found: ListedTarget) -> Slot:
    """Build the slot that will hold a target. RefusedError if its hash is not given."""
    info = found.info
    changed = _custom_fields(info).get(INTERFACE_FIELD) is True
    signers = tuple(sorted(found.signers))
    return Slot(info.path, custom_version(info), _target_digest(found), signers=signers, new_interface=changed)


def _fetch_bundle(session: TrustedSession, store: Store, wants: PollRequest) -> Slot | None:
    """Download and stage the bundle chosen, unless it is the one that serves."""
    chosen = wants.choose(list_available_targets(session, wants.family), session)
    found = session.approved_target(chosen.path, chosen.permit) if chosen else None
    if found is None:
        return None
    slot = build_slot(found)
    if store.current and store.current.digest == slot.digest:
        return None
    with store.reserve_part(slot.digest, found.info.length) as part:
        session.download(found, part)
        return store.stage_bundle(part, slot)


def _custom_fields(info: TargetFile) -> dict[str, object]:
    return info.custom if isinstance(info.custom, dict) else {}


def _target_digest(found: ListedTarget) -> str:
    digest = found.info.hashes.get("sha256", "")
    if not _SHA256.fullmatch(digest):
        raise RefusedError(Refusal(InstallFailure.INTEGRITY, f"{found.info.path}: no SHA-256 is given for it"))
    return digest
