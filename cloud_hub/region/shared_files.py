"""Files that all hubs of a region share: CA, hub keys and update repository, sealed in their database.

Every hub works on a copy in its state folder, as a hub alone does; `sync` makes copy and database alike.

Rule: a pointer to other files (`timestamp.json`, the link to the metadata) is read before them and written after, so
that a reader of any copy meets a repository that a device accepts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
import sqlalchemy as sa

from cloud_hub.database.changes import Topic, read_revisions, record_change
from cloud_hub.database.connection import connect_part, open_part
from cloud_hub.database.errors import describe_url, explain_error
from cloud_hub.database.parts import REGION
from cloud_hub.database.statements import lock_exclusively, write_rows
from cloud_hub.database.tables import shared_files
from cloud_hub.region.file_sync import SyncPlan, plan_sync
from cloud_hub.region.vault import RegionVault, WrongRegionKeyError, create_region_key, load_region_key
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file

KEY_FILE, SYNCED_FILE = "region.key", "region.json"
CA_KEY = "pki/ca.key"
MAX_FILE_BYTES = 256 << 20  # of one shared file; hub parts of models are none of them
_CHECK = ""  # path of the row that shows whose key it is
_LINK = "link:"  # of a path that is a link; its content is where it leads
_PKI = ("ca.key", "ca.pem", "ca-next.key", "ca-next.pem")


class RegionFacts(msgspec.Struct, frozen=True):
    """What all hubs of a region have in common: their name for devices, the region's, and where their broker is."""

    name: str
    region: str
    broker_host: str
    broker_port: int


class _Synced(msgspec.Struct, frozen=True):
    """When folder and database were alike: the revision of the files, and their digests (hex) by path."""

    revision: int = 0
    files: dict[str, str] = {}


class SharedFiles:
    """The copy of a region's files in one state folder. `facts`: of the region; `vault`: what seals under its key."""

    def __init__(self, url: str, folder: Path, vault: RegionVault, facts: RegionFacts) -> None:
        self.facts = facts
        self.vault = vault
        self._url = url
        self._folder = folder
        self._engine = connect_part(url, REGION)
        self._known: dict[str, tuple[tuple[int, int], bytes]] = {}  # digests of files by size and time of change

    @classmethod
    def open(cls, url: str, folder: Path, mine: RegionFacts | None = None) -> Self:
        """Open the files of a database's region, which begins with its first hub and the facts that this has.

        ExitError(REGION_KEY) if the folder has another region's key, or none although the region has one, or if there
        is no region yet and `mine` is None.
        """
        file = folder / KEY_FILE
        engine = open_part(url, REGION)
        try:
            with engine.begin() as connection:
                lock_exclusively(connection, "region files")
                row = connection.execute(sa.select(shared_files.c.sealed).where(shared_files.c.path == _CHECK)).first()
                key = load_region_key(file)
                if row is not None:
                    return cls(url, folder, *_check_key(key, bytes(row.sealed), file, url))
                if mine is None:
                    raise ExitError(ExitCode.REGION_KEY, f"{describe_url(url)} has no hub yet: `skerry hub init` first")
                vault = RegionVault(key or create_region_key(file))
                sealed = vault.seal(_CHECK, msgspec.json.encode(mine))
                write_rows(connection, shared_files, [{"path": _CHECK, "digest": b"", "sealed": sealed}])
                return cls(url, folder, vault, mine)
        except sa.exc.DBAPIError as error:
            raise explain_error(error, url) from None
        finally:
            engine.dispose()

    def close(self) -> None:
        self._engine.dispose()

    def sync(self) -> SyncPlan:
        """Make folder and database alike; returns what was done.

        ExitError(REGION_KEY) if the folder has a CA that is not the region's, CREDENTIALS or DISK for a file that
        cannot be read or written; SQLAlchemyError if the server cannot be asked.
        """
        before = self._read_synced()
        with self._engine.begin() as connection:
            lock_exclusively(connection, "region files")
            revision = read_revisions(connection).get(Topic.FILES, 0)
            columns = (shared_files.c.path, shared_files.c.digest)
            rows = connection.execute(sa.select(*columns).where(shared_files.c.path != _CHECK))
            stored = {row.path: bytes(row.digest) for row in rows}
            local = self._scan()
            self._check_own_ca(before, local, stored)
            # A database that was restored from yesterday lacks what came since; every hub still has it.
            went_back = revision < before.revision
            alike = stored if went_back else {path: bytes.fromhex(digest) for path, digest in before.files.items()}
            plan = plan_sync(local, stored, alike)
            fetched = {path: self._fetch(connection, path) for path in plan.fetch}
            if plan.store or plan.withdraw:
                self._store(connection, plan)
                revision = record_change(connection, Topic.FILES)
        for path in sorted(plan.fetch, key=_is_pointer):
            self._write(path, fetched[path])
        for path in plan.remove:
            self._locate(path).unlink(missing_ok=True)
        after = self._scan() if plan.fetch or plan.remove else local
        self._write_synced(before, _Synced(revision, {path: digest.hex() for path, digest in after.items()}))
        return plan

    def read_stored(self, prefix: str) -> dict[str, bytes]:
        """Content of the region's files whose path begins so, by path; the folder is left as it is.

        ExitError(REGION_KEY) if one was changed; SQLAlchemyError if the server cannot be asked.
        """
        with self._engine.connect() as connection:
            paths = connection.execute(sa.select(shared_files.c.path).where(shared_files.c.path.startswith(prefix)))
            return {path: self._fetch(connection, path) for path in paths.scalars().all()}

    def _check_own_ca(self, before: _Synced, local: dict[str, bytes], stored: dict[str, bytes]) -> None:
        theirs = stored.get(CA_KEY)
        if not before.files and theirs is not None and local.get(CA_KEY, theirs) != theirs:
            raise ExitError(
                ExitCode.REGION_KEY,
                f"{self._folder} has a CA of its own, not that of the region in {describe_url(self._url)}: "
                "name an empty state folder",
            )

    def _fetch(self, connection: sa.Connection, path: str) -> bytes:
        found = connection.execute(sa.select(shared_files.c.sealed).where(shared_files.c.path == path)).scalar_one()
        try:
            return self.vault.unseal(path, bytes(found))
        except WrongRegionKeyError:
            raise ExitError(
                ExitCode.REGION_KEY, f"{path} in {describe_url(self._url)} was changed: restore a backup"
            ) from None

    def _store(self, connection: sa.Connection, plan: SyncPlan) -> None:
        for path in plan.store:
            data = self._read(path)
            if data is not None:
                sealed = self.vault.seal(path, data)
                row = {"path": path, "digest": self.vault.digest(path, data), "sealed": sealed}
                write_rows(connection, shared_files, [row])
        for path in plan.withdraw:
            connection.execute(shared_files.delete().where(shared_files.c.path == path))

    # The folder

    def _scan(self) -> dict[str, bytes]:
        """Digests of the shared files in the folder, pointers first."""
        found: dict[str, bytes] = {}
        for path in sorted(self._list_paths(), key=_is_pointer, reverse=True):
            digest = self._digest(path)
            if digest is not None:
                found[path] = digest
        return found

    def _digest(self, path: str) -> bytes | None:
        try:
            status = self._locate(path).lstat()
        except OSError:
            return None
        mark = (status.st_size, status.st_mtime_ns)
        known = self._known.get(path)
        if known is None or known[0] != mark:
            data = self._read(path)
            if data is None:
                return None
            known = self._known[path] = (mark, self.vault.digest(path, data))
        return known[1]

    def _list_paths(self) -> Iterator[str]:
        yield from (f"pki/{name}" for name in _PKI)
        keys = self._folder / "keys"
        private = (*keys.glob("*.key"), *keys.glob("*.json"), *keys.glob("online/*.key"))
        repository = self._folder / "repository"
        links = [path for path in repository.glob("*") if path.is_symlink()]
        yield from (f"{_LINK}{path.relative_to(self._folder)}" for path in links)
        files = [
            path
            for folder in (*repository.glob("metadata-*"), repository / "targets")
            for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        ]
        shared = [path for path in (*private, *files) if not path.name.startswith(".")]
        yield from (str(path.relative_to(self._folder)) for path in shared)

    def _locate(self, path: str) -> Path:
        return self._folder / path.removeprefix(_LINK)

    def _read(self, path: str) -> bytes | None:
        """Content of a shared file; None if it is gone."""
        place = self._locate(path)
        try:
            if path.startswith(_LINK):
                return str(place.readlink()).encode()
            return read_private_file(place, MAX_FILE_BYTES) if place.exists() else None
        except FileNotFoundError:
            return None

    def _write(self, path: str, data: bytes) -> None:
        place = self._locate(path)
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.startswith(_LINK):
                fresh = place.with_name(f".{place.name}.region")
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(data.decode())
                fresh.replace(place)
                return
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{place}: {error.strerror}") from None
        write_private_file(place, data)

    def _read_synced(self) -> _Synced:
        file = self._folder / SYNCED_FILE
        try:
            return msgspec.json.decode(read_private_file(file, 16 << 20), type=_Synced) if file.exists() else _Synced()
        except msgspec.DecodeError:
            raise ExitError(
                ExitCode.DISK, f"{file} is damaged: remove it with pki, keys and repository beside it"
            ) from None

    def _write_synced(self, before: _Synced, after: _Synced) -> None:
        if after != before:
            write_private_file(self._folder / SYNCED_FILE, msgspec.json.encode(after))


def has_region(url: str) -> bool:
    """Whether a database has a region's files, which begin with its first hub. ExitError as `explain_error` says."""
    engine = open_part(url, REGION)
    try:
        with engine.connect() as connection:
            return (
                connection.execute(sa.select(shared_files.c.path).where(shared_files.c.path == _CHECK)).first()
                is not None
            )
    except sa.exc.DBAPIError as error:
        raise explain_error(error, url) from None
    finally:
        engine.dispose()


def _check_key(key: bytes | None, check: bytes, file: Path, url: str) -> tuple[RegionVault, RegionFacts]:
    where = describe_url(url)
    if key is None:
        raise ExitError(
            ExitCode.REGION_KEY, f"{where} is a region's, whose key is missing: copy region.key of its hubs to {file}"
        )
    vault = RegionVault(key)
    try:
        return vault, msgspec.json.decode(vault.unseal(_CHECK, check), type=RegionFacts)
    except WrongRegionKeyError:
        raise ExitError(
            ExitCode.REGION_KEY, f"{file} is another region's key, not that of {where}: copy region.key of its hubs"
        ) from None


def _is_pointer(path: str) -> bool:
    return path.startswith(_LINK) or path.endswith("/timestamp.json")
