"""Marks of the SQLite files that a state folder has had: one that is lost is refused, not taken for a first start.

Beside each database lies a file of its name that ends in `.mark`, written once the database was opened. Rule: a
database whose mark is there and which is missing, empty or without its tables is lost. A folder of a release without
marks gets them at its next start. A database on a server has none: its operator sees to it.
"""

from pathlib import Path

import sqlalchemy as sa

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file


def find_mark(file: Path) -> Path:
    """Path of the mark of a database file."""
    return file.with_suffix(".mark")


def is_missing(file: Path) -> bool:
    """Whether a database file is not there, or empty."""
    return not file.exists() or file.stat().st_size == 0


def refuse_lost(file: Path) -> None:
    """ExitError(DATABASE_LOST) for a database that is missing or empty although its mark says that it was there."""
    if find_mark(file).exists() and is_missing(file):
        raise describe_loss(file)


def refuse_emptied(connection: sa.Connection, file: Path) -> None:
    """ExitError(DATABASE_LOST) for a database without any table although its mark says that it had some."""
    if find_mark(file).exists() and not sa.inspect(connection).get_table_names():
        raise describe_loss(file)


def describe_loss(file: Path) -> ExitError:
    """The error that says what is lost and how to go on."""
    return ExitError(
        ExitCode.DATABASE_LOST,
        f"{file} is missing or empty, and this hub had one: restore a backup (skerry hub restore), or begin it anew, "
        f"without what it held: skerry hub run --begin-anew {file.name}",
    )


def write_mark(file: Path) -> None:
    """Note that the database was there. ExitError(DISK) if that cannot be written."""
    mark = find_mark(file)
    if not mark.exists():
        write_private_file(mark, b"Beside this file lies a database. Without it, the hub does not start.\n")


def forget_database(file: Path) -> None:
    """Let a lost database be begun anew. ExitError(USAGE) if it is there."""
    if not is_missing(file):
        raise ExitError(ExitCode.USAGE, f"{file} is there and holds something: move it away first")
    find_mark(file).unlink(missing_ok=True)
