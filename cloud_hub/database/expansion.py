"""Adds to a part what its tables lack: new tables, and new columns of those that are there, as `tables` says.

Rule: nothing is changed or taken away, so a program of the release before goes on beside it, and writes rows in which a
new column has its default. An index of a server's table that is there is left to `contraction`: it may take minutes.
"""

import sqlalchemy as sa

from cloud_hub.database.statements import is_postgres

_SERVER_COLUMNS = sa.text("select table_name, column_name from information_schema.columns where table_schema = :part")
_FILE_COLUMNS = sa.text(
    "select m.name, p.name from sqlite_master m join pragma_table_info(m.name) p where m.type = 'table'"
)
_FILE_INDEXES = sa.text("select name from sqlite_master where type = 'index'")


def read_columns(connection: sa.Connection, part: str) -> dict[str, set[str]]:
    """Columns of each table of a part that is there."""
    asked = {"part": part} if is_postgres(connection) else {}
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(_SERVER_COLUMNS if asked else _FILE_COLUMNS, asked):
        found.setdefault(table, set()).add(column)
    return found


def add_missing(connection: sa.Connection, part: str, tables: list[sa.Table]) -> bool:
    """Add the tables and columns that are missing, in the transaction under way; whether any table was there."""
    known = read_columns(connection, part)
    there = [table for table in tables if table.name in known]
    for table in there:
        for column in table.c:
            if column.name not in known[table.name]:
                _add_column(connection, table, column)
    if len(there) < len(tables):
        tables[0].metadata.create_all(connection, tables)
    if not is_postgres(connection):
        _add_indexes(connection, tables)
    return bool(there)


def _add_indexes(connection: sa.Connection, tables: list[sa.Table]) -> None:
    """Add the indexes that a file lacks: no other process waits for it."""
    known = set(connection.execute(_FILE_INDEXES).scalars())
    for index in (each for table in tables for each in table.indexes if each.name not in known):
        index.create(connection)


def _add_column(connection: sa.Connection, table: sa.Table, column: sa.Column[object]) -> None:
    name = connection.dialect.identifier_preparer.format_table(table) if is_postgres(connection) else table.name
    described = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"alter table {name} add column {described}")
