"""A note beside agent.db, in a file of its own: which database it was, and how often it was opened.

Law: a database that is gone, or is older than the note says, has forgotten what was spent. Then nothing is spent until
the hub has told what it remembers; only then is the note written anew.
"""

import sqlite3
from enum import Enum
from pathlib import Path

from edge_agent.storage import merging_tables_meta
from wire.process.exit_codes import ExitError
from wire.process.files import read_private, write_private

MARKER_FILE = "agent.mark"
_OPENS = "opens"  # its key in the table `meta`


class Past(Enum):
    """What the note says of the database that was just opened."""

    NONE = "none"  # there is no note: a first start, or a folder made anew
    SAME = "same"
    LOST = "lost"


def look(db: sqlite3.Connection, path: Path) -> Past:
    """Count this start and compare. `path`: of the database. A note that cannot be read says nothing good."""
    merging_tables_meta.put(db, _OPENS, merging_tables_meta.get(db, _OPENS, 0) + 1)
    marker = path.with_name(MARKER_FILE)
    if not marker.exists():
        return Past.NONE
    try:
        epoch, _, opens = read_private(marker).decode("ascii", "replace").partition(" ")
        same = int(epoch, 16) == merging_tables_meta.epoch(db) and int(opens) < merging_tables_meta.get(db, _OPENS, 0)
    except (ExitError, ValueError):
        return Past.LOST
    return Past.SAME if same else Past.LOST


def write(db: sqlite3.Connection, path: Path) -> None:
    """From now on this database is the one that counts. ExitError(DISK) if the folder takes no file."""
    note = f"{merging_tables_meta.epoch(db):x} {merging_tables_meta.get(db, _OPENS, 0)}"
    write_private(path.with_name(MARKER_FILE), note.encode())
