"""Opens a part of the hub's state on SQLite or PostgreSQL: connection, settings, creation and migration.

Rule: on both, what is committed survives a power cut (`versions` excepted), and a transaction is one from its first
statement. A file is private to the hub's user. Nothing is repaired by guessing.
"""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from cloud_hub.database.contraction import apply_contractions, write_number
from cloud_hub.database.errors import DamagedDatabaseError, describe_url, explain_error, is_damaged, refuse_newer
from cloud_hub.database.expansion import add_missing, create_in_file
from cloud_hub.database.marks import refuse_emptied, refuse_lost, write_mark
from cloud_hub.database.parts import PARTS, REGION, DatabasePart, sqlite_url
from cloud_hub.database.server import list_connection_options, on_server_connect
from cloud_hub.database.statements import is_postgres, lock_exclusively
from cloud_hub.database.tables import meta
from wire.process.exit_codes import ExitCode, ExitError

Location = Path | str  # an SQLite file, or an SQLAlchemy URL
IN_MEMORY = "sqlite://"
_IN_FILES = {part.name: None for part in PARTS}  # in a file the tables have no schema


def open_part(where: Location, part: DatabasePart) -> sa.Engine:
    """Open, create or migrate a part.

    ExitError(DATABASE) if it is damaged or of a newer program, else as `explain_error` says.
    """
    try:
        return open_sound(where, part)
    except DamagedDatabaseError:
        found = describe_url(as_url(where))
        raise ExitError(ExitCode.DATABASE, f"{found} is damaged: restore it from a backup") from None


def open_sound(where: Location, part: DatabasePart) -> sa.Engine:
    """Open, create or migrate a part. DamagedDatabaseError for a file that is none; else ExitError.

    ExitError(DATABASE_LOST) for a file that is gone, or was emptied (see `marks`).
    """
    file = sqlite_file(as_url(where))
    if file is not None:
        refuse_lost(file)
    engine = connect_part(where, part)
    try:
        prepare_part(engine, part)
        if file is not None:
            write_mark(file)
    except sa.exc.DBAPIError as error:
        engine.dispose()
        raise explain_error(error, as_url(where)) from None
    except (DamagedDatabaseError, ExitError):
        engine.dispose()
        raise
    return engine


def connect_part(where: Location, part: DatabasePart) -> sa.Engine:
    """Engine of a part, not connected yet; for one thread at a time.

    SQLite: one connection, write-ahead log, file mode 0600. PostgreSQL: one connection, made anew when it is lost.
    """
    url = as_url(where)
    if not is_server(url):
        return _connect_file(url, part)
    engine = sa.create_engine(
        url,
        pool_size=1,
        max_overflow=1,
        # The questions' writer meets a lost connection itself and asks again; an hourly request should not have to.
        pool_pre_ping=part.name != "questions",
        hide_parameters=True,
        connect_args=list_connection_options(url),
    )
    sa.event.listen(engine, "connect", on_server_connect)
    return engine


def _connect_file(url: str, part: DatabasePart) -> sa.Engine:
    # Opened by one thread, then handed to another: never used by two at a time.
    options: dict[str, Any] = {"check_same_thread": False}
    engine = sa.create_engine(url, poolclass=sa.StaticPool, hide_parameters=True, connect_args=options)
    _make_private(engine.url.database)
    level = "FULL" if part.durable else "NORMAL"

    def set_pragmas(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # `_begin` sends BEGIN: the driver's would be deferred, and missing for DDL
        for pragma in ("journal_mode=WAL", f"synchronous={level}", "secure_delete=FAST", "busy_timeout=2000"):
            connection.execute(f"PRAGMA {pragma}")

    sa.event.listen(engine, "connect", set_pragmas)
    sa.event.listen(engine, "begin", _begin)
    mapped = engine.execution_options(schema_translate_map=_IN_FILES)
    if engine.url.database in {None, "", ":memory:"}:
        weakref.finalize(mapped, engine.pool.dispose).atexit = False  # such a database ends with who holds it
    return mapped


def prepare_part(engine: sa.Engine, part: DatabasePart) -> None:
    """Check the part, then create or migrate it.

    DamagedDatabaseError for an SQLite file that is damaged or none; ExitError(DATABASE) for one of a newer program; or
    the driver's own error (see `explain_error`).
    """
    try:
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                sound = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() == "ok"
                if sound and engine.url.database:
                    refuse_emptied(connection, Path(engine.url.database))
            if not sound:
                raise DamagedDatabaseError
        with engine.begin() as connection:
            if connection.dialect.name != "sqlite" and part is not REGION:
                migrate_part(connection, REGION)  # a change of any part may be news for the other hubs
            migrate_part(connection, part)
    except sa.exc.DBAPIError as error:
        if is_damaged(error):
            raise DamagedDatabaseError from None
        raise


def migrate_part(connection: sa.Connection, part: DatabasePart) -> None:
    """Create what is missing of a part and bring it to a schema that this program serves, in the transaction under way.

    On a server its contractions are left to `contraction`: hubs of the release before may be there.
    """
    lock_exclusively(connection, "schema")
    if connection.dialect.name != "sqlite":
        connection.execute(sa.schema.CreateSchema(part.name, if_not_exists=True))
    number = meta[part.name]
    if is_postgres(connection):
        number.create(connection, checkfirst=True)
    else:
        create_in_file(connection, number)
    known = connection.execute(sa.select(number.c.value).where(number.c.key == "schema")).scalar()
    found = _check_schema(known, part, connection)
    for step in part.migrations[found - 1 :]:
        step(connection)
    was_there = add_missing(connection, part.name, [table for table in part.tables if table is not number])
    reached = max(found, part.schema)
    if not is_postgres(connection) and was_there:
        reached = apply_contractions(connection, part, reached)  # nobody else is there
    elif known is None:
        reached = part.newest
    if known is None:
        connection.execute(number.insert().values(key="schema", value=str(reached)))
    elif int(known) != reached:
        write_number(connection, part, reached)


def _check_schema(known: str | None, part: DatabasePart, connection: sa.Connection) -> int:
    """The part's schema number; this program's least for a new one, and for one of a time before numbers."""
    if known is None:
        return part.schema
    if not known.isdecimal() or int(known) > part.newest:
        url = connection.engine.url.render_as_string(hide_password=False)
        raise refuse_newer(url, part.name, known, part.newest)
    return int(known)


@contextmanager
def read_snapshot(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection all of whose reads see the same state, and which keeps no writer waiting."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.execution_options(reads=True)
        else:
            connection.execution_options(isolation_level="REPEATABLE READ")
        yield connection


def as_url(where: Location) -> str:
    """The SQLAlchemy URL of a location."""
    return sqlite_url(where) if isinstance(where, Path) else where


def is_server(url: str) -> bool:
    """Whether the URL names a server, which may be out of reach; else a file or a database in memory."""
    return sa.make_url(url).get_backend_name() != "sqlite"


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None for another database, or one in memory."""
    parts = sa.make_url(url)
    on_disk = parts.get_backend_name() == "sqlite" and parts.database not in (None, "", ":memory:")
    return Path(str(parts.database)) if on_disk else None


def _make_private(path: str | None) -> None:
    """Give a file and its side files mode 0600 before the first connection, whose log inherits the file's mode."""
    if not path or path == ":memory:":
        return
    with suppress(OSError):  # the driver's error on opening it is more precise
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        for private in (Path(path), Path(f"{path}-wal"), Path(f"{path}-shm")):
            if private.exists():
                private.chmod(0o600)


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
