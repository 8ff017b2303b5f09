"""Fetches one model version from another hub's repository: the bundle and its hub part, as the folder a hub serves.

Rule: what has arrived whole is not asked for again, and every byte was hashed before it bears a name. The folder is put
together beside its place and gets its name in one rename: whatever fails before, the models folder is as it was.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Self

from tuf.api.exceptions import DownloadHTTPError
from tuf.api.metadata import TargetFile

from cloud_hub.repository.parts import ByteProgress, ByteTick, PartMismatchError, PartStore, ignore_progress
from cloud_hub.repository.source import ListedVersion, VersionSource, find_version
from models.bundle.archive import pack_bundle, unpack_bundle
from models.bundle.bundle import open_bundle
from models.bundle.folder import write_plain_file
from models.bundle.hub_part import (
    PART_FILE,
    HubManifest,
    PartFile,
    check_halves,
    decode_hub_manifest,
    open_hub_part,
)
from models.bundle.manifest import HUB_FOLDER, BundleError
from models.bundle.replacement import check_place, replace_bundle
from models.update.client import UPDATE_ERRORS, RefusedError, ResumingFetcher, download_verified
from models.update.partial_download import PartialDownload
from models.update.trust import classify_failure
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import sync_folder
from wire.protocol.rollout import InstallFailure

SPARE_BYTES = 64 << 20  # that stays free on the disk
_CODES = {
    InstallFailure.NETWORK: ExitCode.HUB,
    InstallFailure.SLOW_RETRIEVAL: ExitCode.HUB,
    InstallFailure.DISK: ExitCode.DISK,
}
_NO_KEY = "no hub parts for this key; `skerry hub key create NAME --scope operate` on that hub makes one (--token-file)"


@dataclass(frozen=True)
class FetchedVersion:
    """A version that was fetched: its folder, the SHA-256 of the packed bundle, the bytes of bundle and hub part.

    `received_bytes`: what came over the network this time. `new` false: it was there already.
    """

    model: str
    folder: Path
    sha256: str
    size_bytes: int
    received_bytes: int = 0
    new: bool = True


def fetch_version(
    source: VersionSource, models: Path, model: str, progress: ByteProgress = ignore_progress
) -> FetchedVersion:
    """Fetch a version such as `digits@7` into the folder of that name below `models`, for a hub to serve or publish.

    A download that was cut goes on where it stopped. ExitError, one line, and the models folder is as before:
    (NOT_FOUND) not listed there, (CHECK_FAILED) revoked, or not what was promised, (CREDENTIALS) no trusted root or no
    key for hub parts, (HUB) not reached or cut, (DISK) no room, (LOCKED) another command fetches it.
    """
    fetcher = ResumingFetcher(context=source.context)
    scratch = models / f".fetch-{model}"
    try:
        client = source.create_client(fetcher)
        with FolderLock(source.trust):
            listed = find_version(client.refresh(), model)
        found = _find_installed(models / model, listed)
        if found:
            return found
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FolderLock(scratch):
            return _Transfer(source, listed, scratch, progress).run(models / model)
    except (RefusedError, BundleError, *UPDATE_ERRORS) as error:
        raise _exit_error(source, error, scratch) from None
    finally:
        fetcher.close()


def _find_installed(place: Path, listed: ListedVersion) -> FetchedVersion | None:
    """Return the version if its folder is there and complete, None if it has to be fetched.

    ExitError(CHECK_FAILED) if another bundle bears that name, PlaceError if something else lies there.
    """
    if not place.exists():
        return None
    try:
        bundle = open_bundle(place)
        if sha256(pack_bundle(bundle)).hexdigest() != listed.sha256:
            raise ExitError(ExitCode.CHECK_FAILED, f"{place} holds another bundle of that name: move it away first")
        if listed.hub:
            open_hub_part(place, bundle.manifest)
    except BundleError:  # damaged, or its hub part is not there
        check_place(place, _name_model(listed))
        return None
    return FetchedVersion(listed.model, place, listed.sha256, listed.size_bytes, new=False)


def _name_model(listed: ListedVersion) -> str:
    """Name of the model of a listed version: `digits` of `digits@7`."""
    return listed.model.partition("@")[0]


class _Transfer:
    """One fetch into a scratch folder whose lock is held: `parts` for what arrived whole, `version` for the result."""

    def __init__(self, source: VersionSource, listed: ListedVersion, scratch: Path, progress: ByteProgress) -> None:
        self._url = source.url
        self._listed = listed
        self._scratch = scratch
        self._store = PartStore(scratch / "parts")
        self._version = scratch / "version"
        self._fetcher = ResumingFetcher(context=source.context)
        self._keyed = ResumingFetcher(context=source.context, token=source.token)
        self._progress = progress
        self._done_bytes = 0

    def run(self, place: Path) -> FetchedVersion:
        """Fetch everything, put the folder together and rename it to `place`; the scratch folder goes then."""
        listed = self._listed
        try:
            self._store.folder.mkdir(mode=0o700, exist_ok=True)
            self._fetch_bundle()
            if listed.hub:
                self._fetch_hub_part(listed.hub, place.parent)
        finally:
            self._fetcher.close()
            self._keyed.close()
        replace_bundle(self._version, place, _name_model(listed))
        sync_folder(place.parent)
        shutil.rmtree(self._scratch, ignore_errors=True)
        received = self._fetcher.received_bytes + self._keyed.received_bytes
        return FetchedVersion(listed.model, place, listed.sha256, listed.size_bytes, received)

    def _fetch_bundle(self) -> None:
        """Fetch the packed bundle and unpack it as the new folder."""
        edge = self._listed.edge
        packed = self._fetch_file(edge, f"targets/{edge.get_prefixed_paths()[0]}", self._fetcher)
        shutil.rmtree(self._version, ignore_errors=True)
        self._version.mkdir(mode=0o755)
        with packed.open("rb") as file:
            if unpack_bundle(file, self._version) != self._listed.sha256:
                raise BundleError(f"{edge.path}: its bytes changed on this disk")
        bundle = open_bundle(self._version)
        if bundle.manifest.model != self._listed.model:
            raise BundleError(f"{edge.path}: it holds {bundle.manifest.model}")

    def _fetch_hub_part(self, hub: TargetFile, models: Path) -> None:
        """Fetch the description of the hub part and every file that is not here, and lay them into the folder."""
        data = self._fetch_keyed(hub, ExitError(ExitCode.CREDENTIALS, f"{self._url}: {_NO_KEY}")).read_bytes()
        part = decode_hub_manifest(data)
        check_halves(open_bundle(self._version).manifest, part, sha256(data).hexdigest())
        files = {file.sha256: file for file in part.files.values()}
        if sum(file.size_bytes for file in part.files.values()) + self._listed.edge.length != self._listed.size_bytes:
            raise BundleError(f"{hub.path}: the hub part has another size than was signed")
        self._reuse_files(files, models)
        missing = [file for file in files.values() if not self._store.has_part(file.sha256, file.size_bytes)]
        self._check_room(missing)
        for file in missing:
            info = TargetFile(file.size_bytes, {"sha256": file.sha256}, f"{hub.path} {file.sha256}")
            self._fetch_keyed(
                info, BundleError(f"{info.path}: that hub does not have it: publish the version there again")
            )
        self._lay_files(part, data)

    def _fetch_keyed(self, info: TargetFile, refused: Exception) -> Path:
        """Fetch a file of the hub part, for which the key is shown; raise `refused` if the hub does not give it."""
        try:
            return self._fetch_file(info, f"parts/{info.hashes['sha256']}", self._keyed)
        except DownloadHTTPError as error:
            if error.status_code != HTTPStatus.NOT_FOUND:
                raise
            raise refused from None

    def _fetch_file(self, info: TargetFile, path: str, fetcher: ResumingFetcher) -> Path:
        """Fetch a file into the store, unless it is there; go on where an earlier download of it was cut."""
        digest = str(info.hashes["sha256"])
        place = self._store.locate(digest)
        if self._store.has_part(digest, info.length):
            self._tick(info.length)
            return place
        with _CountedPart(self._begun_path(digest), self._tick) as part:
            download_verified(fetcher, f"{self._url}/{path}", info, part)
            part.move_to(place)
        return place

    def _begun_path(self, digest: str) -> Path:
        return self._store.locate(f".{digest}.part")

    def _reuse_files(self, wanted: dict[str, PartFile], models: Path) -> None:
        """Link in files that other versions on this disk have: a fine-tuned version shares most of its weights."""
        for path, file in _list_local_files(models):
            if file.sha256 in wanted and not self._store.has_part(file.sha256, file.size_bytes):
                with suppress(PartMismatchError, ExitError):  # damaged there, or a disk without links: fetched, then
                    self._store.place_file(path, file.sha256, file.size_bytes, self._tick)

    def _check_room(self, missing: list[PartFile]) -> None:
        """OSError(ENOSPC) if what is missing does not fit on the disk."""
        begun = [self._begun_path(file.sha256) for file in missing]
        there = sum(path.stat().st_size for path in begun if path.exists())
        needed = sum(file.size_bytes for file in missing) - there + SPARE_BYTES
        free = shutil.disk_usage(self._scratch).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed, {free:,} are free")

    def _lay_files(self, part: HubManifest, data: bytes) -> None:
        """Lay the files of the hub part into the folder under their names, and open it as a hub would."""
        folder = self._version / HUB_FOLDER
        folder.mkdir(mode=0o755)
        write_plain_file(folder / PART_FILE, data)
        for name, file in part.files.items():
            source = self._store.locate(file.sha256)
            try:
                os.link(source, folder / name)
            except OSError:  # a disk without links
                shutil.copyfile(source, folder / name)
        open_hub_part(self._version, open_bundle(self._version).manifest)
        sync_folder(folder)
        sync_folder(self._version)

    def _tick(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._progress(self._done_bytes, self._listed.size_bytes)


class _CountedPart(PartialDownload):
    """Partial download that tells how many bytes have come, those of an earlier try first."""

    def __init__(self, path: Path, tick: ByteTick) -> None:
        super().__init__(path)
        self._tick = tick

    def __enter__(self) -> Self:
        super().__enter__()
        self._tick(self.size)
        return self

    def append(self, data: bytes) -> None:
        super().append(data)
        self._tick(len(data))


def _list_local_files(models: Path) -> Iterator[tuple[Path, PartFile]]:
    """List the files of every hub part below a folder of versions; what cannot be read is passed over."""
    for description in sorted(models.glob(f"*/{HUB_FOLDER}/{PART_FILE}")):
        with suppress(OSError, BundleError):
            files = decode_hub_manifest(description.read_bytes()).files
            yield from ((description.parent / name, file) for name, file in files.items())


def _exit_error(source: VersionSource, error: Exception, scratch: Path) -> ExitError:
    """Word what ended a fetch; after a full disk what came is deleted, since a hub cannot run on one."""
    failure = error.refusal.failure if isinstance(error, RefusedError) else classify_failure(error)
    if failure is InstallFailure.DISK:
        shutil.rmtree(scratch, ignore_errors=True)
    said = getattr(error, "strerror", None) or (error.refusal.detail if isinstance(error, RefusedError) else str(error))
    again = "; what came is kept, the same command goes on" if _CODES.get(failure) is ExitCode.HUB else ""
    return ExitError(_CODES.get(failure, ExitCode.CHECK_FAILED), f"{source.url}: {failure}: {said}{again}")
