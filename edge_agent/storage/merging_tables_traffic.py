"""Owns the table `traffic`: what our sockets have sent, by hour; with the ledger it makes the row `overhead`.

Law: the kernel counts, not we. What is not a message of the ledger (TLS, MQTT, acknowledgements) is the difference.
"""

import sqlite3

HOUR_MS = 3_600_000


def add(db: sqlite3.Connection, at_ms: int, size: int) -> None:
    db.execute(
        "insert into traffic values(?,?) on conflict(hour) do update set bytes=bytes+excluded.bytes",
        (at_ms // HOUR_MS, size),
    )


def between(db: sqlite3.Connection, since_ms: int, until_ms: int) -> int:
    """Bytes of the hours that lie between, the one that `until_ms` is in included."""
    query = "select coalesce(sum(bytes),0) from traffic where hour>=? and hour<?"
    return int(db.execute(query, (since_ms // HOUR_MS, -(-until_ms // HOUR_MS))).fetchone()[0])
