"""Owns the table `meta`: epoch, time floor, whether we closed cleanly, the newest deny-all notice."""

import secrets
import sqlite3

_PUT = "insert into meta values(?,?) on conflict(key) do update set value=excluded.value"
_RAISE = "insert into meta values(?,?) on conflict(key) do update set value=max(value,excluded.value)"


def get(db: sqlite3.Connection, key: str, default: int) -> int:
    row = db.execute("select value from meta where key=?", (key,)).fetchone()
    return default if row is None else int(row[0])


def put(db: sqlite3.Connection, key: str, value: int) -> None:
    db.execute(_PUT, (key, value))


def raise_to(db: sqlite3.Connection, key: str, value: int) -> None:
    """Never back."""
    db.execute(_RAISE, (key, value))


def epoch(db: sqlite3.Connection) -> int:
    """63 random bits, drawn once for each new database: the hub tells our seqs from an earlier database's by it."""
    db.execute("insert or ignore into meta values('epoch',?)", (secrets.randbits(63),))
    return get(db, "epoch", 0)


def raise_floor(db: sqlite3.Connection, floor_ms: int, sure_ms: int) -> None:
    """The clock's two floors; neither ever goes back."""
    db.executemany(_RAISE, (("floor_ms", floor_ms), ("sure_ms", sure_ms)))
