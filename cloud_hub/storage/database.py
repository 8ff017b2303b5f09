"""Tables of the hub's database, how it is opened and migrated, and readable explanations of its errors.

Rule: the schema only goes forward. A newer one is refused, an older one is migrated in one transaction. A damaged
database is set aside and a new one begun: nothing is repaired by guessing, and devices hold what they are owed.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from wire.process.exit_codes import ExitCode, ExitError

metadata = sa.MetaData()
_NINE_DAYS_MS = 9 * 86_400_000


def _key_columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("device", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    )


meta = sa.Table("meta", metadata, sa.Column("key", sa.String(32), primary_key=True), sa.Column("value", sa.Text))

# One row per accepted question. `verdict` or `refusal` is set once, with `ended_ms`.
effects = sa.Table(
    "effects",
    metadata,
    *_key_columns(),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("kept_ms", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("fingerprint", sa.LargeBinary(32), nullable=False),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("refusal", sa.Text),
    sa.Column("verdict", sa.LargeBinary),
    # since schema 2
    sa.Column("keep_until_ms", sa.BigInteger, nullable=False, server_default="0"),  # then the verdict is deleted
    sa.Column("subject", sa.LargeBinary(32)),  # device's keyed hash of the person; only the device can compute it
    sa.Index("effects_kept", "kept_ms"),
    sa.Index("effects_keep_until", "keep_until_ms"),
    sa.Index("effects_subject", "device", "subject"),
    sqlite_with_rowid=False,
)

# The sealed frames of unanswered questions only, so that a restart reads this small table alone.
sealed = sa.Table("sealed", metadata, *_key_columns(), sa.Column("frame", sa.LargeBinary, nullable=False))

# Daily counts of verdicts by label and model, kept after the verdicts are deleted. See `retention`.
tallies = sa.Table(
    "tallies",
    metadata,
    sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("label", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("count", sa.BigInteger, nullable=False),
)

# Erased subjects, by a hash of their keyed hash: a question created before the erasure is not accepted again.
tombstones = sa.Table(
    "tombstones",
    metadata,
    sa.Column("mark", sa.LargeBinary(32), primary_key=True),
    sa.Column("device", sa.String(64), nullable=False),
    sa.Column("before_ms", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
)


def _migrate_to_2(connection: sa.Connection) -> None:
    """Add retention and subject columns; existing verdicts are kept for nine days, as rows were until then."""
    connection.exec_driver_sql("alter table effects add column keep_until_ms bigint not null default 0")
    connection.exec_driver_sql("alter table effects add column subject blob")
    connection.execute(effects.update().values(keep_until_ms=effects.c.kept_ms + _NINE_DAYS_MS))
    connection.exec_driver_sql("create index effects_keep_until on effects (keep_until_ms)")
    connection.exec_driver_sql("create index effects_subject on effects (device, subject)")
    metadata.create_all(connection, [tallies, tombstones])


# MIGRATIONS[n] takes a database from schema n + 1 to n + 2.
MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_migrate_to_2,)
SCHEMA = 1 + len(MIGRATIONS)
_ADVICE = "restore it from a backup, or move it away"


class DamagedDatabaseError(Exception):
    """A file that is no sound SQLite database."""


def connect_database(url: str) -> sa.Engine:
    """Open the database for the writer's thread: one connection. SQLite: WAL, synchronous=FULL, file mode 0600."""
    engine = sa.create_engine(url, poolclass=sa.StaticPool, **_thread_arguments(url))
    if engine.dialect.name == "sqlite":
        _create_private(engine.url.database)
        sa.event.listen(engine, "connect", _on_connect)
        sa.event.listen(engine, "begin", _on_begin)
    return engine


def prepare_schema(engine: sa.Engine) -> None:
    """Check the database, then migrate it.

    DamagedDatabaseError for an SQLite file that is damaged or none; ExitError(DATABASE) for one of a newer program; or
    the driver's own error (see `explain_error`).
    """
    try:
        with engine.connect() as connection:
            on_disk = engine.dialect.name == "sqlite"
            sound = not on_disk or connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() == "ok"
        if not sound:
            raise DamagedDatabaseError
        with engine.begin() as connection:
            _migrate_schema(connection, str(engine.url.database))
    except sa.exc.DBAPIError as error:
        if _primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise DamagedDatabaseError from None
        raise


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None for another database, or one in memory."""
    parts = sa.make_url(url)
    on_disk = parts.get_backend_name() == "sqlite" and parts.database not in (None, "", ":memory:")
    return Path(str(parts.database)) if on_disk else None


def explain_error(error: sa.exc.DBAPIError, url: str) -> ExitError:
    """Exit error for a database error: one line that says what to do. DISK, LOCKED or DATABASE."""
    where = sa.make_url(url).database
    kind = _primary_code(error)
    if kind in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return ExitError(
            ExitCode.DISK, f"{where} cannot be written ({error.orig}): check the disk and the file's owner"
        )
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return ExitError(ExitCode.LOCKED, f"{where} is in use by another process: stop that one first")
    return ExitError(ExitCode.DATABASE, f"{where} cannot be used ({error.orig}): {_ADVICE}")


def name_fault(error: sa.exc.SQLAlchemyError) -> str:
    """Name of a database error (`SQLITE_FULL`, `IntegrityError`, ...) for logs: without statement or values."""
    original = getattr(error, "orig", None)
    return str(getattr(original, "sqlite_errorname", type(error).__name__))


def _primary_code(error: sa.exc.DBAPIError) -> int:
    return int(getattr(error.orig, "sqlite_errorcode", 0)) & 0xFF


def _migrate_schema(connection: sa.Connection, where: str) -> None:
    metadata.create_all(connection, [meta])
    found = connection.execute(sa.select(meta.c.value).where(meta.c.key == "schema")).scalar()
    if found is None:
        metadata.create_all(connection)
        connection.execute(meta.insert().values(key="schema", value=str(SCHEMA)))
        return
    if not found.isdecimal() or int(found) > SCHEMA:
        raise ExitError(
            ExitCode.DATABASE, f"{where} has schema {found}, newer than this program's {SCHEMA}: update the program"
        )
    for step in MIGRATIONS[int(found) - 1 :]:
        step(connection)
    connection.execute(meta.update().where(meta.c.key == "schema").values(value=str(SCHEMA)))


def _thread_arguments(url: str) -> dict[str, Any]:
    # Opened by one thread, then handed to the writer's: never used by two at a time.
    return {"connect_args": {"check_same_thread": False}} if url.startswith("sqlite") else {}


def _create_private(path: str | None) -> None:
    if path and path != ":memory:":
        with suppress(OSError):  # the driver's error on opening it is more precise
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _on_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # `_on_begin` sends BEGIN: the driver's would be deferred, and missing for DDL
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=FAST", "busy_timeout=2000"):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
