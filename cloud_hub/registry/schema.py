"""Tables of `devices.db` and their forward migrations; only `registry` reads and writes the rows.

Rule: a database written by a newer hub is refused; a migration runs once, in one transaction.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from wire.process.exit_codes import ExitCode, ExitError

SCHEMA = 3
_metadata = sa.MetaData()
meta = sa.Table("meta", _metadata, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text))
devices = sa.Table(
    "devices",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("signing_key", sa.LargeBinary, nullable=False),
    sa.Column("hpke_key", sa.LargeBinary, nullable=False),
    sa.Column("serial", sa.Text, nullable=False),
    sa.Column("certificate_ends_ms", sa.Integer, nullable=False),
    sa.Column("enrolled_ms", sa.Integer, nullable=False),
    sa.Column("changed_ms", sa.Integer, nullable=False),
    # since schema 2
    sa.Column("why", sa.Text, nullable=False, server_default=""),  # of the last change of state
    sa.Column("authority", sa.Text, nullable=False, server_default=""),  # SHA-256 of the CA that issued it, hex
    sa.Column("hardware", sa.Text, nullable=False, server_default=""),  # serial number that the machine reported
    sa.Column("retire_at_ms", sa.Integer, nullable=False, server_default="0"),
    sa.Column("ledger", sa.Text, nullable=False, server_default=""),  # SHA-256 of the ledger it exported, hex
    # since schema 3: set by the invite; policy rules may use them
    sa.Column("device_class", sa.Text, nullable=False, server_default=""),
    sa.Column("region", sa.Text, nullable=False, server_default=""),
)
invites = sa.Table(
    "invites",
    _metadata,
    sa.Column("token_hash", sa.LargeBinary, primary_key=True),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("created_ms", sa.Integer, nullable=False),
    sa.Column("expires_ms", sa.Integer, nullable=False),
    sa.Column("used_ms", sa.Integer),
    # since schema 2
    sa.Column("hardware", sa.Text, nullable=False, server_default=""),  # JSON list; "" = any machine
    sa.Column("replace", sa.Integer, nullable=False, server_default="0"),  # also for a suspended device
    # since schema 3
    sa.Column("device_class", sa.Text, nullable=False, server_default=""),
    sa.Column("region", sa.Text, nullable=False, server_default=""),
)
_ADDED = {
    2: (
        "alter table devices add column why text not null default ''",
        "alter table devices add column authority text not null default ''",
        "alter table devices add column hardware text not null default ''",
        "alter table devices add column retire_at_ms integer not null default 0",
        "alter table devices add column ledger text not null default ''",
        "alter table invites add column hardware text not null default ''",
        "alter table invites add column replace integer not null default 0",
    ),
    3: tuple(
        f"alter table {table} add column {column} text not null default ''"
        for table in ("devices", "invites")
        for column in ("device_class", "region")
    ),
}


def open_device_database(path: Path) -> sa.Engine:
    """Open, create or migrate the file. ExitError(DATABASE) if it is damaged or written by a newer version."""
    _make_private(path)
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.StaticPool)
    sa.event.listen(engine, "connect", _set_durable)
    sa.event.listen(engine, "begin", _begin_transaction)
    try:
        with engine.begin() as connection:
            _prepare_schema(connection, path)
    except sa.exc.DatabaseError as error:
        engine.dispose()
        raise ExitError(ExitCode.DATABASE, f"{path} cannot be used ({error.orig}): restore it from a backup") from None
    except ExitError:
        engine.dispose()
        raise
    return engine


def _make_private(path: Path) -> None:
    """Give the file and its side files mode 0600 before the first connection, whose log inherits the file's mode."""
    with suppress(OSError):  # the driver's error on opening it is more precise
        path.touch(mode=0o600)
        for private in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
            if private.exists():
                private.chmod(0o600)


def _prepare_schema(connection: sa.Connection, path: Path) -> None:
    if connection.exec_driver_sql("PRAGMA quick_check").scalar() != "ok":
        raise ExitError(ExitCode.DATABASE, f"{path} is damaged: restore it from a backup")
    _metadata.create_all(connection, tables=[meta])
    stored = connection.execute(sa.select(meta.c.value).where(meta.c.key == "schema")).scalar()
    found = SCHEMA if stored is None else int(stored)
    if found > SCHEMA:
        raise ExitError(ExitCode.DATABASE, f"{path} is of schema {found}, this hub knows {SCHEMA}: upgrade the hub")
    if stored is None:
        _metadata.create_all(connection)
        connection.execute(meta.insert().values(key="schema", value=str(SCHEMA)))
    for version in range(found + 1, SCHEMA + 1):
        for statement in _ADDED[version]:
            connection.exec_driver_sql(statement)
        connection.execute(meta.update().where(meta.c.key == "schema").values(value=str(version)))


def _set_durable(connection: Any, _record: Any) -> None:
    # sqlite3's implicit transactions exclude `alter table`; `_begin_transaction` opens them.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_transaction(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN")
