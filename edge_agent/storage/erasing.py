"""Makes what was erased unreadable in every file of the database: rewrites agent.db and empties its write-ahead log.

A deleted row stays in the pages of the file, and in the log, until something else is written there. Rule: an erasure is
finished when no file of the database holds the row, and whoever asked for it learns which file still does.
"""

import sqlite3
import time
from pathlib import Path

import msgspec

from wire.process.files import list_set_aside

LOG_WAIT_S = 10.0  # for another process that reads the database
LOG_RETRY_S = 0.2


class LocalErasure(msgspec.Struct, frozen=True):
    """What an erasure did on this device. `answers`: how many were deleted.

    `left`: one line for each file of the device that may still hold what was erased.
    """

    answers: int
    left: tuple[str, ...] = ()


def rewrite_pages(db: sqlite3.Connection) -> None:
    """Write the whole database anew, without what was deleted. sqlite3.Error if there is no room.

    It takes as much of the disk again as the database has.
    """
    db.execute("vacuum")


def empty_log(db: sqlite3.Connection) -> bool:
    """Write the log into the database and cut it to nothing. False while another process reads an older state of it."""
    busy, _in_log, _written = db.execute("pragma wal_checkpoint(truncate)").fetchone()
    return not busy


def rewrite_files(db: sqlite3.Connection, path: Path) -> tuple[str, ...]:
    """Rewrite the database at `path` and empty its log, while no other thread uses the connection.

    Returns the lines of `LocalErasure.left`.
    """
    try:
        rewrite_pages(db)
        until = time.monotonic() + LOG_WAIT_S
        while not (emptied := empty_log(db)) and time.monotonic() < until:
            time.sleep(LOG_RETRY_S)
    except sqlite3.Error as error:
        return (describe_failure(path, error), *list_left_aside(path))
    return (() if emptied else (describe_reader(path),)) + list_left_aside(path)


def describe_failure(path: Path, error: sqlite3.Error) -> str:
    """Line about a database that could not be rewritten."""
    return f"{path.name} could not be rewritten ({error}): its pages or its log still hold what was erased"


def describe_reader(path: Path) -> str:
    """Line about a log that could not be emptied."""
    return f"{path.name}-wal still holds what was erased: another process reads the database; end that one"


def list_left_aside(path: Path) -> tuple[str, ...]:
    """Lines about damaged databases that were set aside: nothing can be erased in them."""
    return tuple(
        f"{name} was set aside as damaged and may hold what was erased: delete it" for name in list_set_aside(path)
    )
