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
from models.signing.roles import Permit
from models.update.client import Errand, RefusedError, Session, custom_version
from models.update.slots import Document, Slot, Store
from models.update.trust import Refusal, failure_of, path_fits
from models.update.tuf_view import Listing
from wire.protocol.rollout import Failure

MAX_DOCUMENT_BYTES = 1 << 20
SUFFIX = ".skb"
_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")


class Offer(msgspec.Struct, frozen=True):
    """Bundle that the repository lists. `custom`: what its publisher says of it, as `min_agent` and `target`.

    `digest`: SHA-256 of it, hex. `permit`: what lets whoever chooses it go below the floor.
    """

    path: str
    version: int
    length: int
    custom: dict[str, object]
    digest: str = ""
    permit: Permit | None = None


class Vouched(Protocol):
    """Interface of what a choice may ask of its refresh: `models.update.client.Session`."""

    def floor_under(self, path: str) -> int:
        """Version below which nothing of this path's line is installed; 0 = none."""
        ...

    def permits(self, family: str) -> tuple[Permit, ...]:
        """Signed permits for downgrades of a family."""
        ...


Choose = Callable[[tuple[Offer, ...], Vouched], Offer | None]
Check = Callable[[str, bytes], Refusal | None]


def sound(path: str, data: bytes) -> Refusal | None:
    """Accept every document: the default of `Wants.check`."""
    del path, data
    return None


def newest(offers: tuple[Offer, ...], vouched: Vouched) -> Offer | None:
    """Choose the newest bundle: the default of `Wants.choose`."""
    del vouched
    return offers[0] if offers else None


class Wants(msgspec.Struct, frozen=True):
    """Request of one poll. `documents`: paths under `policy/` and `keys/`. `family` "" wants no bundle.

    `choose` sees the newest bundle first. `check` judges a document that is new here before it replaces the old one.
    """

    documents: tuple[str, ...] = ()
    family: str = ""
    choose: Choose = newest
    check: Check = sound


class News(msgspec.Struct, frozen=True):
    """Result of one poll: documents that changed and are in the store now, a staged bundle, what was refused.

    `alarm`: two polls in a row met expired metadata. `refreshed`: the repository was reached and vouched for.
    """

    documents: tuple[Document, ...] = ()
    staged: Slot | None = None
    refusals: tuple[Refusal, ...] = ()
    alarm: bool = False
    refreshed: bool = False


def poll(errand: Errand, store: Store, wants: Wants) -> News:
    """Poll the repository once.

    Never raises for what the repository, the network or the disk did: see `News.refusals`.
    """
    try:
        return _poll(errand, store, wants)
    except RefusedError as refused:
        return News(refusals=(refused.refusal,), alarm=errand.alarm)
    finally:
        errand.close()


def _poll(errand: Errand, store: Store, wants: Wants) -> News:
    session = errand.refresh()
    refusals: list[Refusal] = []
    documents = [
        _attempt(refusals, store, partial(_document, session, store, wants.check, path)) for path in wants.documents
    ]
    staged = _attempt(refusals, store, partial(_bundle, session, store, wants)) if wants.family else None
    return News(tuple(each for each in documents if each), staged, tuple(refusals), errand.alarm, refreshed=True)


def _attempt(refusals: list[Refusal], store: Store, call: Callable[[], T | None]) -> T | None:
    """Return the result, or None with the refusal recorded; after a full disk what is not in use is freed."""
    try:
        return call()
    except RefusedError as refused:
        refusal = refused.refusal
    except (BundleError, OSError) as error:
        refusal = Refusal(failure_of(error), str(error))
    if refusal.failure is Failure.DISK:
        with suppress(OSError):
            store.reclaim()
    refusals.append(refusal)
    return None


def _document(session: Session, store: Store, check: Check, path: str) -> Document | None:
    """Fetch a document if it is new here. The floor rises after it is stored: a crash between only brings it again."""
    found = session.approved(path)
    if found is None:
        return None
    document = Document(path, custom_version(found.info), _digest(found))
    held = store.document(path)
    if held and held[0] == document:
        return None
    if found.info.length > MAX_DOCUMENT_BYTES:
        raise RefusedError(
            Refusal(Failure.INTEGRITY, f"{path}: {found.info.length} bytes, at most {MAX_DOCUMENT_BYTES}")
        )
    with store.reserve(document.digest, found.info.length, alone=False) as part:
        session.download(found, part)
        part.file.seek(0)
        data = part.file.read()
        refusal = check(path, data)
        if refusal:
            part.discard()
            raise RefusedError(refusal)
        store.keep(document, data)
        part.discard()
    session.raise_floor(found)
    return document


def offers(session: Session, family: str) -> tuple[Offer, ...]:
    """List every bundle of a family in the repository, the newest first."""
    listed = (
        Offer(i.path, custom_version(i), i.length, _custom(i), str(i.hashes.get("sha256", "")))
        for i in session.below(f"models/{family}")
    )
    found = (each for each in listed if path_fits(each.path) and each.path.endswith(SUFFIX))
    return tuple(sorted(found, key=lambda each: each.version, reverse=True))


def slot_of(found: Listing) -> Slot:
    """Build the slot that will hold a target. RefusedError if its hash is not given."""
    info = found.info
    return Slot(info.path, custom_version(info), _digest(found), signers=tuple(sorted(found.signers)))


def _bundle(session: Session, store: Store, wants: Wants) -> Slot | None:
    """Download and stage the bundle chosen, unless it is the one that serves."""
    chosen = wants.choose(offers(session, wants.family), session)
    found = session.approved(chosen.path, chosen.permit) if chosen else None
    if found is None:
        return None
    slot = slot_of(found)
    if store.current and store.current.digest == slot.digest:
        return None
    with store.reserve(slot.digest, found.info.length) as part:
        session.download(found, part)
        return store.stage(part, slot)


def _custom(info: TargetFile) -> dict[str, object]:
    return info.custom if isinstance(info.custom, dict) else {}


def _digest(found: Listing) -> str:
    digest = found.info.hashes.get("sha256", "")
    if not _SHA256.fullmatch(digest):
        raise RefusedError(Refusal(Failure.INTEGRITY, f"{found.info.path}: no SHA-256 is given for it"))
    return digest
