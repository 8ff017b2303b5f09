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
from models.update.downloader import Fetcher
from models.update.floors import FloorsDb
from models.update.partial_download import Part
from models.update.trust import (
    FREEZE_ALARM_POLLS,
    META,
    Floor,
    Refusal,
    Role,
    changes,
    failure_of,
    frozen_polls,
    holds,
    judge,
    judge_target,
    lift,
    line_of,
    path_fits,
    raised,
    stale,
)
from wire.protocol.rollout import Failure

FAULTS = (RepositoryError, DeserializationError, DownloadError, OSError, sqlite3.Error)
_FROZEN = "frozen_polls"
T = TypeVar("T")


class RefusedError(Exception):
    """Update or target that was refused; `refusal` says why. Nothing new was accepted."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.failure}: {refusal.detail}")
        self.refusal = refusal


class Source(msgspec.Struct, frozen=True):
    """Repository to update from, and where trust in it begins.

    `root`: the root metadata the invite's hash belongs to. `least_ms`: a time that has certainly passed, milliseconds
    since 1970 (of this build, or when the hub enrolled us): a clock before it is lifted to it.
    """

    metadata_url: str
    targets_url: str
    root: bytes
    least_ms: int = 0


class _Version(msgspec.Struct):
    version: int


class _Cached(msgspec.Struct):
    signed: _Version


class Errand:
    """Update client of one device for one repository.

    `folder` holds the cache and the floors; one process at a time.
    """

    def __init__(self, folder: Path, source: Source, fetcher: Fetcher, clock: Callable[[], float] = time.time) -> None:
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

    def refresh(self) -> "Session":
        """Refresh the metadata: a session above every floor. RefusedError otherwise."""
        try:
            with FloorsDb(self._folder) as db:
                return self._counted(db)
        except FAULTS as error:
            raise RefusedError(Refusal(failure_of(error), _line(error))) from error

    def _counted(self, db: FloorsDb) -> "Session":
        """Refresh and count the polls in a row that met expired metadata."""
        self.frozen_polls = db.note(_FROZEN)
        failure = None
        try:
            return self._refresh(db)
        except FAULTS as error:
            failure = failure_of(error)
            raise
        except RefusedError as refused:
            failure = refused.refusal.failure
            raise
        finally:
            self.frozen_polls = frozen_polls(self.frozen_polls, failure)
            db.keep_note(_FROZEN, self.frozen_polls)

    def _refresh(self, db: FloorsDb) -> "Session":
        floors = db.read()
        updater = self._loaded(db, floors)
        found = tuf_view.seen(updater, self._folder)
        refusal = judge(floors, found)
        if refusal:
            self._drop_stale(floors, found.roles)
            raise RefusedError(refusal)
        db.raise_floors(raised(floors, found))
        return Session(self._folder, self._source.targets_url, updater, self._fetcher)

    def _loaded(self, db: FloorsDb, floors: Mapping[str, Floor]) -> Updater:
        """Return the updater after a complete refresh by TUF's rules.

        What it cached below our floors is not its start.
        """
        anchor, hour_ms = self._start(db, floors)
        updater = self._updater(anchor, hour_ms)
        try:
            self._load(db, updater)
        except ExpiredMetadataError:
            # stolen keys had signed the time that we judged by, and the new root has withdrawn them: once more
            anchor, earlier_ms = self._start(db, floors)
            if earlier_ms >= hour_ms:
                raise
            updater = self._updater(anchor, earlier_ms)
            self._load(db, updater)
        return updater

    def _start(self, db: FloorsDb, floors: Mapping[str, Floor]) -> tuple[bytes, int]:
        """Return the root to begin with and the time to judge expiry by, after dropping stale cache files."""
        anchor = self._anchor(db)
        roles = tuf_view.roles_of(tuf_view.root_in(anchor))
        self._drop_stale(floors, roles)
        return anchor, lift(int(self._clock() * 1000), self._source.least_ms, floors, roles)

    def _load(self, db: FloorsDb, updater: Updater) -> None:
        """Run TUF's refresh and keep its root.

        A root is proven by the chain before it alone: it is kept even if what it should sign is refused.
        """
        try:
            updater.refresh()
        finally:
            root = tuf_view.root_of(updater)
            data = (self._folder / "root_history" / f"{root.version}.root.json").read_bytes()
            if tuf_view.root_in(data) == root:
                db.raise_root(root.version, data)

    def _updater(self, anchor: bytes, hour_ms: int) -> Updater:
        updater = Updater(str(self._folder), self._source.metadata_url, fetcher=self._fetcher, bootstrap=anchor)
        tuf_view.set_hour(updater, hour_ms)
        return updater

    def _anchor(self, db: FloorsDb) -> bytes:
        """Return the newest root we ever verified, or the one we were given where that is newer or the only one."""
        kept = db.root()
        if kept is None:
            return self._source.root
        given = tuf_view.root_in(self._source.root).version
        return self._source.root if given > tuf_view.root_in(kept).version else kept

    def _drop_stale(self, floors: Mapping[str, Floor], roles: Mapping[str, Role]) -> None:
        """Delete cached metadata that lies below its floor."""
        cached = {}
        for path in self._folder.glob("*.json"):
            name = path.stem if path.stem in ("timestamp", "snapshot") else META + unquote(path.name)
            with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):  # unreadable: TUF fetches it anew
                cached[name] = (_version(path.read_bytes()), path)
        for name in stale(floors, roles, {name: version for name, (version, _) in cached.items()}):
            cached[name][1].unlink(missing_ok=True)


class Session:
    """Trusted session: what one refresh vouches for. As old as that refresh and not meant to be kept."""

    def __init__(self, folder: Path, targets_url: str, updater: Updater, fetcher: Fetcher) -> None:
        self._folder = folder
        self._targets_url = targets_url
        self._updater = updater
        self._fetcher = fetcher

    def listing(self, path: str) -> tuf_view.Listing | None:
        """Find a target by path, by TUF alone; None if nobody trusted for it lists it."""
        return self._guarded(lambda: tuf_view.listing(self._updater, path, self._folder))

    def approved(self, path: str, permit: Permit | None = None) -> tuf_view.Listing | None:
        """Return a target if our floor allows its `custom.version`, or a permit lowers the floor.

        None if nobody lists it; RefusedError if the path is not one of ours or the version is too low.
        """
        if not path_fits(path):
            raise RefusedError(Refusal(Failure.INTEGRITY, "not a valid target path"))
        found = self.listing(path)
        if found is None:
            return None
        version = custom_version(found.info)
        may_sink = permit is not None and permit.to_version == version and path.startswith(f"models/{permit.family}/")
        refusal = judge_target(None if may_sink else self._floor(line_of(path)), found.role, path, version)
        if refusal:
            raise RefusedError(refusal)
        return found

    def floor_under(self, path: str) -> int:
        """Return the version below which nothing of a listed target's line is installed; 0 = none, or void."""
        found, floor = self.listing(path), self._floor(line_of(path))
        return floor.version if found and floor and holds(floor, found.role) else 0

    def permits(self, family: str) -> tuple[Permit, ...]:
        """Return the permits of a family; one that cannot be read permits nothing."""
        found: list[Permit] = []
        for info in tuf_view.listed_offline(self._updater, f"{PERMITS}/{family}/"):
            with suppress(ValueError):
                found.append(read_permit(info.path, info.custom))
        return tuple(each for each in found if each.family == family)

    def below(self, prefix: str) -> tuple[TargetFile, ...]:
        """List the targets under `prefix/` of the roles loaded for it; `approved` checks each."""
        self.listing(f"{prefix}/-")  # loads the roles that are trusted there
        return tuf_view.below(self._updater, f"{prefix}/")

    def download(self, found: tuf_view.Listing, part: Part) -> None:
        """Fill an open part with the target's verified bytes.

        RefusedError: wrong bytes are deleted, a cut download is kept to go on with.
        """
        url = tuf_view.address(self._updater, found.info, self._targets_url)
        self._guarded(lambda: self._download(url, found, part))

    def raise_floor(self, found: tuf_view.Listing) -> None:
        """Raise the floor of this target's line: from now on nothing older."""
        floor = Floor(line_of(found.info.path), custom_version(found.info), found.signers)
        with FloorsDb(self._folder) as db:
            if changes(db.read().get(floor.name), floor, found.role):
                db.raise_floors((floor,))

    def _floor(self, name: str) -> Floor | None:
        with FloorsDb(self._folder) as db:
            return db.read().get(name)

    def _download(self, url: str, found: tuf_view.Listing, part: Part) -> None:
        self._fetcher.download_part(url, part, found.info.length)
        if _verified(found, part):
            return
        if part.resumed:  # its beginning and its rest may be of two files: download the whole again
            part.restart()
            self._fetcher.download_part(url, part, found.info.length)
            if _verified(found, part):
                return
        part.discard()
        raise LengthOrHashMismatchError(f"{found.info.path}: its bytes are not those that were promised")

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except FAULTS as error:
            raise RefusedError(Refusal(failure_of(error), _line(error))) from error


def custom_version(info: TargetFile) -> int:
    """Return `custom.version` of a target; 0, which no floor accepts, if it has none."""
    custom = info.custom if isinstance(info.custom, dict) else {}
    version = custom.get("version")
    return version if isinstance(version, int) and not isinstance(version, bool) else 0


def _verified(found: tuf_view.Listing, part: Part) -> bool:
    part.flush()
    part.file.seek(0)
    try:
        found.info.verify_length_and_hashes(part.file)
    except LengthOrHashMismatchError:
        return False
    return True


def _version(metadata: bytes) -> int:
    return msgspec.json.decode(metadata, type=_Cached).signed.version


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return "".join(c if c.isprintable() else "?" for c in text) or type(error).__name__


__all__ = ["Errand", "Failure", "Fetcher", "RefusedError", "Session", "Source"]
