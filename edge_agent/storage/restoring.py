"""Makes a restored agent.db fit to go on: what the device did after the backup is not known, and must not be repeated.

Rule: no number is used twice. Questions and events get numbers far beyond any that the device can have given since.
Rule: nothing is spent before the hub has told what it remembers, as with a lost database. Rule: what was recorded and
not sent counts as sent. The epoch stays: the hub still has the verdicts of the questions that are open in the backup.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from edge_agent.storage import ledger, outbox, schema, tables
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file

RESTORE_JUMP = 1 << 40  # 1,000 questions a second for 34 years
_LOST = b"0 0"  # a marker that fits no database: see `schema.check_marker`


def prepare_restored_database(path: Path) -> int:
    """Prepare agent.db of a backup, and its marker; returns how many questions are open in it.

    ExitError(DATABASE) if it is damaged or of a newer version.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            if db.execute("pragma integrity_check(1)").fetchone() != ("ok",):
                raise ExitError(ExitCode.DATABASE, f"{path.name} of the backup is damaged")
            schema.migrate_schema(db, path.name)
            ledger.migrate_ledger(db)
            db.execute("begin immediate")
            tables.write_value(db, "seq_floor", ledger.read_next_seq(db) + RESTORE_JUMP)
            tables.write_value(db, "clean", 1)  # its write-ahead log is in it: nothing is missing
            ledger.take_unsent(db)
            _raise_events(db)
            waiting = len(outbox.read_rows(db))
            db.execute("commit")
    except sqlite3.Error as error:
        raise ExitError(ExitCode.DATABASE, f"{path.name} of the backup cannot be used: {error}") from None
    write_private_file(path.with_name(schema.MARKER_FILE), _LOST)
    return waiting


def _raise_events(db: sqlite3.Connection) -> None:
    """Jump with the numbers of events: a caller that saw later ones still gets what follows."""
    if db.execute("update sqlite_sequence set seq=seq+? where name='answers'", (RESTORE_JUMP,)).rowcount == 0:
        db.execute("insert into sqlite_sequence(name,seq) values('answers',?)", (RESTORE_JUMP,))
