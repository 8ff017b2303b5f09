"""What an agent does now and then: the day, the time floor, pruning, and a database that could not be opened."""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from edge_agent.core.commands import Memory
from edge_agent.inference.merging_requests_callers import DataClasses
from edge_agent.runtime.executor import CommandExecutor
from edge_agent.runtime.merging_maintenance_guard import Guard
from edge_agent.storage import merging_tables_meta
from edge_agent.storage.database import Stored, prune
from edge_agent.storage.merging_schema_marker import Past
from edge_agent.system.merging_settings_settings import AgentSettings
from edge_agent.uplink.services import Parts


class Upkeep:
    """`opened`: told after a database was opened late. `alarms` are those of the database."""

    def __init__(self, parts: Parts, executor: CommandExecutor, guard: Guard, settings: AgentSettings) -> None:
        self._parts = parts
        self._executor = executor
        self._guard = guard
        self._settings = settings
        self.classes = DataClasses(parts.clock)
        self.alarms: set[str] = set()

    async def run(self, opened: Callable[[], Any]) -> None:
        """Until cancelled."""
        parts, s = self._parts, self._settings
        limits = (s.answers_max_rows, s.outcomes_max_rows, s.ledger_max_rows)
        while True:
            await asyncio.sleep(s.upkeep_s if parts.database.is_open else s.reopen_s)
            self.classes.clear()
            parts.core.on_day(parts.clock.day())
            self._executor.wake()
            if not parts.database.is_open:
                if await self.open():
                    opened()
                continue
            self.remember_time()
            try:
                parts.counts["answers_pruned"] += await parts.database.read(partial(prune, limits=limits))
            except sqlite3.Error:
                parts.counts["prune_failed"] += 1

    def remember_time(self) -> None:
        clock = self._parts.clock
        self._parts.database.write(
            (partial(merging_tables_meta.raise_floor, floor_ms=clock.floor_ms, sure_ms=clock.sure_ms()),)
        )

    async def open(self) -> bool:
        """Take up what the database holds. False if it cannot be opened now.

        ExitError(DATABASE) if a newer one wrote it.
        """
        parts = self._parts
        try:
            stored = await parts.database.open()
        except (sqlite3.Error, OSError):
            parts.counts["database_unusable"] += 1
            return False
        parts.clock.raise_floor(stored.floor_ms, stored.sure_ms)
        self.alarms |= ({"database_damaged"} if stored.damaged else set()) | ({"log_lost"} if stored.gap else set())
        self._guard.look(at_once=True)
        self._executor.execute(parts.core.restore(self._memory(stored), parts.clock.now()))
        return True

    def _memory(self, stored: Stored) -> Memory:
        """For the core; what belongs to its open questions in memory is there before it speaks of them."""
        pending, rows = self._parts.pending, []
        pending.keep_unsent(stored.unsent)
        for row in stored.rows:
            taken, origin = self._parts.sealer.reopen(row)
            pending.add(row, origin)
            rows.append(taken)
        return Memory(
            epoch=stored.epoch, next_seq=stored.next_seq, rows=tuple(rows), notice=stored.notice,
            spend=msgspec.structs.replace(stored.spend, known=stored.past is not Past.LOST),
            mirrored=stored.past is Past.SAME,
        )  # fmt: skip
