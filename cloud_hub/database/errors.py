"""Errors of both databases in words: exit errors of one line that says what to do, and names for logs.

Rule: no statement, value or password is ever part of a message.
"""

import sqlite3

import sqlalchemy as sa

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, SafeValue, safe_name

_ADVICE = "restore it from a backup, or move it away"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# Classes and codes of SQLSTATE, PostgreSQL manual appendix A.
_REFUSED_STATES = ("28", "42501", "3D000")  # invalid authorization, insufficient privilege, no such database
_UNWRITABLE_STATES = ("25006", "53100", "58030")  # read-only transaction, disk full, I/O error
_LOCKED_STATES = ("55P03", "40P01", "40001")  # lock not available, deadlock, serialization failure
# A connection that failed carries no SQLSTATE, only what libpq and the server said.
_REFUSED_WORDS = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist", "permission denied")


_SILENT = "the database does not answer"


class DamagedDatabaseError(Exception):
    """A file that is no sound SQLite database."""


def is_damaged(error: sa.exc.DBAPIError) -> bool:
    """Whether the error says that the file is damaged, or no SQLite database."""
    return _sqlite_code(error) in _DAMAGED


def describe_url(url: str) -> str:
    """The database as people are told of it: the file, or the server's URL without the password."""
    parts = sa.make_url(url)
    if parts.get_backend_name() == "sqlite":
        return parts.database or "the database in memory"
    return parts.set(query={}).render_as_string(hide_password=True)


def explain_error(error: sa.exc.DBAPIError, url: str) -> ExitError:
    """Exit error for a database error: one line that says what to do.

    CREDENTIALS, DISK, LOCKED, SERVER_DOWN or DATABASE.
    """
    where = describe_url(url)
    if sa.make_url(url).get_backend_name() != "sqlite":
        return _explain_server_error(error, where)
    kind = _sqlite_code(error)
    if kind in _UNWRITABLE:
        return ExitError(
            ExitCode.DISK, f"{where} cannot be written ({error.orig}): check the disk and the file's owner"
        )
    if kind in _IN_USE:
        return ExitError(ExitCode.LOCKED, f"{where} is in use by another process: stop that one first")
    return ExitError(ExitCode.DATABASE, f"{where} cannot be used ({error.orig}): {_ADVICE}")


def refuse_newer(url: str, part: str, found: int | str, newest: int) -> ExitError:
    """Exit error of a program that does not serve the schema of a part any more."""
    return ExitError(
        ExitCode.DATABASE,
        f"{describe_url(url)} has schema {found} of {part}, newer than this program's {newest}: update the program",
    )


def _explain_server_error(error: sa.exc.DBAPIError, where: str) -> ExitError:
    state, said = str(getattr(error.orig, "sqlstate", None) or ""), _last_line(str(error.orig))
    if state.startswith(_REFUSED_STATES) or (not state and any(word in said for word in _REFUSED_WORDS)):
        return ExitError(
            ExitCode.CREDENTIALS,
            f"{where} refuses this hub ({said}): check user, password and database of [store] url",
        )
    if state.startswith(_UNWRITABLE_STATES):
        return ExitError(ExitCode.DISK, f"{where} cannot be written ({said}): name the primary, or free its disk")
    if state in _LOCKED_STATES:
        return ExitError(ExitCode.LOCKED, f"{where} is held by another process ({said}): try again")
    if not state or state.startswith(("08", "57P")) or error.connection_invalidated:
        return ExitError(
            ExitCode.SERVER_DOWN, f"{where} cannot be reached ({said}): start the server, or correct [store] url"
        )
    return ExitError(ExitCode.DATABASE, f"{where} cannot be used ({said})")


def name_fault(error: sa.exc.SQLAlchemyError) -> str:
    """Name of a database error (`SQLITE_FULL`, `DiskFull`, ...) for logs: without statement or values."""
    original = getattr(error, "orig", None)
    fallback = type(original).__name__ if getattr(original, "sqlstate", None) else type(error).__name__
    return str(getattr(original, "sqlite_errorname", fallback))


def log_fault(log: JsonLog, event: str, error: BaseException, **values: SafeValue) -> None:
    """Log that work in the database failed: a database that does not do its work by name, anything else as a defect."""
    if isinstance(error, sa.exc.SQLAlchemyError) and not is_defect(error):
        log.warning(event, error=safe_name(name_fault(error)), **values)
    else:
        log.defect(event, error, **values)


def describe_fault(error: sa.exc.SQLAlchemyError) -> str:
    """Why the database does not do its work, in a few words for `readyz`: without statement or values."""
    if not isinstance(error, sa.exc.DBAPIError):
        return f"the database fails ({name_fault(error)})"
    code, state = _sqlite_code(error), str(getattr(error.orig, "sqlstate", None) or "")
    if code == sqlite3.SQLITE_READONLY or state == "25006":
        return "the database is read-only"
    if code == sqlite3.SQLITE_FULL or state == "53100":
        return "the disk of the database is full"
    if code in _IN_USE or state in _LOCKED_STATES:
        return "the database is held by another process"
    if state.startswith(_REFUSED_STATES) or (not state and any(word in str(error.orig) for word in _REFUSED_WORDS)):
        return "the database refuses this hub"
    # only a server can be silent, and only where the connection is at fault
    answers = code or not hasattr(error.orig, "sqlstate") or (state and not is_lost(error))
    return f"the database fails ({name_fault(error)})" if answers else _SILENT


def is_defect(error: sa.exc.SQLAlchemyError) -> bool:
    """Whether the statement or its use is wrong, not the database: a constraint, a value, a name."""
    if not isinstance(error, sa.exc.DBAPIError):
        return not isinstance(error, sa.exc.TimeoutError)  # which says that all connections are in use
    state = str(getattr(error.orig, "sqlstate", None) or "")
    about_statement = (sa.exc.IntegrityError, sa.exc.DataError, sa.exc.ProgrammingError, sa.exc.NotSupportedError)
    return isinstance(error, about_statement) and not state.startswith(_REFUSED_STATES) and not is_lost(error)


def explain_fault(error: sa.exc.SQLAlchemyError) -> str:
    """What a caller is told of a database that does not do its work. A defect of ours is raised on, to be logged."""
    if is_defect(error):
        raise error
    return describe_fault(error)


def is_lost(error: sa.exc.SQLAlchemyError) -> bool:
    """Whether the connection was lost, so that nobody knows whether a COMMIT that was under way was carried out."""
    state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
    return isinstance(error, sa.exc.DBAPIError) and (error.connection_invalidated or state.startswith(("08", "57P")))


def is_unavailable(error: sa.exc.SQLAlchemyError) -> bool:
    """Whether a server as a whole does not do its work: trying another statement would only wait as long again."""
    about_data = (sa.exc.IntegrityError, sa.exc.DataError, sa.exc.ProgrammingError)
    of_server = isinstance(error, sa.exc.DBAPIError) and hasattr(error.orig, "sqlstate")
    return of_server and not isinstance(error, about_data)


def _sqlite_code(error: sa.exc.DBAPIError) -> int:
    return int(getattr(error.orig, "sqlite_errorcode", 0)) & 0xFF


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
