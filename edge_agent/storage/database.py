"""agent.db and its one writer: a thread that takes what waits, commits it as one group, and reports once.

Law: a unit is written whole or not at all, and `done` is told after the commit. What the disk will not take now is told
apart from what it must take later: a unit with `must` is kept in memory and tried again until the disk takes it.
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
    """Why the database takes nothing now. Each is an alarm; the agent goes on answering locally."""

    FULL = "full"
    READ_ONLY = "read_only"
    DAMAGED = "damaged"
    BUSY = "busy"
    IO = "io"
    DEAD = "dead"  # the writer thread died under this unit
    DEFECT = "defect"  # the statement itself is wrong
    OVERDRAWN = "overdrawn"  # an account holds less than this unit charges; the disk is well


class Unit(NamedTuple):
    """`ops` in one transaction. `must`: keep it until it is written. `answer`: a read's future gets the op's value."""

    ops: tuple[Op, ...]
    done: Done | None = None
    must: bool = False
    future: "asyncio.Future[Any] | None" = None


class Stored(NamedTuple):
    """What a start finds. `damaged`: the name an unusable database was put aside under, "" if there was none."""

    epoch: int
    next_seq: int
    spend: Spend
    floor_ms: int
    sure_ms: int
    rows: list[OutboxRow]
    damaged: str
    gap: bool  # the write-ahead log was lost: seqs jump, so that none is used twice
    unsent: frozenset[int] = frozenset()  # questions whose newest ledger entry no bytes followed yet
    past: Past = Past.SAME  # what is known of the spending before
    notice: int = 0  # counter of the newest deny-all notice


class Database:
    """One file, one connection, one writer thread. Every method is called on the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: Trouble | None = None
        self.commits = 0
        self._queue: queue.SimpleQueue[tuple[Unit, ...] | None] = queue.SimpleQueue()
        self._soon: list[Unit] = []  # waits for company: the next unit, or a timer
        self._in_hand: deque[Unit] = deque()  # taken and not yet reported
        self._kept: deque[Unit] = deque()  # `must`, waiting for the disk
        self._db: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> Stored:
        """Open or make the file and start the writer.

        ExitError(DATABASE) if newer; sqlite3.Error if it cannot be used.
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
        return self._db is not None

    @property
    def waiting(self) -> int:
        """Units that no commit has covered yet."""
        return len(self._soon) + self._queue.qsize() + len(self._in_hand) + len(self._kept)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, ops: tuple[Op, ...], done: Done | None = None, *, must: bool = False, soon: bool = False) -> None:
        """One unit, grouped with what else waits. Without an open database only `must` is kept; the rest is told IO.

        `soon`: nobody waits for it, so it may wait a moment for a commit that somebody does wait for.
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
        """The op's value, after everything that was handed over before it. sqlite3.Error if it fails."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._db is None:
            future.set_exception(sqlite3.OperationalError("the database is not open"))
        else:
            self._put(Unit((op,), future=future))
        return future

    def flush(self) -> None:
        """What waits for company waits no longer."""
        self._put()

    def _put(self, *units: Unit) -> None:
        # one hand-over: the writer would wake for the first unit and commit it alone
        group = (*self._soon, *units)
        self._soon.clear()
        if group:
            self._queue.put(group)

    async def close(self) -> None:
        """Write what waits, note the clean end, release the file."""
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
        """After the writer died: undo what it held, fail those units (`must` ones get one more try), start another."""
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
        while True:
            units, more = self._take()
            self._in_hand.extend(units)
            results = self._kept_again() + self._serve(units)
            self._in_hand.clear()
            self._tell(results)
            if not more:
                return

    def _take(self) -> tuple[list[Unit], bool]:
        """Wait for a unit (not for ever, if some are kept), then drain. False: it was asked to end."""
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
        """Writes in groups; a read sees all that came before it."""
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
        if not units:
            return []
        trouble = self._try(units)
        if trouble is None:
            return [(unit, None, None) for unit in units]
        if len(units) > 1:  # one bad unit must not take its neighbours along
            return [result for unit in units for result in self._commit([unit])]
        if units[0].must and trouble is not Trouble.DEFECT:
            self._kept.append(units[0])
            return []
        return [(units[0], trouble, None)]

    def _kept_again(self) -> "list[_Result]":
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
            with contextlib.suppress(RuntimeError):  # the event loop has ended: nobody is left to tell
                self._loop.call_soon_threadsafe(_report, results)


# sqlite3 raises the last three for values it cannot bind (an integer of 65 bits, half a character)
_REFUSALS = (sqlite3.Error, OverflowError, TypeError, ValueError)
_Result = tuple[Unit, Trouble | None, object]


def _report(results: list[_Result]) -> None:
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
    """What a SQLite error means for the agent."""
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
    """What a start finds in a database just opened."""
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
    """Keep answers, outcomes and ledger inside so many rows. Returns how many answers were dropped."""
    answers_max, outcomes_max, ledger_max = limits
    ledger.prune(db, ledger_max)
    accounts.prune(db)
    return answers.prune(db, answers_max, outcomes_max)
