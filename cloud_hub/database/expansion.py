"""Adds to a part what its tables lack: new tables, and new columns of those that are there, as `tables` says.

Rule: nothing is changed or taken away, so a program of the release before goes on beside it, and writes rows in which a
new column has its default. An index of a server's table that is there is left to `contraction`: it may take minutes.
"""

from functools import cache

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

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
    missing = [table for table in tables if table.name not in known]
    if not is_postgres(connection):
        for table in missing:
            create_in_file(connection, table)
        _add_indexes(connection, tables)
    elif missing:
        missing[0].metadata.create_all(connection, missing)
    return bool(there)


def create_in_file(connection: sa.Connection, table: sa.Table) -> None:
    """Create a table of a file, without its indexes, if it is not there."""
    connection.exec_driver_sql(_describe_file_table(table)[""])


@cache
def _describe_file_table(table: sa.Table) -> dict[str, str]:
    """The statements that make a table in a file (under "") and its indexes (by name), which are written once."""
    plain = table.to_metadata(sa.MetaData(), schema=None)  # type: ignore[arg-type]  # it takes None, as it says
    found: dict[str, sa.schema.CreateTable | sa.schema.CreateIndex] = {
        "": sa.schema.CreateTable(plain, if_not_exists=True)
    }
    found |= {str(index.name): sa.schema.CreateIndex(index) for index in plain.indexes}
    dialect = sqlite.dialect()
    return {name: str(each.compile(dialect=dialect)) for name, each in found.items()}


def _add_indexes(connection: sa.Connection, tables: list[sa.Table]) -> None:
    """Add the indexes that a file lacks: no other process waits for it."""
    known = set(connection.execute(_FILE_INDEXES).scalars())
    for table in tables:
        for name, statement in _describe_file_table(table).items():
            if name and name not in known:
                connection.exec_driver_sql(statement)


def _add_column(connection: sa.Connection, table: sa.Table, column: sa.Column[object]) -> None:
    name = connection.dialect.identifier_preparer.format_table(table) if is_postgres(connection) else table.name
    described = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"alter table {name} add column {described}")
