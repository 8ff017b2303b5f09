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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from edge_agent.storage import accounts, answers, ledger, outbox, schema, tables
from edge_agent.storage.outbox import OutboxRow
from edge_agent.storage.schema import MarkerState, OpenedDatabase, open_connection
from policies.decisions.budget import BudgetSpend

GROUP_AT_MOST = 512
RETRY_S = 1.0
SOON_S = 0.005

DatabaseOperation = Callable[[sqlite3.Connection], object]
DoneCallback = Callable[["DatabaseTrouble | None"], None]
T = TypeVar("T")


class DatabaseTrouble(StrEnum):
    """Why the database cannot write now. Each is an alarm; the agent goes on answering locally."""

    FULL = "full"
    READ_ONLY = "read_only"
    DAMAGED = "damaged"
    BUSY = "busy"
    IO = "io"
    DEAD = "dead"  # the writer thread died under this unit
    DEFECT = "defect"  # the statement itself is invalid
    OVERDRAWN = "overdrawn"  # an account holds less than this unit charges; the disk is fine


class WriteUnit(NamedTuple):
    """Operations of one transaction.

    `must`: keep it until it is written. `future`: set for a read; gets the value of its single operation.
    """

    ops: tuple[DatabaseOperation, ...]
    done: DoneCallback | None = None
    must: bool = False
    future: "asyncio.Future[Any] | None" = None


class StoredState(NamedTuple):
    """What agent.db held when it was opened.

    `damaged`: the name an unusable database was renamed to, "" if there was none. `floor_ms`, `sure_ms`: the clock's
    lower bounds in hub milliseconds.
    """

    epoch: int
    next_seq: int
    spend: BudgetSpend
    floor_ms: int
    sure_ms: int
    rows: list[OutboxRow]
    damaged: str
    gap: bool  # the write-ahead log was lost: seqs jump, so that none is used twice
    unsent: frozenset[int] = frozenset()  # questions recorded in the ledger and never sent
    past: MarkerState = MarkerState.SAME  # whether the marker file matches this database
    notice: int = 0  # counter of the newest deny-all notice


class Database:
    """agent.db: one file, one connection, one writer thread.

    Every public method is called on the event loop; operations run in the writer thread, in the order in which they
    were passed.
    """

    _synced = True  # those of a live simulation, which ends before a power cut, sync nothing

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: DatabaseTrouble | None = None
        self.commits = 0
        self._queue: queue.SimpleQueue[tuple[WriteUnit, ...] | None] = queue.SimpleQueue()
        self._soon: list[WriteUnit] = []  # held back until the next unit or a timer
        self._soon_timer: asyncio.TimerHandle | None = None
        self._in_hand: deque[WriteUnit] = deque()  # taken and not yet reported
        self._kept: deque[WriteUnit] = deque()  # `must`, waiting for the disk
        self._db: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> StoredState:
        """Open or create the file and start the writer; returns what it held.

        ExitError(DATABASE) if a newer version wrote it; sqlite3.Error if it cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        try:
            opened = await asyncio.to_thread(partial(open_connection, self.path, synced=self._synced))
            stored = await asyncio.to_thread(read_stored_state, opened, self.path)
        except sqlite3.Error as error:
            self.trouble = classify_error(error)
            raise
        self.trouble = None
        self._db = opened.db
        self._start_writer()
        return stored

    @property
    def is_open(self) -> bool:
        """Whether a connection is open."""
        return self._db is not None

    @property
    def waiting_units(self) -> int:
        """Number of units that are not committed yet."""
        return len(self._soon) + self._queue.qsize() + len(self._in_hand) + len(self._kept)

    @property
    def kept_units(self) -> int:
        """Number of units that the disk refused and that are retried."""
        return len(self._kept)

    @property
    def is_alive(self) -> bool:
        """Whether the writer thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def write(
        self,
        ops: tuple[DatabaseOperation, ...],
        done: DoneCallback | None = None,
        *,
        must: bool = False,
        soon: bool = False,
    ) -> None:
        """Queue one unit for the next group commit.

        Without an open database only `must` units are kept; the others fail with IO at once. `soon`: nobody waits for
        it, so it may be held back up to 5 ms to share a commit with one that somebody waits for.
        """
        unit = WriteUnit(ops, done, must)
        if self._db is None and not must:
            if done is not None:
                done(DatabaseTrouble.IO)
        elif not soon:
            self._enqueue_units(unit)
        else:
            self._soon.append(unit)
            if len(self._soon) == 1:
                self._flush_soon()

    def read(self, op: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """The operation's value, after everything queued before it. sqlite3.Error if it fails."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._db is None:
            future.set_exception(sqlite3.OperationalError("the database is not open"))
        else:
            self._enqueue_units(WriteUnit((op,), future=future))
        return future

    def _flush_soon(self) -> None:
        self._soon_timer = asyncio.get_running_loop().call_later(SOON_S, self.flush)

    def flush(self) -> None:
        """Pass units that were held back to the writer now."""
        self._enqueue_units()

    def _enqueue_units(self, *units: WriteUnit) -> None:
        # put as one group: the writer would wake for the first unit and commit it alone
        group = (*self._soon, *units)
        self._soon.clear()
        if self._soon_timer is not None:  # else it would wake the event loop for nothing
            self._soon_timer.cancel()
            self._soon_timer = None
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
                tables.write_value(self._db, "clean", 1)
            self._db.close()
            self._db = None

    def restart_writer(self) -> None:
        """Restart the writer thread after it died.

        Its transaction is rolled back and its units fail; those marked `must` are tried once more.
        """
        if self._db is None or self.is_alive:
            return
        with contextlib.suppress(sqlite3.Error):
            self._db.rollback()
        held, self._in_hand = self._in_hand, deque()
        self._kept.extend(unit._replace(must=False) for unit in held if unit.must)
        report_results([(unit, DatabaseTrouble.DEAD, None) for unit in held if not unit.must])
        self._start_writer()

    def _start_writer(self) -> None:
        self._thread = threading.Thread(target=self._run_writer, name="agent-db-writer", daemon=True)
        self._thread.start()

    # In the writer thread

    def _run_writer(self) -> None:
        """Main loop of the writer thread."""
        more = True
        while more:
            results, more = self._write_waiting()
            self._post_results(results)

    def _write_waiting(self) -> "tuple[list[UnitResult], bool]":
        """Wait for units and commit all there are, those kept before them first. False: it was asked to end."""
        units, more = self._take_units()
        self._in_hand.extend(units)
        results = self._retry_kept() + self._process_units(units)
        self._in_hand.clear()
        return results, more

    def _take_units(self) -> tuple[list[WriteUnit], bool]:
        """Wait for units (1 s at most while some are kept), then drain the queue. False: it was asked to end."""
        units: list[WriteUnit] = []
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

    def _process_units(self, units: list[WriteUnit]) -> "list[UnitResult]":
        """Commit writes in groups and run reads in between, so that a read sees all that came before it."""
        results: list[UnitResult] = []
        group: list[WriteUnit] = []
        for unit in units:
            if unit.future is None:
                group.append(unit)
                continue
            results += self._commit_units(group)
            group = []
            results.append(self._run_read(unit))
        return results + self._commit_units(group)

    def _commit_units(self, units: list[WriteUnit]) -> "list[UnitResult]":
        """Commit units as one transaction; if that fails, each alone."""
        if not units:
            return []
        trouble = self._try_commit(units)
        if trouble is None:
            return [(unit, None, None) for unit in units]
        if len(units) > 1:  # one bad unit must not fail its neighbours
            return [result for unit in units for result in self._commit_units([unit])]
        if units[0].must and trouble is not DatabaseTrouble.DEFECT:
            self._kept.append(units[0])
            return []
        return [(units[0], trouble, None)]

    def _retry_kept(self) -> "list[UnitResult]":
        """Retry the kept units."""
        if not self._kept:
            return []
        again, self._kept = list(self._kept), deque()
        return self._commit_units(again)

    def _try_commit(self, units: list[WriteUnit]) -> DatabaseTrouble | None:
        db = self._connection()
        try:
            db.execute("begin immediate")
            for unit in units:
                for op in unit.ops:
                    op(db)
            db.execute("commit")
        except _SQL_ERRORS as error:
            trouble = classify_error(error)
            self.trouble = None if trouble is DatabaseTrouble.OVERDRAWN else trouble
            with contextlib.suppress(sqlite3.Error):
                db.rollback()
            return trouble
        self.commits += 1
        self.trouble = None
        return None

    def _run_read(self, unit: WriteUnit) -> "UnitResult":
        db = self._connection()
        try:
            return unit, None, unit.ops[0](db)
        except _SQL_ERRORS as error:
            return unit, classify_error(error), error

    def _connection(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def _post_results(self, results: "list[UnitResult]") -> None:
        if results and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended: nobody waits any more
                self._loop.call_soon_threadsafe(report_results, results)


# sqlite3 raises the last three for values it cannot bind (an integer of 65 bits, a lone surrogate)
_SQL_ERRORS = (sqlite3.Error, OverflowError, TypeError, ValueError)
UnitResult = tuple[WriteUnit, DatabaseTrouble | None, object]


def report_results(results: list[UnitResult]) -> None:
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


def classify_error(error: Exception) -> DatabaseTrouble:
    """Classify an exception of SQLite."""
    if isinstance(error, accounts.OverdrawnError):
        return DatabaseTrouble.OVERDRAWN
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return {
        sqlite3.SQLITE_FULL: DatabaseTrouble.FULL,
        sqlite3.SQLITE_READONLY: DatabaseTrouble.READ_ONLY,
        sqlite3.SQLITE_PERM: DatabaseTrouble.READ_ONLY,
        sqlite3.SQLITE_CORRUPT: DatabaseTrouble.DAMAGED,
        sqlite3.SQLITE_NOTADB: DatabaseTrouble.DAMAGED,
        sqlite3.SQLITE_BUSY: DatabaseTrouble.BUSY,
        sqlite3.SQLITE_LOCKED: DatabaseTrouble.BUSY,
        sqlite3.SQLITE_IOERR: DatabaseTrouble.IO,
        sqlite3.SQLITE_CANTOPEN: DatabaseTrouble.IO,
        sqlite3.SQLITE_NOMEM: DatabaseTrouble.IO,
    }.get(code, DatabaseTrouble.DEFECT)


def read_stored_state(opened: OpenedDatabase, path: Path) -> StoredState:
    """Read the state from a database just opened, and check its marker file."""
    db, next_seq, past = opened.db, ledger.read_next_seq(opened.db), schema.check_marker(opened.db, path)
    if past is MarkerState.SAME and not opened.gap:
        schema.write_marker(db, path)
    return StoredState(
        epoch=tables.read_epoch(db), next_seq=next_seq, spend=accounts.read_spend(db),
        floor_ms=tables.read_value(db, "floor_ms", 0), sure_ms=tables.read_value(db, "sure_ms", 0),
        rows=outbox.read_rows(db), damaged=opened.damaged, gap=opened.gap, unsent=ledger.take_unsent(db),
        past=MarkerState.LOST if opened.gap else past, notice=tables.read_value(db, "notice", 0),
    )  # fmt: skip


def prune_tables(db: sqlite3.Connection, limits: tuple[int, int, int]) -> int:
    """Delete the oldest rows of answers, outcomes and ledger beyond these limits (row counts, in that order).

    Returns how many answers were deleted.
    """
    answers_max, outcomes_max, ledger_max = limits
    ledger.prune_ledger(db, ledger_max)
    accounts.prune_periods(db)
    return answers.prune_answers(db, answers_max, outcomes_max)
