"""Databases of the agents of a live run: the product's own files and statements, written by the event loop itself.

Rule: a run never outlives a power cut, so nothing is synced to disk; a commit then takes less time than handing it to a
thread, and thousands of agents need no thread each. What agents queue in one turn of the event loop is committed in the
next, one transaction for each database. A killed agent's file is left as a killed process leaves it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from edge_agent.storage.database import (
    RETRY_S,
    SOON_S,
    Database,
    DatabaseOperation,
    DatabaseTrouble,
    DoneCallback,
    WriteUnit,
    report_results,
)

T = TypeVar("T")


class InlineWriter:
    """Writer of all databases of a process, on its event loop: two timers for all of them."""

    def __init__(self) -> None:
        self._waiting: dict[LiveDatabase, None] = {}
        self._held: list[LiveDatabase] = []

    def submit(self, database: "LiveDatabase") -> None:
        """Let the database write in the next turn of the event loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write_all)
        self._waiting[database] = None

    def submit_later(self, database: "LiveDatabase") -> None:
        """Let the database write what it holds back within `SOON_S`, with all others that do."""
        if not self._held:
            asyncio.get_running_loop().call_later(SOON_S, self._flush_held)
        self._held.append(database)

    def _flush_held(self) -> None:
        held, self._held = self._held, []
        for database in held:
            database.flush()

    def _write_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        try:
            while waiting:
                waiting.popitem()[0].write_queued()
        finally:
            for database in waiting:
                self.submit(database)


class LiveDatabase(Database):
    """Database of one life of an agent. `writer`: None = one of its own."""

    _synced = False

    def __init__(self, path: Path, writer: InlineWriter | None = None) -> None:
        super().__init__(path)
        self.pace = None  # this writer is on the event loop anyway
        self._writer = writer or InlineWriter()
        self._dead = self._running = False

    @property
    def is_alive(self) -> bool:
        """Whether it writes: until a statement has failed in a way that ends a device's writer thread."""
        return self._running

    def write(
        self,
        ops: tuple[DatabaseOperation, ...],
        done: DoneCallback | None = None,
        *,
        must: bool = False,
        soon: bool = False,
    ) -> None:
        """Queue writes as the product does; nothing once the agent was killed."""
        if not self._dead:
            super().write(ops, partial(self._told, done) if done is not None else None, must=must, soon=soon)

    def read(self, op: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Read as the product does; a future that never completes once the agent was killed."""
        if self._dead:
            return asyncio.get_running_loop().create_future()  # its caller was killed: the future never completes
        return super().read(op)

    def write_queued(self) -> None:
        """Commit what is queued, and report it."""
        if not self._running or not (self._queue.qsize() or self._kept):
            return
        self._queue.put(())  # what was kept is tried again even if nothing else is queued
        self._running = False  # an error that is no database's ends a device's writer; its watchdog starts another
        results, _ = self._write_waiting()
        self._running = True
        report_results(results)
        if self._kept:
            asyncio.get_running_loop().call_later(RETRY_S, self._writer.submit, self)

    def mark_dead(self) -> None:
        """Its agent was killed: report nothing more. What was queued may still be written."""
        self._dead = True
        self._soon.clear()

    async def close(self) -> None:
        """Close as the product does; after a kill no clean end is recorded."""
        self.flush()
        self.write_queued()
        self._running = False
        if not self._dead:
            await super().close()
        elif self._db is not None:
            self._db.close()
            self._db = None

    def _start_writer(self) -> None:
        self._running = True
        self._writer.submit(self)

    def _enqueue_units(self, *units: WriteUnit) -> None:
        super()._enqueue_units(*units)
        self._writer.submit(self)

    def _flush_soon(self) -> None:
        self._writer.submit_later(self)

    def _told(self, done: DoneCallback, trouble: DatabaseTrouble | None) -> None:
        if not self._dead:
            done(trouble)
