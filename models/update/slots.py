"""Bundle store on disk: bundles in slots (`current`, `previous`, `candidate`) and small documents, named by one index.

Rule: a slot is complete, verified and synced before it has a name, and what is current changes by renaming one file. So
a crash or a full disk at any step leaves either the old state or the new one, and a start sweeps away the rest.
"""

import errno
import os
import shutil
from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from models.bundle.archive import pack_bundle, unpack_bundle
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.manifest import BundleError
from models.update.partial_download import PartialDownload
from wire.process.daemon import FolderLock
from wire.process.files import sync_folder

__all__ = ["Slot", "Store", "StoreStep", "StoredDocument", "pack_bundle", "unpack_bundle"]

FORMAT = 1
INDEX_FILE = "index.json"
SPARE_BYTES = 1 << 20
_SCRATCH = ".new-"


class StoreStep(StrEnum):
    """Step of an installation; reported before it is done, so that tests can crash there."""

    UNPACK = "unpack"
    WRITE_FILE = "write_file"
    VERIFY = "verify"
    SYNC_SLOT = "sync_slot"
    RENAME_SLOT = "rename_slot"
    SYNC_SLOTS = "sync_slots"
    DROP_PART = "drop_part"
    WRITE_INDEX = "write_index"
    SYNC_INDEX = "sync_index"
    RENAME_INDEX = "rename_index"
    SYNC_FOLDER = "sync_folder"
    SWEEP = "sweep"


class Slot(msgspec.Struct, frozen=True):
    """Bundle in the store. `digest`: SHA-256 of the packed file, as TUF has it; `manifest`: of its manifest.

    `signers`: fingerprints of the keys that listed it, for the floor that is raised once it has proven itself.
    `new_interface`: who signed it allows that its input, kind or labels differ from those of the model before.
    """

    path: str
    version: int
    digest: str
    manifest: str = ""
    signers: tuple[str, ...] = ()
    new_interface: bool = False


class StoredDocument(msgspec.Struct, frozen=True):
    """Policy or hub key file in the store, verified when it arrived."""

    path: str
    version: int
    digest: str


class _StoreIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Index file of the store.

    `trial`: the current bundle is not committed yet. `candidate`: staged durably, until tried or dropped.
    """

    format: int = FORMAT
    current: Slot | None = None
    previous: Slot | None = None
    documents: dict[str, StoredDocument] = {}
    candidate: Slot | None = None
    trial: bool = False


def _ignore_step(step: StoreStep) -> None:
    del step


class Store:
    """Bundle store; use as a context: it holds the folder's lock (ExitError(LOCKED) for a second agent).

    OSError: the disk refuses. After one, `current` is what the disk has: the old one, or the new one if only the last
    sync was refused.
    """

    def __init__(self, folder: Path, step: Callable[[StoreStep], None] = _ignore_step) -> None:
        self.folder = folder
        self.metadata = folder / "metadata"
        self._slots = folder / "slots"
        self._parts = folder / "parts"
        self._documents = folder / "documents"
        self._step = step
        self._lock = FolderLock(folder)
        self._index = _StoreIndex()
        self._staged: Slot | None = None
        self.damaged = False  # the index could not be read: nothing is current, nothing was swept

    def __enter__(self) -> Self:
        for each in (self.folder, self.metadata, self._slots, self._parts, self._documents):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock.__enter__()
        try:
            self._read_index()
        except OSError:
            self._lock.__exit__(None, None, None)
            raise
        if not self.damaged:
            self._sweep_unnamed()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.__exit__(kind, error, at)

    @property
    def current(self) -> Slot | None:
        """Slot that serves; None before the first install."""
        return self._index.current

    @property
    def previous(self) -> Slot | None:
        """Slot that served before, for a rollback."""
        return self._index.previous

    @property
    def candidate(self) -> Slot | None:
        """Slot that is staged and named in the index: it outlives this process."""
        return self._index.candidate

    @property
    def on_trial(self) -> bool:
        """True while the current bundle was never committed."""
        return self._index.trial

    def slot_folder(self, slot: Slot) -> Path:
        """Return the folder of a slot."""
        return self._slots / slot.digest[:32]

    def open_slot(self, slot: Slot) -> Bundle:
        """Open the bundle of a slot, every byte verified again. BundleError if it is not the one that was installed."""
        bundle = open_bundle(self.slot_folder(slot))
        if bundle.digest != slot.manifest:
            raise BundleError(f"{bundle.path}: not the bundle that was installed there")
        return bundle

    def part_path(self, digest: str) -> Path:
        """Return the path of a bundle's partial download."""
        return self._parts / f"{digest}.part"

    def reserve_part(self, digest: str, length: int, *, alone: bool = True) -> PartialDownload:
        """Open a part to download into. OSError(ENOSPC) if it and the unpacked slot cannot both fit.

        `alone`: other parts are removed; a small file leaves them, so that a large one can be gone on with.
        """
        for other in self._parts.iterdir():
            if alone and not other.name.startswith(digest):
                other.unlink()
        part = PartialDownload(self.part_path(digest))
        there = part.path.stat().st_size if part.path.exists() else 0
        if shutil.disk_usage(self.folder).free < 2 * length - there + SPARE_BYTES:
            raise OSError(errno.ENOSPC, "no room for the download and the bundle in it")
        return part

    def stage_bundle(self, part: PartialDownload, slot: Slot) -> Slot:
        """Unpack a whole download into a slot of its own, beside what serves.

        Returns the slot with its manifest's digest.

        It stays until it is activated, dropped, replaced by another, or the process ends. BundleError if the bytes are
        not those of `slot.digest`, not a packed bundle, or a bundle of another name or version than the slot's.
        """
        scratch = self._slots / f"{_SCRATCH}{slot.digest[:32]}"
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            staged = self._unpack_part(part, slot, scratch)
            self._move_slot(scratch, self.slot_folder(staged))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._staged = staged
        self._step(StoreStep.DROP_PART)
        part.discard()
        return staged

    def name_candidate(self, slot: Slot) -> None:
        """Name the staged slot in the index, so that it outlives this process."""
        if self._index.candidate != slot:
            self._write_index(msgspec.structs.replace(self._index, candidate=slot))

    def drop_staged(self) -> None:
        """Drop the staged bundle."""
        self._staged = None
        if self._index.candidate:
            self._write_index(msgspec.structs.replace(self._index, candidate=None))
        self._sweep_unnamed()

    def activate(self, slot: Slot, *, trial: bool = False) -> None:
        """Make a staged slot the current one; the one before is kept for a rollback, older ones are deleted."""
        index = self._index
        if index.current == slot:
            return
        new = msgspec.structs.replace(index, current=slot, previous=index.current, candidate=None, trial=trial)
        self._write_index(new)
        self._step(StoreStep.SWEEP)
        self.drop_staged()

    def commit(self) -> None:
        """Commit the current bundle: its trial is over."""
        if self._index.trial:
            self._write_index(msgspec.structs.replace(self._index, trial=False))

    def roll_back(self) -> Slot | None:
        """Make the previous slot current again, and delete the one that failed. None: there is no previous slot."""
        previous = self._index.previous
        if previous is None:
            return None
        self._write_index(msgspec.structs.replace(self._index, current=previous, previous=None, trial=False))
        self._sweep_unnamed()
        return previous

    def abandon_slots(self) -> None:
        """Delete both slots: neither may serve any more."""
        self._write_index(msgspec.structs.replace(self._index, current=None, previous=None, trial=False))
        self._sweep_unnamed()

    def read_document(self, path: str) -> tuple[StoredDocument, bytes] | None:
        """Read a document and its bytes; None if it never came, or was altered."""
        found = self._index.documents.get(path)
        if found is None:
            return None
        try:
            data = (self._documents / found.digest).read_bytes()
        except FileNotFoundError:
            return None
        return (found, data) if sha256(data).hexdigest() == found.digest else None

    def keep_document(self, document: StoredDocument, data: bytes) -> None:
        """Replace a document in one step."""
        self._write_durably(self._documents / document.digest, data)
        sync_folder(self._documents)
        documents = {**self._index.documents, document.path: document}
        self._write_index(msgspec.structs.replace(self._index, documents=documents))
        self._sweep_unnamed()

    def forget_part(self, digest: str) -> None:
        """Delete a download that nobody will go on with."""
        for part in self._parts.iterdir():
            if part.name.startswith(digest):
                part.unlink()

    def reclaim_space(self) -> None:
        """Free everything that is not in use, after a full disk."""
        self._staged = None
        for part in self._parts.iterdir():
            part.unlink()
        self._sweep_unnamed()

    def _unpack_part(self, part: PartialDownload, slot: Slot, scratch: Path) -> Slot:
        self._step(StoreStep.UNPACK)
        scratch.mkdir(mode=0o700)
        part.flush()
        part.file.seek(0)
        digest = unpack_bundle(part.file, scratch, lambda _: self._step(StoreStep.WRITE_FILE))
        self._step(StoreStep.VERIFY)
        if digest != slot.digest:
            raise BundleError(f"{slot.path}: its bytes are not those that were promised")
        bundle = open_bundle(scratch)
        if (bundle.manifest.name, bundle.manifest.version) != (slot.path.split("/")[1], slot.version):
            raise BundleError(f"{slot.path}: it holds {bundle.manifest.model}")
        self._step(StoreStep.SYNC_SLOT)
        sync_folder(scratch)
        return msgspec.structs.replace(slot, manifest=bundle.digest)

    def _move_slot(self, scratch: Path, place: Path) -> None:
        self._step(StoreStep.RENAME_SLOT)
        if place.exists():  # staged before and not activated; the one in use is never staged again
            shutil.rmtree(place)
        scratch.rename(place)
        self._step(StoreStep.SYNC_SLOTS)
        sync_folder(self._slots)

    def _read_index(self) -> None:
        try:
            self._index = msgspec.json.decode((self.folder / INDEX_FILE).read_bytes(), type=_StoreIndex)
            self.damaged = self._index.format != FORMAT
        except FileNotFoundError:
            self.damaged = False
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.damaged = True
        if self.damaged:
            self._index = _StoreIndex()
        if self._index.previous and not self.slot_folder(self._index.previous).is_dir():
            self._index = msgspec.structs.replace(
                self._index, previous=None
            )  # swept before a rename that a power cut undid

    def _write_index(self, index: _StoreIndex) -> None:
        self._step(StoreStep.WRITE_INDEX)
        self._write_durably(self.folder / INDEX_FILE, msgspec.json.encode(index), self._step)
        self._index = index  # what is on disk now, even if the sync below is refused
        self.damaged = False
        self._step(StoreStep.SYNC_FOLDER)
        sync_folder(self.folder)

    def _write_durably(self, path: Path, data: bytes, step: Callable[[StoreStep], None] = _ignore_step) -> None:
        scratch = path.with_name(f"{_SCRATCH}{path.name}")
        try:
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                step(StoreStep.SYNC_INDEX)
                os.fsync(file.fileno())
            step(StoreStep.RENAME_INDEX)
            scratch.replace(path)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise

    def _sweep_unnamed(self) -> None:
        """Delete what the index does not name. Parts stay: they are downloads to go on with."""
        named = (self._index.current, self._index.previous, self._index.candidate, self._staged)
        slots = {self.slot_folder(slot).name for slot in named if slot}
        for each in self._slots.iterdir():
            if each.name not in slots:
                shutil.rmtree(each, ignore_errors=True)
        digests = {document.digest for document in self._index.documents.values()}
        for each in self._documents.iterdir():
            if each.name not in digests:
                each.unlink()
        (self.folder / f"{_SCRATCH}{INDEX_FILE}").unlink(missing_ok=True)
