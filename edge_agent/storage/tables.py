"""Owns the table `meta`: epoch, time floor, whether we closed cleanly, the newest deny-all notice.

Owns the table `reports`: what is to be said of rollouts, until the hub has said that it knows.

Law: the newest of each rollout and state. A report's number is given here, in the transaction that keeps it, and is
above every earlier one of this device, in whatever database: hub time in milliseconds, or one more than the last.

Owns the table `traffic`: what our sockets have sent, by hour; with the ledger it makes the row `overhead`.

Law: the kernel counts, not we. What is not a message of the ledger (TLS, MQTT, acknowledgements) is the difference.
"""

import secrets
import sqlite3

import msgspec

from wire.protocol.rollout import InstallReport

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


MOST = 64  # states of rollouts that no hub has heard of; older ones go
_LAST = "report_seq"  # its key in the table `meta`
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(InstallReport)


def keep(db: sqlite3.Connection, report: InstallReport, now_ms: int) -> None:
    """In the place of an earlier one of the same rollout and state."""
    seq = max(get(db, _LAST, 0) + 1, now_ms)
    raise_to(db, _LAST, seq)
    db.execute("delete from reports where rollout=? and state=?", (report.rollout, report.state))
    body = _encoder.encode(msgspec.structs.replace(report, seq=seq))
    db.execute("insert into reports(seq,rollout,state,body) values(?,?,?,?)", (seq, report.rollout, report.state, body))
    db.execute("delete from reports where seq not in (select seq from reports order by seq desc limit ?)", (MOST,))


def pending(db: sqlite3.Connection) -> list[InstallReport]:
    """Oldest first."""
    return [_decoder.decode(row[0]) for row in db.execute("select body from reports order by seq")]


def seen(db: sqlite3.Connection, seq: int) -> None:
    """A hub has everything up to this one."""
    db.execute("delete from reports where seq<=?", (seq,))


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
