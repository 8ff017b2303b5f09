"""Brings a part from one schema number to the next while hubs are there: indexes, backfills, then its contraction.

Rule: the contraction is one transaction, which holds the leases still, sees that every hub that is there or holds a
lease serves the next number, and raises it. A hub that serves less takes no lease afterwards (`region.schemas`).
Rule: each step waits for its locks a second at most, and is tried again: whoever renews leases is not kept waiting.
"""

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from cloud_hub.database.parts import DatabasePart
from cloud_hub.database.statements import lock_exclusively, write_rows
from cloud_hub.database.tables import meta, schemas

FindWaiting = Callable[[sa.Connection, DatabasePart, int], tuple[str, ...]]
"""Hubs, in words, for which a contraction of a part to a number has to wait."""

_INDEXES = sa.text(
    "select c.relname, i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid "
    "join pg_namespace n on n.oid = c.relnamespace where n.nspname = :part"
)


@dataclass(frozen=True)
class SchemaState:
    """Schema number of a part, the number it is expanded to, and the hubs, in words, that keep it from being there."""

    part: str
    schema: int
    expanded: int
    waits_for: tuple[str, ...] = ()


def apply_contractions(connection: sa.Connection, part: DatabasePart, found: int) -> int:
    """Apply every contraction of a part from a number on, in the transaction under way; returns the number reached."""
    for contraction in part.contractions[found - part.schema :]:
        while contraction.backfill is not None and contraction.backfill(connection):
            pass
        contraction.step(connection)
    return part.newest


def read_number(connection: sa.Connection, part: DatabasePart) -> int:
    """Schema number of a part that was opened."""
    number = meta[part.name]
    return int(connection.execute(sa.select(number.c.value).where(number.c.key == "schema")).scalar_one())


def write_number(connection: sa.Connection, part: DatabasePart, reached: int) -> None:
    """Write the schema number of a part that has one."""
    number = meta[part.name]
    connection.execute(number.update().where(number.c.key == "schema").values(value=str(reached)))


def read_state(connection: sa.Connection, part: DatabasePart, find_waiting: FindWaiting) -> SchemaState:
    """Where a part is, and what it waits for."""
    number = read_number(connection, part)
    waits_for = find_waiting(connection, part, number + 1) if number < part.newest else ()
    return SchemaState(part.name, number, max(number, part.newest), waits_for)


def add_indexes(engine: sa.Engine, part: DatabasePart) -> None:
    """Make the indexes that the tables of a server lack while they are written. One hub of a region at a time.

    An index of which only a part was made, since its maker ended, is made anew.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("set lock_timeout = 0")  # it waits for every transaction of now, and keeps none
        valid = {row.relname: row.indisvalid for row in connection.execute(_INDEXES, {"part": part.name})}
        for index in (each for table in part.tables for each in table.indexes):
            if valid.get(str(index.name)):
                continue
            if index.name in valid:
                connection.exec_driver_sql(f"drop index concurrently {part.name}.{index.name}")
            made = str(sa.schema.CreateIndex(index).compile(dialect=connection.dialect))
            connection.exec_driver_sql(made.replace("INDEX", "INDEX CONCURRENTLY", 1))
        connection.invalidate()  # its time-out is not that of the others


def contract_part(engine: sa.Engine, part: DatabasePart, find_waiting: FindWaiting) -> SchemaState:
    """Do what can be done now: backfill, and contract unless a hub is there that serves less."""
    while True:
        with engine.begin() as connection:
            state = read_state(connection, part, find_waiting)
            if state.schema >= part.newest:
                return state
            backfill = part.contractions[state.schema - part.schema].backfill
            if backfill is not None and backfill(connection):
                continue
        if state.waits_for or not _contract(engine, part, state.schema, find_waiting):
            return state


def _contract(engine: sa.Engine, part: DatabasePart, number: int, find_waiting: FindWaiting) -> bool:
    """Contract a part to the next number; False if a hub came meanwhile that does not serve it."""
    contraction = part.contractions[number - part.schema]
    with engine.begin() as connection:
        connection.exec_driver_sql("set local lock_timeout = '1s'")
        lock_exclusively(connection, "schema")
        if read_number(connection, part) != number:
            return True  # somebody did it
        connection.exec_driver_sql("lock table region.leases in share row exclusive mode")
        if find_waiting(connection, part, number + 1):
            return False
        while contraction.backfill is not None and contraction.backfill(connection):
            pass
        contraction.step(connection)
        write_number(connection, part, number + 1)
        write_rows(connection, schemas, [{"part": part.name, "schema": number + 1}])
    return True
