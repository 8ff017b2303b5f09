"""agent.db and its writer thread, which commits waiting units in groups and reports each result to the event loop.

Rule: a unit is written whole or not at all, and its `done` is called after the commit. A unit that the disk refuses now
fails, unless it is marked `must`: then it is kept in memory and retried until the disk takes it.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from edge_agent.storage import accounts, answers, ledger, outbox, schema, tables
from edge_agent.storage.outbox import OutboxRow
from edge_agent.storage.schema import Opened, Past, connect
from policies.decisions.budget import Spend

GROUP_AT_MOST = 512
RETRY_S = 1.0
SOON_S = 0.005

Op = Callable[[sqlite3.Connection], object]
Done = Callable[["Trouble | None"], None]
T = TypeVar("T")


class Trouble(StrEnum):
    """Why the database cannot write now. Each is an alarm; the agent goes on answering locally."""

    FULL = "full"
    READ_ONLY = "read_only"
    DAMAGED = "damaged"
    BUSY = "busy"
    IO = "io"
    DEAD = "dead"  # the writer thread died under this unit
    DEFECT = "defect"  # the statement itself is invalid
    OVERDRAWN = "overdrawn"  # an account holds less than this unit charges; the disk is fine


class Unit(NamedTuple):
    """Operations of one transaction.

    `must`: keep it until it is written. `future`: set for a read; gets the value of its single operation.
    """

    ops: tuple[Op, ...]
    done: Done | None = None
    must: bool = False
    future: "asyncio.Future[Any] | None" = None


class Stored(NamedTuple):
    """What agent.db held when it was opened.

    `damaged`: the name an unusable database was renamed to, "" if there was none. `floor_ms`, `sure_ms`: the clock's
    lower bounds in hub milliseconds.
    """

    epoch: int
    next_seq: int
    spend: Spend
    floor_ms: int
    sure_ms: int
    rows: list[OutboxRow]
    damaged: str
    gap: bool  # the write-ahead log was lost: seqs jump, so that none is used twice
    unsent: frozenset[int] = frozenset()  # questions recorded in the ledger and never sent
    past: Past = Past.SAME  # whether the marker file matches this database
    notice: int = 0  # counter of the newest deny-all notice


class Database:
    """agent.db: one file, one connection, one writer thread.

    Every public method is called on the event loop; operations run in the writer thread, in the order in which they
    were passed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: Trouble | None = None
        self.commits = 0
        self._queue: queue.SimpleQueue[tuple[Unit, ...] | None] = queue.SimpleQueue()
        self._soon: list[Unit] = []  # held back until the next unit or a timer
        self._in_hand: deque[Unit] = deque()  # taken and not yet reported
        self._kept: deque[Unit] = deque()  # `must`, waiting for the disk
        self._db: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> Stored:
        """Open or create the file and start the writer; returns what it held.

        ExitError(DATABASE) if a newer version wrote it; sqlite3.Error if it cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        try:
            opened = await asyncio.to_thread(connect, self.path)
            stored = await asyncio.to_thread(stored_in, opened, self.path)
        except sqlite3.Error as error:
            self.trouble = trouble_of(error)
            raise
        self.trouble = None
        self._db = opened.db
        self._start()
        return stored

    @property
    def is_open(self) -> bool:
        """Whether a connection is open."""
        return self._db is not None

    @property
    def waiting(self) -> int:
        """Number of units that are not committed yet."""
        return len(self._soon) + self._queue.qsize() + len(self._in_hand) + len(self._kept)

    @property
    def kept(self) -> int:
        """Number of units that the disk refused and that are retried."""
        return len(self._kept)

    @property
    def alive(self) -> bool:
        """Whether the writer thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def write(self, ops: tuple[Op, ...], done: Done | None = None, *, must: bool = False, soon: bool = False) -> None:
        """Queue one unit for the next group commit.

        Without an open database only `must` units are kept; the others fail with IO at once. `soon`: nobody waits for
        it, so it may be held back up to 5 ms to share a commit with one that somebody waits for.
        """
        unit = Unit(ops, done, must)
        if self._db is None and not must:
            if done is not None:
                done(Trouble.IO)
        elif not soon:
            self._put(unit)
        else:
            self._soon.append(unit)
            if len(self._soon) == 1:
                asyncio.get_running_loop().call_later(SOON_S, self.flush)

    def read(self, op: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """The operation's value, after everything queued before it. sqlite3.Error if it fails."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._db is None:
            future.set_exception(sqlite3.OperationalError("the database is not open"))
        else:
            self._put(Unit((op,), future=future))
        return future

    def flush(self) -> None:
        """Pass units that were held back to the writer now."""
        self._put()

    def _put(self, *units: Unit) -> None:
        # put as one group: the writer would wake for the first unit and commit it alone
        group = (*self._soon, *units)
        self._soon.clear()
        if group:
            self._queue.put(group)

    async def close(self) -> None:
        """Write what waits, record the clean end, close the file."""
        self.flush()
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                tables.put(self._db, "clean", 1)
            self._db.close()
            self._db = None

    def revive(self) -> None:
        """Restart the writer thread after it died.

        Its transaction is rolled back and its units fail; those marked `must` are tried once more.
        """
        if self._db is None or self.alive:
            return
        with contextlib.suppress(sqlite3.Error):
            self._db.rollback()
        held, self._in_hand = self._in_hand, deque()
        self._kept.extend(unit._replace(must=False) for unit in held if unit.must)
        _report([(unit, Trouble.DEAD, None) for unit in held if not unit.must])
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="agent-db-writer", daemon=True)
        self._thread.start()

    # In the writer thread

    def _work(self) -> None:
        """Main loop of the writer thread."""
        while True:
            units, more = self._take()
            self._in_hand.extend(units)
            results = self._kept_again() + self._serve(units)
            self._in_hand.clear()
            self._tell(results)
            if not more:
                return

    def _take(self) -> tuple[list[Unit], bool]:
        """Wait for units (1 s at most while some are kept), then drain the queue. False: it was asked to end."""
        units: list[Unit] = []
        try:
            group = self._queue.get(timeout=RETRY_S if self._kept else None)
            while group is not None:
                units += group
                if len(units) >= GROUP_AT_MOST:
                    break
                group = self._queue.get_nowait()
        except queue.Empty:
            return units, True
        return units, group is not None

    def _serve(self, units: list[Unit]) -> "list[_Result]":
        """Commit writes in groups and run reads in between, so that a read sees all that came before it."""
        results: list[_Result] = []
        group: list[Unit] = []
        for unit in units:
            if unit.future is None:
                group.append(unit)
                continue
            results += self._commit(group)
            group = []
            results.append(self._value(unit))
        return results + self._commit(group)

    def _commit(self, units: list[Unit]) -> "list[_Result]":
        """Commit units as one transaction; if that fails, each alone."""
        if not units:
            return []
        trouble = self._try(units)
        if trouble is None:
            return [(unit, None, None) for unit in units]
        if len(units) > 1:  # one bad unit must not fail its neighbours
            return [result for unit in units for result in self._commit([unit])]
        if units[0].must and trouble is not Trouble.DEFECT:
            self._kept.append(units[0])
            return []
        return [(units[0], trouble, None)]

    def _kept_again(self) -> "list[_Result]":
        """Retry the kept units."""
        if not self._kept:
            return []
        again, self._kept = list(self._kept), deque()
        return self._commit(again)

    def _try(self, units: list[Unit]) -> Trouble | None:
        db = self._connection()
        try:
            db.execute("begin immediate")
            for unit in units:
                for op in unit.ops:
                    op(db)
            db.execute("commit")
        except _REFUSALS as error:
            trouble = trouble_of(error)
            self.trouble = None if trouble is Trouble.OVERDRAWN else trouble
            with contextlib.suppress(sqlite3.Error):
                db.rollback()
            return trouble
        self.commits += 1
        self.trouble = None
        return None

    def _value(self, unit: Unit) -> "_Result":
        db = self._connection()
        try:
            return unit, None, unit.ops[0](db)
        except _REFUSALS as error:
            return unit, trouble_of(error), error

    def _connection(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def _tell(self, results: "list[_Result]") -> None:
        if results and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended: nobody waits any more
                self._loop.call_soon_threadsafe(_report, results)


# sqlite3 raises the last three for values it cannot bind (an integer of 65 bits, a lone surrogate)
_REFUSALS = (sqlite3.Error, OverflowError, TypeError, ValueError)
_Result = tuple[Unit, Trouble | None, object]


def _report(results: list[_Result]) -> None:
    """Call back with results, on the event loop."""
    for unit, trouble, value in results:
        if unit.future is None:
            if unit.done is not None:
                unit.done(trouble)
        elif unit.future.done():
            continue
        elif trouble is None:
            unit.future.set_result(value)
        else:
            unit.future.set_exception(value if isinstance(value, sqlite3.Error) else sqlite3.OperationalError(trouble))


def trouble_of(error: Exception) -> Trouble:
    """Classify an exception of SQLite."""
    if isinstance(error, accounts.OverdrawnError):
        return Trouble.OVERDRAWN
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return {
        sqlite3.SQLITE_FULL: Trouble.FULL,
        sqlite3.SQLITE_READONLY: Trouble.READ_ONLY,
        sqlite3.SQLITE_PERM: Trouble.READ_ONLY,
        sqlite3.SQLITE_CORRUPT: Trouble.DAMAGED,
        sqlite3.SQLITE_NOTADB: Trouble.DAMAGED,
        sqlite3.SQLITE_BUSY: Trouble.BUSY,
        sqlite3.SQLITE_LOCKED: Trouble.BUSY,
        sqlite3.SQLITE_IOERR: Trouble.IO,
        sqlite3.SQLITE_CANTOPEN: Trouble.IO,
        sqlite3.SQLITE_NOMEM: Trouble.IO,
    }.get(code, Trouble.DEFECT)


def stored_in(opened: Opened, path: Path) -> Stored:
    """Read the state from a database just opened, and check its marker file."""
    db, next_seq, past = opened.db, ledger.next_seq(opened.db), schema.look(opened.db, path)
    if past is Past.SAME and not opened.gap:
        schema.write(db, path)
    return Stored(
        epoch=tables.epoch(db), next_seq=next_seq, spend=accounts.stored(db),
        floor_ms=tables.get(db, "floor_ms", 0), sure_ms=tables.get(db, "sure_ms", 0),
        rows=outbox.everything(db), damaged=opened.damaged, gap=opened.gap, unsent=ledger.take_unsent(db),
        past=Past.LOST if opened.gap else past, notice=tables.get(db, "notice", 0),
    )  # fmt: skip


def prune(db: sqlite3.Connection, limits: tuple[int, int, int]) -> int:
    """Delete the oldest rows of answers, outcomes and ledger beyond these limits (row counts, in that order).

    Returns how many answers were deleted.
    """
    answers_max, outcomes_max, ledger_max = limits
    ledger.prune(db, ledger_max)
    accounts.prune(db)
    return answers.prune(db, answers_max, outcomes_max)
