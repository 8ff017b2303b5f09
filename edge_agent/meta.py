"""Owns the tables `meta` and `spend`: epoch, time floor, whether we closed cleanly, bytes charged per day."""

import secrets
import sqlite3

from policies.budget import Spend

_PUT = "insert into meta values(?,?) on conflict(key) do update set value=excluded.value"
_RAISE = "insert into meta values(?,?) on conflict(key) do update set value=max(value,excluded.value)"
_KEPT_DAYS = 400


def get(db: sqlite3.Connection, key: str, default: int) -> int:
    row = db.execute("select value from meta where key=?", (key,)).fetchone()
    return default if row is None else int(row[0])


def put(db: sqlite3.Connection, key: str, value: int) -> None:
    db.execute(_PUT, (key, value))


def epoch(db: sqlite3.Connection) -> int:
    """63 random bits, drawn once for each new database: the hub tells our seqs from an earlier database's by it."""
    db.execute("insert or ignore into meta values('epoch',?)", (secrets.randbits(63),))
    return get(db, "epoch", 0)


def raise_floor(db: sqlite3.Connection, floor_ms: int, sure_ms: int) -> None:
    """The clock's two floors; neither ever goes back."""
    db.executemany(_RAISE, (("floor_ms", floor_ms), ("sure_ms", sure_ms)))


def charge(db: sqlite3.Connection, day: int, size_bytes: int) -> None:
    db.execute(
        "insert into spend values(?,?) on conflict(day) do update set bytes=bytes+excluded.bytes", (day, size_bytes)
    )


def last_spend(db: sqlite3.Connection) -> Spend:
    row = db.execute("select day, bytes from spend order by day desc limit 1").fetchone()
    return Spend(int(row[0]), int(row[1])) if row else Spend(0, 0)


def prune(db: sqlite3.Connection) -> None:
    db.execute("delete from spend where day < (select max(day) from spend) - ?", (_KEPT_DAYS,))
