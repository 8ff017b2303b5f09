"""Opens agent.db: checks it whole, puts a damaged one aside, brings its schema up to date.

Law: a damaged file is renamed and reported, never repaired in place and never deleted; a new one has a new epoch.
A lost write-ahead log is found out: its rows are gone, so the next seqs jump far past any that it may have held.
"""

import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from edge_agent.storage import ledger, merging_tables_meta
from edge_agent.storage.merging_schema_tables import migrate
from wire.process.files import sync_folder

SEQ_JUMP = 1_000_000
_SIDE_FILES = ("", "-wal", "-shm")
_PRAGMAS = (
    "pragma journal_mode=wal",
    "pragma synchronous=full",  # a commit survives power loss, if the disk keeps its word
    "pragma cache_size=-512",
    "pragma wal_autocheckpoint=1000",
    "pragma journal_size_limit=4194304",
    "pragma temp_store=memory",
    "pragma busy_timeout=2000",
)


class Opened(NamedTuple):
    db: sqlite3.Connection
    damaged: str
    gap: bool


def connect(path: Path) -> Opened:
    """A usable connection. sqlite3.Error if the disk allows none.

    ExitError(DATABASE) if a newer version wrote the file.
    """
    wal_was_there = path.with_name(path.name + "-wal").exists()
    damaged = ""
    if path.exists() and not _is_whole(path):
        damaged = _put_aside(path)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    with ExitStack() as undo:
        undo.callback(db.close)
        path.chmod(0o600)  # before anything is in it: side files inherit the mode
        for pragma in _PRAGMAS:
            db.execute(pragma)
        migrate(db, str(path))
        ledger.adopt(db)
        gap = _note_start(db, wal_was_there=wal_was_there)
        undo.pop_all()
    return Opened(db, damaged, gap)


def _is_whole(path: Path) -> bool:
    """SQLite's own full check. False also for a file that is no database; errors of the disk itself are raised."""
    if path.stat().st_size == 0:
        return True
    db = sqlite3.connect(path, isolation_level=None)
    try:
        return bool(db.execute("pragma integrity_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return False
        raise
    finally:
        db.close()


def _put_aside(path: Path) -> str:
    name = f"{path.name}.damaged-{time.time_ns() // 1_000_000}"
    for suffix in _SIDE_FILES:
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(path.with_name(name + suffix))
    sync_folder(path.parent)
    return name


def _note_start(db: sqlite3.Connection, *, wal_was_there: bool) -> bool:
    """True if the last run did not end cleanly and its write-ahead log is missing."""
    merging_tables_meta.epoch(db)
    gap = not wal_was_there and not merging_tables_meta.get(db, "clean", 1)
    if gap:
        merging_tables_meta.put(db, "seq_floor", ledger.next_seq(db) + SEQ_JUMP)
    merging_tables_meta.put(db, "clean", 0)
    # into the main file itself, or the mark would be lost together with the log it speaks of
    db.execute("pragma wal_checkpoint(truncate)").fetchall()
    return gap
