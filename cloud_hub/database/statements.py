"""Statements that SQLite and PostgreSQL write differently: many rows at once, upserts, and locks of transactions.

Rule: two hubs may run any of them at once. An upsert is one statement, never an update followed by an insert.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from cloud_hub.database.arrays import (
    KEY,
    Row,
    build_array_delete,
    build_array_insert,
    build_array_update,
    build_array_upsert,
    transpose_rows,
)

_INSERTS: dict[str, Callable[[sa.Table], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_MAY_TEMP = "select has_database_privilege(current_database(), 'TEMP')"
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


def insert_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Insert rows. One that is there already is an error."""
    if rows and is_postgres(connection):
        connection.exec_driver_sql(build_array_insert(table, tuple(rows[0])), transpose_rows(rows))
    elif rows:
        connection.execute(_build_insert(table), rows)


def change_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[Row], unset: str) -> int:
    """Give rows, found by the columns named with `KEY` before them, the other values, where `unset` is null.

    Returns how many were changed: a key that names more than the primary one may find no row. No two rows are alike.
    """
    if not rows:
        return 0
    if is_postgres(connection):
        statement = build_array_update(table, tuple(rows[0]), unset)
        return connection.exec_driver_sql(statement, transpose_rows(rows)).rowcount
    return connection.execute(_build_update(table, tuple(rows[0]), unset), rows).rowcount


def match_any(connection: sa.Connection, column: sa.Column[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Condition that a column has one of these values.

    On PostgreSQL they travel as one array: the statement is the same for any number of them, and built once.
    """
    if is_postgres(connection):
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(column.type)))
    return column.in_(values)


def delete_rows(connection: sa.Connection, table: sa.Table, keys: Sequence[Row]) -> None:
    """Delete the rows of these keys, whose columns are named with `KEY` before them."""
    if keys and is_postgres(connection):
        connection.exec_driver_sql(build_array_delete(table, tuple(keys[0])), transpose_rows(keys))
    elif keys:
        connection.execute(_build_delete(table), keys)


@functools.lru_cache
def _build_insert(table: sa.Table) -> sa.Insert:
    return table.insert()


@functools.lru_cache
def _build_update(table: sa.Table, names: tuple[str, ...], unset: str) -> sa.Update:
    keys = [name.removeprefix(KEY) for name in names if name.startswith(KEY)]
    found = [table.c[name] == sa.bindparam(f"{KEY}{name}") for name in keys]
    return table.update().where(*found, table.c[unset].is_(None))


@functools.lru_cache
def _build_delete(table: sa.Table) -> sa.Delete:
    return table.delete().where(_match_key(table))


def _match_key(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(*(column == sa.bindparam(f"{KEY}{column.name}") for column in table.primary_key))


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
    if is_postgres(connection) and len({tuple(row[name] for name in key) for row in ordered}) == len(ordered) > 1:
        statement = build_array_upsert(table, tuple(ordered[0]), frozenset(raised), frozenset(added))
        connection.exec_driver_sql(statement, transpose_rows(ordered))
    elif ordered:
        connection.execute(build_upsert(connection, table, raised, added), ordered)


def insert_missing(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
    """Insert a row unless there is one of its key."""
    insert = _INSERTS[connection.dialect.name](table)
    connection.execute(insert.on_conflict_do_nothing(), dict(row))


def check_room(connection: sa.Connection) -> None:
    """Write what a disk without room has no place for, on PostgreSQL; it is gone when the transaction ends.

    A row that is there can be changed on a full disk. SQLite writes such a change into its log, which needs room.
    """
    if is_postgres(connection) and connection.exec_driver_sql(_MAY_TEMP).scalar_one():
        connection.exec_driver_sql("create temporary table room (data text) on commit drop")
        connection.exec_driver_sql("insert into pg_temp.room select repeat('x', 1500) from generate_series(1, 44)")


def insert_or_leave(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless one has any of its unique values; returns whether it was inserted.

    On PostgreSQL it waits for another transaction that is inserting the same.
    """
    insert = _INSERTS[connection.dialect.name](table)
    inserted = insert.on_conflict_do_nothing().returning(*table.primary_key)
    return connection.execute(inserted, dict(row)).first() is not None


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
