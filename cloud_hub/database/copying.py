"""Copies a hub's whole state from one database into an empty one: SQLite files to PostgreSQL, or back.

Rule: all or nothing. Every row is read from one snapshot, counted on both sides, and the target keeps none of them
unless all are there. The source is only read.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import sqlalchemy as sa

from cloud_hub.database.connection import open_part, read_snapshot
from cloud_hub.database.errors import describe_url, explain_error
from cloud_hub.database.parts import DatabasePart, DatabaseUrls
from cloud_hub.database.statements import is_postgres
from wire.process.exit_codes import ExitCode, ExitError

ROWS_AT_ONCE = 1000
CopyProgress = Callable[[str, int], None]  # table as `part.table`, rows of it so far


def copy_state(source: DatabaseUrls, target: DatabaseUrls, report: CopyProgress) -> dict[str, int]:
    """Copy every table of every part; returns the number of rows by `part.table`. No hub may run on either.

    ExitError(CHECK_FAILED) if the target holds anything, or does not hold afterwards what was read; else as `open_part`
    and `explain_error` say. In each of these cases the target holds nothing new.
    """
    counts: dict[str, int] = {}
    with ExitStack() as written:
        for part, url in target.items():
            engine = open_part(url, part)
            written.callback(engine.dispose)
            with _explained(url):
                connection = written.enter_context(engine.begin())
                _keep_open(connection)
                _check_empty(connection, part, url)
            counts |= _copy_part(part, source.url_of(part), (connection, url), report)
    return counts


def _copy_part(part: DatabasePart, url: str, target: tuple[sa.Connection, str], report: CopyProgress) -> dict[str, int]:
    """Copy a part into the transaction of a connection, whose URL stands beside it."""
    connection, where = target
    engine = open_part(url, part)
    try:
        with _explained(url), read_snapshot(engine) as rows:
            _keep_open(rows)
            return {
                f"{part.name}.{table.name}": _copy_table(table, rows, connection, where, report)
                for table in _list_tables(part)
            }
    finally:
        engine.dispose()


def _copy_table(table: sa.Table, source: sa.Connection, target: sa.Connection, where: str, report: CopyProgress) -> int:
    name, copied = f"{table.schema}.{table.name}", 0
    found = source.execution_options(yield_per=ROWS_AT_ONCE).execute(table.select()).mappings()
    for rows in found.partitions(ROWS_AT_ONCE):
        with _explained(where):
            target.execute(table.insert(), [dict(row) for row in rows])
        copied += len(rows)
        report(name, copied)
    counts = [int(each.execute(_count(table)).scalar_one()) for each in (source, target)]
    if counts != [copied, copied]:
        raise ExitError(
            ExitCode.CHECK_FAILED,
            f"{name}: {counts[0]} rows there, {copied} read, {counts[1]} in {describe_url(where)}: nothing was copied, "
            "try again while nobody else uses either",
        )
    return copied


def _check_empty(connection: sa.Connection, part: DatabasePart, url: str) -> None:
    for table in _list_tables(part):
        if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first():
            raise ExitError(
                ExitCode.CHECK_FAILED,
                f"{describe_url(url)} holds {part.name}.{table.name} already: name an empty database",
            )


def _keep_open(connection: sa.Connection) -> None:
    """Let this transaction wait for the others, where a server would end one that is idle for long."""
    if is_postgres(connection):
        connection.exec_driver_sql("set local idle_in_transaction_session_timeout = 0")


def _list_tables(part: DatabasePart) -> list[sa.Table]:
    """The part's tables but `meta`, which says the schema and is written where the tables are made."""
    return [table for table in part.tables if table.name != "meta"]


def _count(table: sa.Table) -> sa.Select[Any]:
    return sa.select(sa.func.count()).select_from(table)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Put the driver's errors into words. ExitError, see `explain_error`."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise explain_error(error, url) from None
