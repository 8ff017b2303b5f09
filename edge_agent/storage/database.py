"""agent.db and its writers, which commit waiting units in groups and report each result to the event loop.

Rule: a unit is written whole or not at all, and its `done` is called after the commit. A unit that the disk refuses now
fails, unless it is marked `must`: then it is kept in memory and retried until the disk takes it.
Rule: the writer is a thread. Only while it has nothing to do, and the disk is known to be quick, the event loop commits
itself; whatever goes wrong there is rolled back and given to the thread.
"""

import asyncio
import contextlib
import errno
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from edge_agent.storage import accounts, answers, ledger, tables
from edge_agent.storage.commit_pace import CommitPace
from edge_agent.storage.schema import open_connection
from edge_agent.storage.stored_state import StoredState, read_stored_state

GROUP_AT_MOST = 512
RETRY_S = 1.0
SOON_S = 0.005
SIDE_FILES_BYTES = 65_536

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


class Database:
    """agent.db: one file, one connection, one writer thread.

    Every public method is called on the event loop; operations run in the writer thread or between two callbacks of the
    loop, in the order in which they were passed. `pace`: tells when the loop may; None = never. `inline_commits`: how
    many it has made.
    """

    _synced = True  # those of a live simulation, which ends before a power cut, sync nothing

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: DatabaseTrouble | None = None
        self.commits = self.inline_commits = 0
        self.pace: CommitPace | None = CommitPace(time.perf_counter())
        self._here: list[WriteUnit] = []  # for the event loop to commit, at the end of this turn
        self._handed = 0  # units that the writer thread has not reported yet
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
            try:
                stored = await asyncio.to_thread(read_stored_state, opened, self.path)
            except BaseException:
                opened.db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            self.trouble = self._classify(error)
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
        return len(self._soon) + len(self._here) + self._queue.qsize() + len(self._in_hand) + len(self._kept)

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
        if not group:
            return
        if not self._may_wait() or any(unit.future is not None for unit in group):
            self._hand_over(group)
            return
        if not self._here:
            asyncio.get_running_loop().call_soon(self._commit_here)
        self._here += group

    def _may_wait(self) -> bool:
        """Whether the event loop may commit: the thread has nothing to do, and the disk is quick."""
        if self.pace is None or self._db is None or self._handed:
            return False
        return bool(self._here) or self.pace.may_wait(time.perf_counter())

    def _hand_over(self, group: tuple[WriteUnit, ...]) -> None:
        """Give units to the writer thread, after those that the event loop would have committed."""
        group, self._here = (*self._here, *group), []
        self._handed += len(group)
        self._queue.put(group)

    def _commit_here(self) -> None:
        """Commit on the event loop; what fails is as if it had not been tried, and the writer thread's."""
        units = tuple(self._here)
        if not units:
            return
        committed = False
        try:
            committed = self._try_commit(units, waited=True) is None
        finally:
            if not committed:
                with contextlib.suppress(sqlite3.Error):
                    self._connection().rollback()
                self._hand_over(())
        if committed:
            self._here = []
            self.inline_commits += 1
            report_results([(unit, None, None) for unit in units])

    def _report_handed(self, results: "list[UnitResult]") -> None:
        self._handed -= len(results)
        report_results(results)

    async def close(self) -> None:
        """Write what waits, record the clean end, close the file."""
        self.flush()
        if self._here:
            self._hand_over(())
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
        self._report_handed([(unit, DatabaseTrouble.DEAD, None) for unit in held if not unit.must])
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

    def _try_commit(self, units: Iterable[WriteUnit], *, waited: bool = False) -> DatabaseTrouble | None:
        """Commit units as one transaction; what is wrong if nothing was written. `waited`: by the event loop."""
        db, began, took_s = self._connection(), time.perf_counter(), inf
        try:
            db.execute("begin immediate")
            for unit in units:
                for op in unit.ops:
                    op(db)
            db.execute("commit")
            took_s = time.perf_counter() - began
        except _SQL_ERRORS as error:
            trouble = self._classify(error)
            self.trouble = None if trouble is DatabaseTrouble.OVERDRAWN else trouble
            with contextlib.suppress(sqlite3.Error):
                db.rollback()
            return trouble
        finally:
            if self.pace is not None:
                self.pace.record(took_s, time.perf_counter(), waited=waited)
        self.commits += 1
        self.trouble = None
        return None

    def _classify(self, error: Exception) -> DatabaseTrouble:
        """Classify an exception. Where its side files find no room, SQLite says only that reading or writing failed."""
        trouble = classify_error(error)
        return DatabaseTrouble.FULL if trouble is DatabaseTrouble.IO and _has_no_room(self.path.parent) else trouble

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
                self._loop.call_soon_threadsafe(self._report_handed, results)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# sqlite3 raises the middle three for values it cannot bind (an integer of 65 bits, a lone surrogate); OSError: the
# marker beside the database
_SQL_ERRORS = (sqlite3.Error, OverflowError, TypeError, ValueError, OSError)
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
    if isinstance(error, OSError):
        return DatabaseTrouble.FULL if error.errno in _NO_ROOM else DatabaseTrouble.IO
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


def _has_no_room(folder: Path) -> bool:
    """Whether the disk of a folder has less room than a database's side files take."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return False
    return facts.f_bavail * facts.f_frsize < SIDE_FILES_BYTES


def prune_tables(db: sqlite3.Connection, limits: tuple[int, int, int]) -> int:
    """Delete the oldest rows of answers, outcomes and ledger beyond these limits (row counts, in that order).

    Returns how many answers were deleted.
    """
    answers_max, outcomes_max, ledger_max = limits
    ledger.prune_ledger(db, ledger_max)
    accounts.prune_periods(db)
    return answers.prune_answers(db, answers_max, outcomes_max)
