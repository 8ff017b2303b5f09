"""The one database of a fleet in one process: the product's writer thread, whose units each speak for one device.

Law: group commit, retries and troubles are the product's own code; every operation is only told whose rows it sees.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from edge_agent.database import Database, Done, Op, Stored, Trouble, stored_in
from edge_agent.store_file import Opened
from simulations.live_tables import Shared, open_shared

T = TypeVar("T")
FLEET_FILE = "agent.db"


class FleetStore(Database):
    """The file and its writer; `of(number, path)` is what an agent takes for its database."""

    async def begin(self) -> None:
        """Open the file and start the writer. sqlite3.Error if it cannot be used."""
        self._loop = asyncio.get_running_loop()
        self._db = await asyncio.to_thread(open_shared, self.path)
        self._start()

    def of(self, number: int, path: Path) -> "DeviceStore":
        return DeviceStore(self, number, path)


class DeviceStore(Database):
    """One device's part. `path`: where its own agent.db would lie; the note beside that is real."""

    def __init__(self, fleet: FleetStore, number: int, path: Path) -> None:
        super().__init__(path)
        self._fleet = fleet
        self._number = number
        self._opened = False
        self._dead = False

    async def open(self) -> Stored:
        """Take up what the file holds of this device."""
        stored = await self.read(partial(_begun, path=self.path))
        self._opened = True
        return stored

    @property
    def is_open(self) -> bool:
        return self._opened and self._fleet.is_open

    @property
    def alive(self) -> bool:
        return self._fleet.alive

    @property
    def waiting(self) -> int:
        """Of the whole fleet."""
        return self._fleet.waiting

    def write(self, ops: tuple[Op, ...], done: Done | None = None, *, must: bool = False, soon: bool = False) -> None:
        if not self._dead:
            told = partial(self._told, done) if done is not None else None
            self._fleet.write((partial(_all_as, self._number, ops),), told, must=must, soon=soon)

    def read(self, op: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        if self._dead:
            return asyncio.get_running_loop().create_future()  # nobody is left to hear
        return self._fleet.read(partial(_as, self._number, op))

    def die(self) -> None:
        """Its agent was killed: it writes and hears nothing more. What was handed over may still be written."""
        self._dead = True

    def _told(self, done: Done, trouble: Trouble | None) -> None:
        if not self._dead:
            done(trouble)

    def flush(self) -> None:
        self._fleet.flush()

    def revive(self) -> None:
        self._fleet.revive()

    async def close(self) -> None:
        """What waits is written with the fleet's next commit; the file stays open for the others."""
        self._fleet.flush()
        self._opened = False


def _as(number: int, op: Callable[[sqlite3.Connection], T], db: sqlite3.Connection) -> T:
    cast("Shared", db).me = number
    return op(db)


def _all_as(number: int, ops: tuple[Op, ...], db: sqlite3.Connection) -> None:
    cast("Shared", db).me = number
    for op in ops:
        op(db)


def _begun(db: sqlite3.Connection, path: Path) -> Stored:
    return stored_in(Opened(db, "", gap=False), path)
