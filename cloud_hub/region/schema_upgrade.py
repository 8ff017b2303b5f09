"""Contracts the database of a region once no hub of an older release is there. One hub of the region does it."""

import asyncio
from collections.abc import Callable

import sqlalchemy as sa

from cloud_hub.database.connection import connect_part, open_part
from cloud_hub.database.contraction import SchemaState, add_indexes, contract_part, read_state
from cloud_hub.database.errors import explain_error, log_fault, name_fault
from cloud_hub.database.parts import ALL_PARTS, DatabasePart
from cloud_hub.region.releases import HubRelease, find_waiting, read_releases
from wire.process.logging import JsonLog, safe_name

LOOK_S = 2.0


class SchemaUpgrade:
    """Owns the contractions of a region's database, at `url`."""

    def __init__(self, url: str, log: JsonLog) -> None:
        self._url = url
        self._log = log
        self._open = set(ALL_PARTS)  # parts with something left to do
        self._seen: dict[str, SchemaState] = {}
        self._faults: dict[str, str] = {}

    async def run(self, does: Callable[[], bool]) -> None:
        """Do what is left while `does()` says that this hub is the one, until cancelled."""
        while True:
            if self._open and does():
                await asyncio.to_thread(self.advance)
            await asyncio.sleep(LOOK_S)

    def advance(self) -> None:
        """Do what can be done now. A server that fails is asked again at the next look."""
        for part in sorted(self._open, key=lambda each: each.name):
            try:
                self._advance(part)
            except sa.exc.SQLAlchemyError as error:
                fault, before = name_fault(error), self._faults.get(part.name)
                self._faults[part.name] = fault
                if fault != before:
                    log_fault(self._log, "schema_fails", error, part=safe_name(part.name))
            else:
                self._faults.pop(part.name, None)

    def _advance(self, part: DatabasePart) -> None:
        engine = connect_part(self._url, part)
        try:
            if part.name not in self._seen:
                add_indexes(engine, part)
            state = contract_part(engine, part, find_waiting)
        finally:
            engine.dispose()
        if state != self._seen.get(part.name):
            self._log.info("schema", part=safe_name(part.name), schema=state.schema, waits_for=len(state.waits_for))
        self._seen[part.name] = state
        if state.schema >= part.newest:
            self._open.discard(part)


def read_upgrade(url: str) -> tuple[tuple[HubRelease, ...], tuple[SchemaState, ...]]:
    """Hubs that are there, and where every part of their database is. ExitError as `open_part` says."""
    engine = open_part(url, ALL_PARTS[-1])
    try:
        with engine.connect() as connection:
            there = sa.inspect(connection).get_schema_names()
            parts = [part for part in ALL_PARTS if part.name in there]
            states = tuple(read_state(connection, part, find_waiting) for part in parts)
            return read_releases(connection), states
    except sa.exc.DBAPIError as error:
        raise explain_error(error, url) from None
    finally:
        engine.dispose()
