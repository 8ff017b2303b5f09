"""Version floors on disk, in one SQLite file, and the quarantine of bundles that failed on this device.

Rule: what was written here survives a power cut (WAL, synchronous=FULL) and the loss of every file of the TUF cache; a
floor goes down only together with the keys that vouched for it, and that of root never.
Rule: a failure is remembered for this version of the agent alone; a newer one may try again.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from models.signing.roles import INTERFACE_FIELD
from models.update.trust import VersionFloor, floor_name_of
from wire.process.exit_codes import ExitCode, ExitError

if TYPE_CHECKING:
    from models.update.slots import Slot


SCHEMA = 1
FLOORS_FILE = "floors.db"
_TABLES = """
create table floors (name text primary key, version integer not null, signers text not null) without rowid;
create table root (one integer primary key check (one = 1), version integer not null, metadata blob not null);
create table notes (name text primary key, value integer not null) without rowid;
"""


def commit_floor(folder: Path, slot: "Slot") -> None:
    """Raise the floor of a bundle's family: it serves, and nothing older may follow. sqlite3.Error: the disk."""
    floor = VersionFloor(floor_name_of(slot.path), slot.version, frozenset(slot.signers))
    with FloorDatabase(folder) as db:
        old = db.read_floors().get(floor.name)
        if old is None or floor.version > old.version:
            db.raise_floors((floor,))


class FloorDatabase:
    """Floor database; use as a context, in one thread.

    `damaged`: an unreadable file was set aside and a new one begun.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FLOORS_FILE
        self.damaged = False

    def __enter__(self) -> Self:
        self.damaged = self._path.exists() and self._path.stat().st_size == 0  # SQLite would take it for a new one
        try:
            self._open_database()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # disk full, read-only, locked: nothing is damaged
                raise
            self._set_aside()
            self._open_database()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._db.close()

    def read_floors(self) -> dict[str, VersionFloor]:
        """Read all floors by name, that of root included."""
        rows = self._db.execute("select name, version, signers from floors").fetchall()
        floors = {name: VersionFloor(name, version, frozenset(signers.split())) for name, version, signers in rows}
        root = self._db.execute("select version from root").fetchone()
        return floors | ({"root": VersionFloor("root", root[0])} if root else {})

    def read_root(self) -> bytes | None:
        """Read the newest root that was ever verified; the next refresh starts there."""
        row = self._db.execute("select metadata from root").fetchone()
        return bytes(row[0]) if row else None

    def raise_root(self, version: int, metadata: bytes) -> None:
        """Store a verified root. An older one changes nothing."""
        statement = (
            "insert into root values (1, ?, ?) on conflict do update set version = excluded.version,"
            " metadata = excluded.metadata where excluded.version > version"
        )
        self._db.execute(statement, (version, metadata))

    def raise_floors(self, floors: Iterable[VersionFloor]) -> None:
        """Store floors in one transaction.

        ValueError, and none is changed, if one would go down with the same signers.
        """
        held = self.read_floors()
        new = tuple(floors)
        for floor in new:
            old = held.get(floor.name)
            if floor.name == "root" or (old and floor.version < old.version and floor.signers == old.signers):
                raise ValueError(f"floor {floor.name} would be lowered to {floor.version}")
        rows = [(floor.name, floor.version, " ".join(sorted(floor.signers))) for floor in new]
        self._db.execute("begin immediate")
        self._db.executemany("insert or replace into floors values (?, ?, ?)", rows)
        self._db.execute("commit")

    def read_note(self, name: str) -> int:
        """Read a number kept for the next poll; 0 if there is none."""
        row = self._db.execute("select value from notes where name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def write_note(self, name: str, value: int) -> None:
        """Store a number, only if it changed: a quiet poll costs no sync."""
        if self.read_note(name) != value:
            self._db.execute("insert or replace into notes values (?, ?)", (name, value))

    def _open_database(self) -> None:
        self._db = sqlite3.connect(self._path, isolation_level=None, timeout=5.0)
        try:
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            self._migrate()
        except (sqlite3.Error, ExitError):
            self._db.close()
            raise

    def _migrate(self) -> None:
        found = self._db.execute("pragma user_version").fetchone()[0]
        if found > SCHEMA:
            raise ExitError(
                ExitCode.DATABASE, f"{self._path} was written by a newer version (schema {found}); update this one"
            )
        if found == SCHEMA:
            if self._db.execute("pragma quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("quick_check")
            return
        self._db.executescript(f"begin immediate; {_TABLES} pragma user_version = {SCHEMA}; commit;")

    def _set_aside(self) -> None:
        self.damaged = True
        self._path.replace(self._path.with_suffix(".damaged"))
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                self._path.with_name(FLOORS_FILE + suffix).unlink()


_PERMIT_PREFIX = "permit/"  # + digest of a bundle: end of the newest permit that was used for it
MAX_TRIES = 3  # of a bundle that ran out of time or memory, or crashed


def quarantine_name(path: str, *, new_interface: bool) -> str:
    """Return the name that a bundle's failures are counted under: anew once its signers allow another interface."""
    return f"{path}+{INTERFACE_FIELD}" if new_interface else path


class Quarantine:
    """Quarantine of failed bundles. `folder`: of the floors. `agent`: our version. sqlite3.Error: the disk refuses."""

    def __init__(self, folder: Path, agent: str) -> None:
        self._folder = folder
        self._prefix = f"failed/{agent}/"

    def count_failures(self, path: str) -> int:
        """Count how often a bundle failed."""
        with FloorDatabase(self._folder) as db:
            return db.read_note(self._prefix + path)

    def ban_until(self, digest: str, until_ms: int) -> None:
        """Ban a bundle that misbehaved while it served, until a time in milliseconds since 1970."""
        with FloorDatabase(self._folder) as db:
            db.write_note(self._prefix + digest, until_ms)

    def is_banned(self, digest: str, now_ms: int) -> bool:
        """Tell whether a bundle is banned now."""
        with FloorDatabase(self._folder) as db:
            return now_ms < db.read_note(self._prefix + digest)

    def lift(self, name: str, digest: str, permit_ms: int) -> None:
        """Forget what is held against a bundle, under a signed permit that ends at `permit_ms`.

        Nothing changes unless it is a newer permit than every one that was used for this bundle here: one permit does
        not bring back again and again what fails again and again.
        """
        with FloorDatabase(self._folder) as db:
            if permit_ms <= db.read_note(_PERMIT_PREFIX + digest):
                return
            db.write_note(self._prefix + name, 0)
            db.write_note(self._prefix + digest, 0)
            db.write_note(_PERMIT_PREFIX + digest, permit_ms)

    def record_failure(self, path: str, *, hopeless: bool) -> None:
        """Record a failure; a hopeless bundle is not tried again."""
        with FloorDatabase(self._folder) as db:
            db.write_note(self._prefix + path, MAX_TRIES if hopeless else db.read_note(self._prefix + path) + 1)
