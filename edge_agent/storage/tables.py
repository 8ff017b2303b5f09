"""SQL of the small tables: `meta` (epoch, time floor, flags), `reports` (rollout reports), `traffic` (socket bytes).

Rule: `reports` holds the newest of each rollout and state until the hub confirms it. A report's number is given in the
transaction that stores it, and is above every earlier one of this device, in whatever database: hub time in
milliseconds, or one more than the last.
Rule: `traffic` counts what the kernel says our sockets have sent, by hour; less the ledger's messages it is the
overhead of TLS, MQTT and acknowledgements.
"""

import secrets
import sqlite3

import msgspec

from wire.protocol.rollout import InstallReport

_PUT_VALUE = "insert into meta values(?,?) on conflict(key) do update set value=excluded.value"
_RAISE_VALUE = "insert into meta values(?,?) on conflict(key) do update set value=max(value,excluded.value)"


def read_value(db: sqlite3.Connection, key: str, default: int) -> int:
    """The value of a key in `meta`."""
    row = db.execute("select value from meta where key=?", (key,)).fetchone()
    return default if row is None else int(row[0])


def write_value(db: sqlite3.Connection, key: str, value: int) -> None:
    """Set a key in `meta`."""
    db.execute(_PUT_VALUE, (key, value))


def raise_value(db: sqlite3.Connection, key: str, value: int) -> None:
    """Set a key in `meta` unless its value is greater already."""
    db.execute(_RAISE_VALUE, (key, value))


def read_epoch(db: sqlite3.Connection) -> int:
    """The epoch: 63 random bits, drawn once per database.

    It tells the hub our question numbers from those of an earlier database.
    """
    db.execute("insert or ignore into meta values('epoch',?)", (secrets.randbits(63),))
    return read_value(db, "epoch", 0)


def raise_floor(db: sqlite3.Connection, floor_ms: int, sure_ms: int) -> None:
    """Raise the clock's two lower bounds (hub milliseconds); neither ever goes back."""
    db.executemany(_RAISE_VALUE, (("floor_ms", floor_ms), ("sure_ms", sure_ms)))


MAX_REPORTS = 64  # unconfirmed reports kept; older ones are deleted
_REPORT_SEQ = "report_seq"  # its key in the table `meta`
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(InstallReport)


def store_report(db: sqlite3.Connection, report: InstallReport, now_ms: int) -> None:
    """Store a report, in place of an earlier one of the same rollout and state."""
    seq = max(read_value(db, _REPORT_SEQ, 0) + 1, now_ms)
    raise_value(db, _REPORT_SEQ, seq)
    db.execute("delete from reports where rollout=? and state=?", (report.rollout, report.state))
    body = _encoder.encode(msgspec.structs.replace(report, seq=seq))
    db.execute("insert into reports(seq,rollout,state,body) values(?,?,?,?)", (seq, report.rollout, report.state, body))
    db.execute(
        "delete from reports where seq not in (select seq from reports order by seq desc limit ?)", (MAX_REPORTS,)
    )


def read_reports(db: sqlite3.Connection) -> list[InstallReport]:
    """Reports that no hub has confirmed, oldest first."""
    return [_decoder.decode(row[0]) for row in db.execute("select body from reports order by seq")]


def drop_reports(db: sqlite3.Connection, seq: int) -> None:
    """Delete the reports up to this number: a hub has confirmed them."""
    db.execute("delete from reports where seq<=?", (seq,))


HOUR_MS = 3_600_000


def add_traffic(db: sqlite3.Connection, at_ms: int, size: int) -> None:
    """Add sent bytes to the hour of `at_ms`."""
    db.execute(
        "insert into traffic values(?,?) on conflict(hour) do update set bytes=bytes+excluded.bytes",
        (at_ms // HOUR_MS, size),
    )


def sum_traffic(db: sqlite3.Connection, since_ms: int, until_ms: int) -> int:
    """Bytes sent from the hour of `since_ms` to the end of the hour of `until_ms`."""
    query = "select coalesce(sum(bytes),0) from traffic where hour>=? and hour<?"
    return int(db.execute(query, (since_ms // HOUR_MS, -(-until_ms // HOUR_MS))).fetchone()[0])
