"""Database of one agent of a live run: the product's own file and writer thread, without syncing commits to disk.

Rule: a run never outlives a power cut, so `synchronous=normal` loses nothing that its report counts. A killed agent's
file is left as a killed process leaves it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from edge_agent.storage.database import Database, DatabaseOperation, DatabaseTrouble, DoneCallback, StoredState

T = TypeVar("T")


class LiveDatabase(Database):
    """Database of one life of an agent."""

    _dead = False

    async def open(self) -> StoredState:
        """Open or make the file, as the product does."""
        stored = await super().open()
        await self.read(_disable_sync)
        return stored

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

    def mark_dead(self) -> None:
        """Its agent was killed: write and report nothing more. What the writer has may still be written."""
        self._dead = True
        self._soon.clear()

    async def close(self) -> None:
        """Close as the product does; after a kill no clean end is recorded."""
        if not self._dead:
            await super().close()
            return
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        if self._db is not None:
            self._db.close()
            self._db = None

    def _told(self, done: DoneCallback, trouble: DatabaseTrouble | None) -> None:
        if not self._dead:
            done(trouble)


def _disable_sync(db: sqlite3.Connection) -> None:
    db.execute("pragma synchronous=normal")
