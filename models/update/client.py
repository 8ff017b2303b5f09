"""TUF update client of a device: refreshes the metadata, checks it against version floors, downloads targets.

Rule: nothing is handed on that a refresh in this very run has not vouched for, so expiry, rollback or an unreachable
hub stop new installs only; what is installed goes on serving. Synchronous: run it in a thread of its own.
"""

import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import msgspec
from tuf.api.exceptions import DownloadError, ExpiredMetadataError, LengthOrHashMismatchError, RepositoryError
from tuf.api.metadata import TargetFile
from tuf.api.serialization import DeserializationError
from tuf.ngclient import Updater

from models.signing.roles import PERMITS, Permit, read_permit
from models.update import tuf_view
from models.update.downloader import ResumingFetcher
from models.update.floors import FloorDatabase
from models.update.partial_download import PartialDownload
from models.update.trust import (
    FREEZE_ALARM_POLLS,
    META_PREFIX,
    Refusal,
    TrustedRole,
    VersionFloor,
    check_refresh,
    check_target_version,
    classify_failure,
    compute_raised_floors,
    count_frozen_polls,
    find_stale,
    floor_changes,
    floor_holds,
    floor_name_of,
    is_target_path,
    lift_clock,
)
from wire.protocol.rollout import InstallFailure

UPDATE_ERRORS = (RepositoryError, DeserializationError, DownloadError, OSError, sqlite3.Error)
_FROZEN_NOTE = "frozen_polls"
T = TypeVar("T")


class RefusedError(Exception):
    """Update or target that was refused; `refusal` says why. Nothing new was accepted."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.failure}: {refusal.detail}")
        self.refusal = refusal


class RepositorySource(msgspec.Struct, frozen=True):
    """Repository to update from, and where trust in it begins.

    `root`: the root metadata the invite's hash belongs to. `least_ms`: a time that has certainly passed, milliseconds
    since 1970 (of this build, or when the hub enrolled us): a clock before it is lifted to it.
    """

    metadata_url: str
    targets_url: str
    root: bytes
    least_ms: int = 0


class _MetadataVersion(msgspec.Struct):
    version: int


class _CachedMetadata(msgspec.Struct):
    signed: _MetadataVersion


class UpdateClient:
    """Update client of one device for one repository.

    `folder` holds the cache and the floors; one process at a time.
    """

    def __init__(
        self, folder: Path, source: RepositorySource, fetcher: ResumingFetcher, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._source = source
        self._fetcher = fetcher
        self._clock = clock
        self.frozen_polls = 0

    @property
    def alarm(self) -> bool:
        """True once two polls in a row met expired metadata: someone, or our clock, holds us in the past."""
        return self.frozen_polls >= FREEZE_ALARM_POLLS

    def close(self) -> None:
        """Close the connection; the next refresh opens another."""
        self._fetcher.close()

    def refresh(self) -> "TrustedSession":
        """Refresh the metadata: a session above every floor. RefusedError otherwise."""
        try:
            with FloorDatabase(self._folder) as db:
                return self._refresh_counted(db)
        except UPDATE_ERRORS as error:
            raise RefusedError(Refusal(classify_failure(error), _format_error(error))) from error

    def _refresh_counted(self, db: FloorDatabase) -> "TrustedSession":
        """Refresh and count the polls in a row that met expired metadata."""
        self.frozen_polls = db.read_note(_FROZEN_NOTE)
        failure = None
        try:
            return self._refresh_checked(db)
        except UPDATE_ERRORS as error:
            failure = classify_failure(error)
            raise
        except RefusedError as refused:
            failure = refused.refusal.failure
            raise
        finally:
            self.frozen_polls = count_frozen_polls(self.frozen_polls, failure)
            db.write_note(_FROZEN_NOTE, self.frozen_polls)

    def _refresh_checked(self, db: FloorDatabase) -> "TrustedSession":
        floors = db.read_floors()
        updater = self._load_updater(db, floors)
        found = tuf_view.read_refresh(updater, self._folder)
        refusal = check_refresh(floors, found)
        if refusal:
            self._drop_stale(floors, found.roles)
            raise RefusedError(refusal)
        db.raise_floors(compute_raised_floors(floors, found))
        return TrustedSession(self._folder, self._source.targets_url, updater, self._fetcher)

    def _load_updater(self, db: FloorDatabase, floors: Mapping[str, VersionFloor]) -> Updater:
        """Return the updater after a complete refresh by TUF's rules.

        What it cached below our floors is not its start.
        """
        anchor, hour_ms = self._trusted_start(db, floors)
        updater = self._create_updater(anchor, hour_ms)
        try:
            self._refresh_updater(db, updater)
        except ExpiredMetadataError:
            # stolen keys had signed the time that we judged by, and the new root has withdrawn them: once more
            anchor, earlier_ms = self._trusted_start(db, floors)
            if earlier_ms >= hour_ms:
                raise
            updater = self._create_updater(anchor, earlier_ms)
            self._refresh_updater(db, updater)
        return updater

    def _trusted_start(self, db: FloorDatabase, floors: Mapping[str, VersionFloor]) -> tuple[bytes, int]:
        """Return the root to begin with and the time to judge expiry by, after dropping stale cache files."""
        anchor = self._choose_root(db)
        roles = tuf_view.top_level_roles(tuf_view.parse_root(anchor))
        self._drop_stale(floors, roles)
        return anchor, lift_clock(int(self._clock() * 1000), self._source.least_ms, floors, roles)

    def _refresh_updater(self, db: FloorDatabase, updater: Updater) -> None:
        """Run TUF's refresh and keep its root.

        A root is proven by the chain before it alone: it is kept even if what it should sign is refused.
        """
        try:
            updater.refresh()
        finally:
            root = tuf_view.current_root(updater)
            data = (self._folder / "root_history" / f"{root.version}.root.json").read_bytes()
            if tuf_view.parse_root(data) == root:
                db.raise_root(root.version, data)

    def _create_updater(self, anchor: bytes, hour_ms: int) -> Updater:
        updater = Updater(str(self._folder), self._source.metadata_url, fetcher=self._fetcher, bootstrap=anchor)
        tuf_view.set_reference_time(updater, hour_ms)
        return updater

    def _choose_root(self, db: FloorDatabase) -> bytes:
        """Return the newest root we ever verified, or the one we were given where that is newer or the only one."""
        kept = db.read_root()
        if kept is None:
            return self._source.root
        given = tuf_view.parse_root(self._source.root).version
        return self._source.root if given > tuf_view.parse_root(kept).version else kept

    def _drop_stale(self, floors: Mapping[str, VersionFloor], roles: Mapping[str, TrustedRole]) -> None:
        """Delete cached metadata that lies below its floor."""
        cached = {}
        for path in self._folder.glob("*.json"):
            name = path.stem if path.stem in ("timestamp", "snapshot") else META_PREFIX + unquote(path.name)
            # unreadable: TUF fetches it anew
            with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                cached[name] = (_metadata_version(path.read_bytes()), path)
        for name in find_stale(floors, roles, {name: version for name, (version, _) in cached.items()}):
            cached[name][1].unlink(missing_ok=True)


class TrustedSession:
    """Trusted session: what one refresh vouches for. As old as that refresh and not meant to be kept."""

    def __init__(self, folder: Path, targets_url: str, updater: Updater, fetcher: ResumingFetcher) -> None:
        self._folder = folder
        self._targets_url = targets_url
        self._updater = updater
        self._fetcher = fetcher

    def find_target(self, path: str) -> tuf_view.ListedTarget | None:
        """Find a target by path, by TUF alone; None if nobody trusted for it lists it."""
        return self._translate_errors(lambda: tuf_view.find_listing(self._updater, path, self._folder))

    def approved_target(self, path: str, permit: Permit | None = None) -> tuf_view.ListedTarget | None:
        """Return a target if our floor allows its `custom.version`, or a permit lowers the floor.

        None if nobody lists it; RefusedError if the path is not one of ours or the version is too low.
        """
        if not is_target_path(path):
            raise RefusedError(Refusal(InstallFailure.INTEGRITY, "not a valid target path"))
        found = self.find_target(path)
        if found is None:
            return None
        version = custom_version(found.info)
        may_sink = permit is not None and permit.to_version == version and path.startswith(f"models/{permit.family}/")
        refusal = check_target_version(
            None if may_sink else self._read_floor(floor_name_of(path)), found.role, path, version
        )
        if refusal:
            raise RefusedError(refusal)
        return found

    def floor_under(self, path: str) -> int:
        """Return the version below which nothing of a listed target's line is installed; 0 = none, or void."""
        found, floor = self.find_target(path), self._read_floor(floor_name_of(path))
        return floor.version if found and floor and floor_holds(floor, found.role) else 0

    def permits(self, family: str) -> tuple[Permit, ...]:
        """Return the permits of a family; one that cannot be read permits nothing."""
        found: list[Permit] = []
        for info in tuf_view.list_offline_targets(self._updater, f"{PERMITS}/{family}/"):
            with suppress(ValueError):
                found.append(read_permit(info.path, info.custom))
        return tuple(each for each in found if each.family == family)

    def targets_below(self, prefix: str) -> tuple[TargetFile, ...]:
        """List the targets under `prefix/` of the roles loaded for it; `approved_target` checks each."""
        self.find_target(f"{prefix}/-")  # loads the roles that are trusted there
        return tuf_view.list_below(self._updater, f"{prefix}/")

    def download(self, found: tuf_view.ListedTarget, part: PartialDownload) -> None:
        """Fill an open part with the target's verified bytes.

        RefusedError: wrong bytes are deleted, a cut download is kept to go on with.
        """
        url = tuf_view.target_url(self._updater, found.info, self._targets_url)
        self._translate_errors(lambda: download_verified(self._fetcher, url, found.info, part))

    def raise_floor(self, found: tuf_view.ListedTarget) -> None:
        """Raise the floor of this target's line: from now on nothing older."""
        floor = VersionFloor(floor_name_of(found.info.path), custom_version(found.info), found.signers)
        with FloorDatabase(self._folder) as db:
            if floor_changes(db.read_floors().get(floor.name), floor, found.role):
                db.raise_floors((floor,))

    def _read_floor(self, name: str) -> VersionFloor | None:
        with FloorDatabase(self._folder) as db:
            return db.read_floors().get(name)

    def _translate_errors(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except UPDATE_ERRORS as error:
            raise RefusedError(Refusal(classify_failure(error), _format_error(error))) from error


def download_verified(fetcher: ResumingFetcher, url: str, info: TargetFile, part: PartialDownload) -> None:
    """Fill an open part from `url` with bytes of the length and hashes that `info` promises.

    LengthOrHashMismatchError: they were others, and are deleted. DownloadError: what came is kept to go on with.
    OSError: the disk.
    """
    fetcher.download_part(url, part, info.length)
    if _hashes_match(info, part):
        return
    if part.resumed:  # its beginning and its rest may be of two files: download the whole again
        part.restart()
        fetcher.download_part(url, part, info.length)
        if _hashes_match(info, part):
            return
    part.discard()
    raise LengthOrHashMismatchError(f"{info.path}: its bytes are not those that were promised")


def custom_version(info: TargetFile) -> int:
    """Return `custom.version` of a target; 0, which no floor accepts, if it has none."""
    custom = info.custom if isinstance(info.custom, dict) else {}
    version = custom.get("version")
    return version if isinstance(version, int) and not isinstance(version, bool) else 0


def _hashes_match(info: TargetFile, part: PartialDownload) -> bool:
    part.flush()
    part.file.seek(0)
    try:
        info.verify_length_and_hashes(part.file)
    except LengthOrHashMismatchError:
        return False
    return True


def _metadata_version(metadata: bytes) -> int:
    return msgspec.json.decode(metadata, type=_CachedMetadata).signed.version


def _format_error(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return "".join(c if c.isprintable() else "?" for c in text) or type(error).__name__


__all__ = ["InstallFailure", "RefusedError", "RepositorySource", "ResumingFetcher", "TrustedSession", "UpdateClient"]
