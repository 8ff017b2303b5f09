"""Statements that SQLite and PostgreSQL write differently: upserts, and locks for the length of a transaction.

Rule: two hubs may run any of them at once. An upsert is one statement, never an update followed by an insert.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

_INSERTS: dict[str, Callable[[sa.Table], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_LOCK_SPACE = 0x5C3E  # of advisory locks, so that those of other programs in the same database are not met


def is_postgres(connection: sa.Connection) -> bool:
    """Whether the connection is to PostgreSQL; else it is to SQLite."""
    return connection.dialect.name == "postgresql"


def build_upsert(
    connection: sa.Connection, table: sa.Table, raised: Iterable[str] = (), added: Iterable[str] = ()
) -> Any:
    """Statement that inserts rows, or changes those whose primary key is there.

    Of an existing row the columns `raised` take the larger of both values, `added` their sum, all others the new value.
    """
    return _build_upsert(connection.dialect.name, table, frozenset(raised), frozenset(added))


@functools.lru_cache  # building it took a sixth of the time of a group of verdicts
def _build_upsert(dialect: str, table: sa.Table, raised: frozenset[str], added: frozenset[str]) -> Any:
    insert = _INSERTS[dialect](table)
    new: Mapping[str, sa.ColumnElement[Any]] = insert.excluded

    def choose(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        if column.name in raised:
            return sa.case((new[column.name] > column, new[column.name]), else_=column)
        return column + new[column.name] if column.name in added else new[column.name]

    changed = {column.name: choose(column) for column in table.c if not column.primary_key}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)


def write_rows(
    connection: sa.Connection,
    table: sa.Table,
    rows: Iterable[Mapping[str, Any]],
    *,
    raised: Iterable[str] = (),
    added: Iterable[str] = (),
) -> None:
    """Upsert rows, see `build_upsert`; in the order of their keys, so that two hubs never wait for each other."""
    key = [column.name for column in table.primary_key]
    ordered = sorted((dict(row) for row in rows), key=lambda row: [row[name] for name in key])
    if ordered:
        connection.execute(build_upsert(connection, table, raised, added), ordered)


def insert_missing(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
    """Insert a row unless there is one of its key."""
    insert = _INSERTS[connection.dialect.name](table)
    connection.execute(insert.on_conflict_do_nothing(), dict(row))


def hold_for_session(connection: sa.Connection, name: str) -> bool:
    """Hold a name for as long as this connection to PostgreSQL lives; False if another connection holds it."""
    held = sa.func.pg_try_advisory_lock(_LOCK_SPACE, sa.func.hashtext(name))
    return bool(connection.execute(sa.select(held)).scalar_one())


def lock_exclusively(connection: sa.Connection, name: str) -> None:
    """Let no other transaction that asks for this name go on before this one has ended.

    On SQLite every transaction here is exclusive from its beginning.
    """
    if is_postgres(connection):
        locked = sa.func.pg_advisory_xact_lock(_LOCK_SPACE, sa.func.hashtext(name))
        connection.execute(sa.select(locked))
