"""Schema of agent.db with its migrations; opening the file, and the marker file that detects a lost database.

Rule: a database written by a newer version is refused; a migration runs once, in one transaction.
Rule: a damaged file is renamed and reported, never repaired in place and never deleted; the new one has a new epoch. If
the write-ahead log was lost its rows are gone, so the next question numbers jump far past any that it may have held.
Rule: the marker beside agent.db says which database it was and how often it was opened. A database that is missing, or
older than the marker, has forgotten what was spent: then nothing is spent until the hub has reported what it remembers;
only then is the marker written anew.
"""

import sqlite3
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from edge_agent.storage import ledger, tables
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, replace_private_file, set_database_aside

SCHEMA = (
    # version 1
    """
    create table meta(key text primary key, value integer not null) without rowid;
    create table outbox(
        seq integer primary key, epoch integer not null, id text not null unique, state integer not null,
        created_ms integer not null, expires_ms integer not null, not_before_ms integer not null,
        attempts integer not null, jitter real not null, policy text not null, model text not null,
        data_class text not null, hub text not null, region text not null, egress blob not null,
        fingerprint blob not null, digest blob not null, key_id blob not null, size integer not null,
        charge integer not null, payload blob not null, sealed blob not null);
    create table answers(
        event integer primary key autoincrement, id text not null, kind text not null, at_ms integer not null,
        source text not null, why text not null, label integer not null, confidence real not null,
        scores blob not null, model text not null, policy text not null, seq text not null, data_class text not null,
        trace text not null, infer_s real not null, total_s real not null, queue_s real not null,
        compute_s real not null, unique(id, kind));
    create table outcomes(
        seq integer primary key, epoch integer not null, id text not null, outcome text not null,
        reason text not null, at_ms integer not null);
    create index outcomes_id on outcomes(id);
    create table ledger(
        entry integer primary key autoincrement, at_ms integer not null, seq integer not null, epoch integer not null,
        id text not null, kind text not null, fields text not null, transforms text not null, rule text not null,
        policy text not null, hub text not null, region text not null, size integer not null, digest blob not null);
    create index ledger_seq on ledger(seq);
    create index ledger_id on ledger(id);
    create table spend(day integer primary key, bytes integer not null);
    create table feedback(id text primary key, truth integer not null, at_ms integer not null) without rowid;
    """,
    # version 2: the ledger is a chain, its heads are signed; `ledger.migrate_ledger` migrates the old rows
    """
    alter table ledger rename to ledger_1;
    drop index ledger_seq;
    drop index ledger_id;
    create table forms(
        form blob primary key, fields text not null, transforms text not null, rule text not null,
        policy text not null, hub text not null, region text not null, accounts text not null) without rowid;
    create table entries(
        entry integer primary key, at_ms integer not null, seq integer not null, kind integer not null,
        size integer not null, charge integer not null, releases integer not null, form blob not null,
        digest blob not null, id text not null, hash blob not null);
    create index entries_seq on entries(seq) where seq>0;
    create index entries_id on entries(id) where id<>'';
    create view ledger as select
        entry, at_ms, seq, (select value from meta where key='epoch') as epoch, id,
        case kind when 1 then 'question' when 2 then 'resealed' when 3 then 'again' when 4 then 'withheld'
        when 5 then 'hello' when 6 then 'ask' when 7 then 'report' else 'state' end as kind,
        fields, transforms, rule, policy, hub, region, accounts, size, charge, releases, digest
        from entries join forms using(form);
    create table heads(
        entry integer primary key, at_ms integer not null, hash blob not null, signature blob not null);
    create table witnessed(
        entry integer not null, hub text not null, key blob not null, checkpoint text not null,
        leaf_index integer not null, received_ms integer not null, epochs integer not null, inclusion blob not null,
        primary key(entry, hub)) without rowid;
    create table hub_logs(
        hub text primary key, key blob not null, checkpoint text not null,
        forked text not null default '') without rowid;
    create table unsent(seq integer primary key);
    create table traffic(hour integer primary key, bytes integer not null);
    """,
    # version 3: accounts of bytes, cost and privacy in place of bytes a day; subjects, as keyed hashes
    """
    create table accounts(
        key text not null, period integer not null, amount integer not null, primary key(key, period)) without rowid;
    insert into accounts select 'bytes', day, bytes from spend;
    drop table spend;
    alter table answers add column subject blob not null default x'';
    alter table outbox add column subject blob not null default x'';
    """,
    # version 4: rollout reports, until the hub has confirmed them
    """
    create table reports(
        seq integer primary key, rollout text not null, state text not null, body blob not null,
        unique(rollout, state));
    """,
    # version 5: questions about erased subjects, by number only, so that a hub that was away can still be told
    """
    create table erased(
        subject blob not null, epoch integer not null, seq integer not null, at_ms integer not null,
        primary key(subject, epoch, seq)) without rowid;
    """,
    # version 6: whether a sample belongs to what the model knows; null = the model cannot tell
    """
    alter table answers add column in_domain integer;
    """,
    # version 7: what a language model wrote, and what it cost; null = no text
    """
    alter table answers add column text text;
    alter table answers add column usage blob;
    """,
    # version 8: joules of an answer
    """
    alter table answers add column energy_j real not null default 0;
    """,
)


def migrate_schema(db: sqlite3.Connection, path: str) -> None:
    """Bring the database to this version. ExitError(DATABASE) if a newer one wrote it."""
    found = db.execute("pragma user_version").fetchone()[0]
    if found > len(SCHEMA):
        raise ExitError(
            ExitCode.DATABASE, f"{path}: written by a newer version (schema {found}, here {len(SCHEMA)}): update"
        )
    for version in range(found, len(SCHEMA)):
        # pragma and statements in one script, one transaction: a torn migration leaves the old version
        db.executescript(f"begin immediate;{SCHEMA[version]};pragma user_version={version + 1};commit;")


SEQ_JUMP = 1_000_000
_PRAGMAS = (
    # of a new file; one that is there keeps its own. An escalation changes some 15 pages by a few hundred bytes each,
    # and the log takes every changed page whole: 17 KB instead of 50 with pages of 4096
    "pragma page_size=1024",
    "pragma journal_mode=wal",
    "pragma cache_size=-512",
    "pragma temp_store=memory",
    "pragma secure_delete=fast",  # what is deleted is overwritten in the pages that are written anyway
    "pragma busy_timeout=2000",
)


_LOG_BYTES = 4 * 1024 * 1024  # of the write-ahead log before its pages go into the file


class OpenedDatabase(NamedTuple):
    """A usable connection; `damaged`: new name of an unusable file, or ""; `gap`: the write-ahead log was lost."""

    db: sqlite3.Connection
    damaged: str
    gap: bool


def open_connection(path: Path, *, synced: bool = True) -> OpenedDatabase:
    """Open or create agent.db: check it, set pragmas, migrate. `synced` False: a power cut may undo what it commits.

    sqlite3.Error if the disk allows no database. ExitError(DATABASE) if a newer version wrote the file.
    """
    wal_was_there = path.with_name(path.name + "-wal").exists()
    damaged = ""
    if path.exists() and not _is_intact(path):
        damaged = set_database_aside(path)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    with ExitStack() as undo:
        undo.callback(db.close)
        path.chmod(0o600)  # before anything is in it: side files inherit the mode
        # full: a commit survives power loss, if the disk honours flushes
        db.execute(f"pragma synchronous={'full' if synced else 'off'}")
        for pragma in _PRAGMAS:
            db.execute(pragma)
        page_bytes = db.execute("pragma page_size").fetchone()[0]
        db.execute(f"pragma wal_autocheckpoint={_LOG_BYTES // page_bytes}")
        db.execute(f"pragma journal_size_limit={_LOG_BYTES}")
        migrate_schema(db, str(path))
        ledger.migrate_ledger(db)
        gap = _note_start(db, wal_was_there=wal_was_there)
        undo.pop_all()
    return OpenedDatabase(db, damaged, gap)


def _is_intact(path: Path) -> bool:
    """SQLite's own full integrity check.

    False also for a file that is no database, and for one that was emptied: the marker says that there was another.
    Errors of the disk itself are raised.
    """
    if path.stat().st_size == 0:
        return not path.with_name(MARKER_FILE).exists()
    db = sqlite3.connect(path, isolation_level=None)
    try:
        return bool(db.execute("pragma integrity_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return False
        raise
    finally:
        db.close()


def _note_start(db: sqlite3.Connection, *, wal_was_there: bool) -> bool:
    """Record the start. True if the last run did not end cleanly and its write-ahead log is missing."""
    tables.read_epoch(db)
    gap = not wal_was_there and not tables.read_value(db, "clean", 1)
    if gap:
        tables.write_value(db, "seq_floor", ledger.read_next_seq(db) + SEQ_JUMP)
    tables.write_value(db, "clean", 0)
    # checkpoint into the main file, otherwise the mark would be lost together with the log
    db.execute("pragma wal_checkpoint(truncate)").fetchall()
    return gap


MARKER_FILE = "agent.mark"
_OPENS_KEY = "opens"  # its key in the table `meta`


class MarkerState(Enum):
    """What the marker file says of the database that was just opened."""

    NONE = "none"  # there is no marker: a first start, or a new folder
    SAME = "same"
    LOST = "lost"


def check_marker(db: sqlite3.Connection, path: Path) -> MarkerState:
    """Count this start and compare the database with its marker file; `path`: of the database.

    A marker that cannot be read counts as a lost database.
    """
    tables.write_value(db, _OPENS_KEY, tables.read_value(db, _OPENS_KEY, 0) + 1)
    marker = path.with_name(MARKER_FILE)
    if not marker.exists():
        return MarkerState.NONE
    try:
        epoch, _, opens = read_private_file(marker).decode("ascii", "replace").partition(" ")
        same = int(epoch, 16) == tables.read_epoch(db) and int(opens) < tables.read_value(db, _OPENS_KEY, 0)
    except (ExitError, ValueError):
        return MarkerState.LOST
    return MarkerState.SAME if same else MarkerState.LOST


def write_marker(db: sqlite3.Connection, path: Path) -> None:
    """Write the marker: from now on this database is the valid one. OSError if it cannot be written.

    It is synced if the database is.
    """
    note = f"{tables.read_epoch(db):x} {tables.read_value(db, _OPENS_KEY, 0)}"
    synced = bool(db.execute("pragma synchronous").fetchone()[0])
    replace_private_file(path.with_name(MARKER_FILE), note.encode(), synced=synced)
