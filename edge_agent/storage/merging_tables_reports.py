"""Owns the table `reports`: what is to be said of rollouts, until the hub has said that it knows.

Law: the newest of each rollout and state. A report's number is given here, in the transaction that keeps it, and is
above every earlier one of this device, in whatever database: hub time in milliseconds, or one more than the last.
"""

import sqlite3

import msgspec

from edge_agent.storage import merging_tables_meta
from wire.protocol.rollout import InstallReport

MOST = 64  # states of rollouts that no hub has heard of; older ones go
_LAST = "report_seq"  # its key in the table `meta`
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(InstallReport)


def keep(db: sqlite3.Connection, report: InstallReport, now_ms: int) -> None:
    """In the place of an earlier one of the same rollout and state."""
    seq = max(merging_tables_meta.get(db, _LAST, 0) + 1, now_ms)
    merging_tables_meta.raise_to(db, _LAST, seq)
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
