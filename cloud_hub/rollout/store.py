"""Rollout database (SQLite, rollouts.db): plans, heads, devices, history and assignment counters.

Rule: the only owner of `rollouts.db`. A change is written if and only if the rollout still is where its writer believed
it to be (compare-and-set of the revision), together with its entries in the history; so of two hubs that decide at once
one is right and the other looks again. An entry is never changed, and a counter never sinks.
"""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from cloud_hub.rollout.types import (
    TERMINAL,
    HistoryEntry,
    RolloutChanges,
    RolloutError,
    RolloutHead,
    RolloutPlan,
    RolloutRecord,
    RolloutRow,
    RolloutState,
)
from wire.process.exit_codes import ExitCode, ExitError

SCHEMA = 1
_TABLES = """
create table rollouts(
  id text primary key, family text not null, made_ms integer not null, changed_ms integer not null,
  open integer not null, revision integer not null, plan blob not null, head blob not null) without rowid;
create table devices(
  rollout text not null, device text not null, facts blob not null, primary key(rollout, device)) without rowid;
create index devices_device on devices(device);
create table history(
  rollout text not null, seq integer not null, at_ms integer not null, by text not null, what text not null,
  why text not null, state text not null, primary key(rollout, seq)) without rowid;
create table counters(
  family text not null, device text not null, counter integer not null, primary key(family, device)) without rowid;
"""
_RAISE_COUNTER = (
    "insert into counters values(?,?,?) on conflict(family, device) "
    "do update set counter=max(counter, excluded.counter)"
)
_FIND_CONFLICT = """
select other.rollout from devices mine
join devices other on other.device = mine.device and other.rollout <> mine.rollout
join rollouts on rollouts.id = other.rollout where mine.rollout=? and rollouts.family=? and rollouts.open limit 1
"""


class RolloutStore:
    """Reads and writes rollouts through one connection; every method is called from one thread at a time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open the database, or create it. ExitError(DATABASE) if it is damaged or written by a newer version."""
        try:
            if isinstance(path, Path):
                path.touch(mode=0o600, exist_ok=True)
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode=wal", "synchronous=full", "busy_timeout=5000"):
                db.execute(f"pragma {pragma}")
            db.execute("begin immediate")
            found = db.execute("pragma user_version").fetchone()[0]
            if found > SCHEMA:
                raise ExitError(
                    ExitCode.DATABASE, f"{path} has schema {found}, newer than this program's {SCHEMA}: update it"
                )
            if not found:
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"pragma user_version={SCHEMA}")
            db.execute("commit")
            return cls(db)
        except (OSError, sqlite3.Error) as error:
            raise ExitError(ExitCode.DATABASE, f"{path} cannot be used ({error}): restore it from a backup") from None

    def close(self) -> None:
        self._db.close()

    # -- writing

    def create_rollout(self, record: RolloutRecord, entries: Iterable[HistoryEntry]) -> None:
        """Insert a new rollout, durable on return.

        RolloutError if its id was used, or a device is in another open one.
        """
        plan, head = record.plan, record.head
        values = (
            plan.id,
            plan.family,
            plan.made_ms,
            plan.made_ms,
            1,
            head.revision,
            _encode_json(plan),
            _encode_json(head),
        )
        with _Transaction(self._db):
            try:
                self._db.execute("insert into rollouts values(?,?,?,?,?,?,?,?)", values)
            except sqlite3.IntegrityError:
                raise RolloutError("conflict", f"there was a rollout {plan.id} already: choose another id") from None
            self._put_rows(plan.id, record.rows)
            self._put_entries(plan.id, entries)
            other = self._db.execute(_FIND_CONFLICT, (plan.id, plan.family)).fetchone()
            if other:
                raise RolloutError("conflict", f"rollout {other[0]} of {plan.family} is under way on some of them")

    def apply_changes(self, changes: RolloutChanges) -> bool:
        """Write changes, durable when it returns True. False: another hub was faster, nothing was written."""
        head = changes.head
        values = (head.revision, head.changed_ms, head.state not in TERMINAL, _encode_json(head))
        put = "update rollouts set revision=?, changed_ms=?, open=?, head=? where id=? and revision=?"
        with _Transaction(self._db):
            if self._db.execute(put, (*values, changes.id, changes.expected)).rowcount != 1:
                return False
            family = self._db.execute("select family from rollouts where id=?", (changes.id,)).fetchone()[0]
            self._put_rows(changes.id, changes.rows)
            self._put_entries(changes.id, changes.entries)
            self._db.executemany(
                _RAISE_COUNTER, ((family, row.device, row.counter) for row in changes.rows if row.counter)
            )
        return True

    def raise_counters(self, family: str, counters: Iterable[tuple[str, int]]) -> None:
        """Raise counters to those that devices name: another hub's, or our own before a loss."""
        with _Transaction(self._db):
            self._db.executemany(_RAISE_COUNTER, ((family, device, counter) for device, counter in counters))

    def _put_rows(self, rollout: str, rows: Iterable[RolloutRow]) -> None:
        self._db.executemany(
            "insert or replace into devices values(?,?,?)", ((rollout, row.device, _encode_json(row)) for row in rows)
        )

    def _put_entries(self, rollout: str, entries: Iterable[HistoryEntry]) -> None:
        put = "insert into history values(?,?,?,?,?,?,?)"
        self._db.executemany(put, ((rollout, x.seq, x.at_ms, x.by, x.what, x.why, x.state.value) for x in entries))

    # -- reading

    def newest_ms(self) -> int:
        """Return the latest time in the history, in ms: the lower bound of the clock."""
        return int(self._db.execute("select max(at_ms) from history").fetchone()[0] or 0)

    def list_ids(self, since_ms: int = 0) -> list[str]:
        """Return the ids of open rollouts, and of those that changed since `since_ms`; newest first."""
        query = "select id from rollouts where open or changed_ms >= ? order by made_ms desc, id"
        return [row[0] for row in self._db.execute(query, (since_ms,))]

    def list_revisions(self) -> dict[str, int]:
        """Return the revisions of open rollouts by id."""
        return dict(self._db.execute("select id, revision from rollouts where open").fetchall())

    def read_record(self, rollout: str) -> RolloutRecord | None:
        """Read a whole rollout in one transaction, None if unknown. ExitError(DATABASE) if it is damaged."""
        with _Transaction(self._db, "deferred"):
            found = self._db.execute("select plan, head, family from rollouts where id=?", (rollout,)).fetchone()
            if found is None:
                return None
            facts = self._db.execute("select facts from devices where rollout=?", (rollout,)).fetchall()
            count = "select count(*) from history where rollout=?"
            entries = int(self._db.execute(count, (rollout,)).fetchone()[0])
            counters = dict(self._db.execute("select device, counter from counters where family=?", (found[2],)))
        try:
            plan, head = (
                msgspec.json.decode(found[0], type=RolloutPlan),
                msgspec.json.decode(found[1], type=RolloutHead),
            )
            return RolloutRecord(
                plan, head, [msgspec.json.decode(each[0], type=RolloutRow) for each in facts], counters, entries
            )
        except msgspec.DecodeError as error:
            raise ExitError(ExitCode.DATABASE, f"rollout {rollout} is damaged ({error}): restore rollouts.db") from None

    def read_history(self, rollout: str) -> list[HistoryEntry]:
        """Return the history of a rollout, oldest entry first."""
        query = "select seq, at_ms, by, what, why, state from history where rollout=? order by seq"
        found = self._db.execute(query, (rollout,))
        return [
            HistoryEntry(seq, at, by, what=what, why=why, state=RolloutState(state))
            for seq, at, by, what, why, state in found
        ]

    def read_counters(self, family: str) -> dict[str, int]:
        """Return the highest assignment counter of each device for a family."""
        return dict(self._db.execute("select device, counter from counters where family=?", (family,)).fetchall())


class _Transaction:
    """SQLite transaction: committed on success, rolled back on an exception."""

    def __init__(self, db: sqlite3.Connection, kind: str = "immediate") -> None:
        self._db = db
        self._kind = kind

    def __enter__(self) -> None:
        self._db.execute(f"begin {self._kind}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._db.execute("commit" if kind is None else "rollback")


_encode_json = msgspec.json.Encoder(order="deterministic").encode
