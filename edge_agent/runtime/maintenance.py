"""Periodic maintenance of an agent (day, time floor, pruning, a late database), and the monitor of its policy context.

Rule: a deny-all notice counts once it is on disk, and only a newer policy ends it; a hub's mirror of our spending can
raise what we count as spent, never lower it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from edge_agent.inference.requests import SampleAttributesCache
from edge_agent.question.commands import CoreSnapshot
from edge_agent.runtime.executor import CommandExecutor
from edge_agent.storage import schema, tables
from edge_agent.storage.answers import prune_erased
from edge_agent.storage.database import DatabaseTrouble, prune_tables
from edge_agent.storage.schema import MarkerState
from edge_agent.storage.stored_state import StoredState
from edge_agent.system.environment import DeviceAttributes, DeviceEnvironment
from edge_agent.system.settings import AgentSettings
from edge_agent.uplink.services import AgentServices
from policies.decisions import budget
from policies.model.policy import AccountUnit, Policy
from wire.process.files import list_set_aside
from wire.process.logging import JsonLog, safe_name, safe_text
from wire.protocol.messages import DenyAllNotice, SpendMirror
from wire.protocol.topics import extract_tenant

NOTICE_KEY = "notice"  # its key in the table `meta`
LEDGER_LOST = "ledger_lost"
BUDGET_SPENT = "budget_spent"
_CONTEXT_INTERVAL_S = 5.0


class PolicyContextMonitor:
    """Keeps the core's policy context current: device attributes, notices, and what is left of the budgets.

    Used on the event loop only. A provider of the agent's status.
    """

    def __init__(
        self, parts: AgentServices, executor: CommandExecutor, attributes: DeviceAttributes, device: str
    ) -> None:
        self._parts = parts
        self._core = parts.core
        self._executor = executor
        self._tenant = extract_tenant(device)
        self._around = DeviceEnvironment(attributes.with_tenant(self._tenant), parts.clock)
        self._looked_at = float("-inf")
        self._why = ""

    def use_settings(self, settings: AgentSettings) -> None:
        """Read the device's attributes as these settings say, from now on."""
        self._around = DeviceEnvironment(settings.attributes.with_tenant(self._tenant), self._parts.clock)
        self.refresh_context(at_once=True)

    def refresh_context(self, *, at_once: bool = False) -> None:
        """Read the device's attributes, energy meters and local time every few seconds, or `at_once`."""
        now = self._parts.clock.now()
        if at_once or now - self._looked_at >= _CONTEXT_INTERVAL_S:
            self._looked_at = now
            self._parts.energy.sample_meters(now)
            self._update_context(self._core.policy)

    def prepare_policy(self, policy: Policy | None) -> None:
        """Read the context for a policy that is about to come into force: it may name other time zones."""
        self._update_context(policy)

    def _update_context(self, policy: Policy | None) -> None:
        around = self._around.read_context(policy.zones if policy else ())
        self._executor.execute(self._core.on_context(around, self._parts.clock.now()))

    def on_deny_all(self, order: DenyAllNotice) -> bool:
        """Accept a hub's deny-all order.

        True if it is new: then our policy may be the reason, and a newer one may end it.
        """
        if not self._core.on_notice(order.counter):
            return False
        self._why = order.why
        self._parts.counts["notices"] += 1
        self._parts.database.write((partial(tables.raise_value, key=NOTICE_KEY, value=order.counter),), must=True)
        return True

    def on_mirror(self, mirror: SpendMirror) -> None:
        """Merge a hub's record of our spending. A mirror of another database epoch is ignored."""
        if mirror.epoch == self._core.epoch:
            self._parts.counts["mirrors"] += 1
            if mirror.complete and not self._core.permissions.spend.mirrored:
                path = self._parts.database.path
                self._parts.database.write((partial(schema.write_marker, path=path),), must=True)
            self._executor.execute(self._core.on_mirror(mirror, self._parts.clock.now()))

    # For the status

    def status_fields(self) -> dict[str, Any]:
        """JSON-able fields of the agent's status: policy, layers, budgets, notice and energy."""
        permissions, policy = self._core.permissions, self._core.policy
        accounts = policy.base.accounts if policy else ()
        left = budget.list_remaining(accounts, permissions.spend.current, permissions.day)
        return {
            "policy_name": policy.name if policy else "",
            "policy_version": policy.version if policy else 0,
            "policy_layers": [f"{part.layer}: {part.name}@{part.version}" for part in policy.layers] if policy else [],
            "budgets": {key: {"left": rest, "limit": limit} for key, (rest, limit) in left.items()},
            "notice": permissions.notice if permissions.notice_in_force else 0,
            "notice_why": self._why if permissions.notice_in_force else "",
            **self._parts.energy.status_fields(),
        }

    def alarms(self) -> set[str]:
        """`notice_in_force`, `budget_spent`, and `ledger_lost` while the spending of an earlier database is unknown."""
        permissions = self._core.permissions
        noticed = {"notice_in_force"} if permissions.notice_in_force else set()
        spent = {BUDGET_SPENT} if permissions.spend.current.known and self._is_budget_spent() else set()
        return noticed | spent | (set() if permissions.spend.current.known else {LEDGER_LOST})

    def _is_budget_spent(self) -> bool:
        """Whether an account of bytes cannot pay for a question: until it is refilled every answer is local."""
        permissions, policy = self._core.permissions, self._core.policy
        accounts = [each for each in policy.base.accounts if each.coin is AccountUnit.BYTES] if policy else []
        left = budget.list_remaining(accounts, permissions.spend.current, permissions.day)
        return any(rest < permissions.frame_bytes for rest, _ in left.values())


class Maintenance:
    """The maintenance task, and the database's alarms."""

    def __init__(
        self,
        parts: AgentServices,
        executor: CommandExecutor,
        guard: PolicyContextMonitor,
        settings: AgentSettings,
        log: JsonLog,
    ) -> None:
        self._parts = parts
        self._executor = executor
        self._guard = guard
        self._settings = settings
        self._log = log
        self._reported: DatabaseTrouble | None = None
        self._lost = False
        self.classes = SampleAttributesCache(parts.clock)
        self._log_lost = False

    def use_settings(self, settings: AgentSettings) -> None:
        """Prune by these limits, from the next time on."""
        self._settings = settings

    async def run(self, opened: Callable[[], Any]) -> None:
        """Prune, keep the time floor and reopen the database, until cancelled.

        `opened`: called after the database was opened late.
        """
        parts = self._parts
        while True:
            s = self._settings
            limits = (s.answers_max_rows, s.outcomes_max_rows, s.ledger_max_rows)
            await asyncio.sleep(s.upkeep_s if parts.database.is_open else s.reopen_s)
            self.classes.clear()
            parts.core.on_day(parts.clock.hub_day())
            self._executor.run_due()
            if not parts.database.is_open:
                if await self.open_database():
                    opened()
                continue
            self.save_time_floor()
            try:
                parts.counts["answers_pruned"] += await parts.database.read(partial(prune_tables, limits=limits))
                await parts.database.read(partial(prune_erased, now_ms=parts.clock.hub_ms()))
            except sqlite3.Error:
                parts.counts["prune_failed"] += 1

    def alarms(self) -> set[str]:
        """Alarms of the database: `database_damaged` while one that was set aside lies there, whoever started since.

        `log_lost`: this start found that the write-ahead log had been lost, `database_lost`: that the database had.
        """
        damaged = {"database_damaged"} if list_set_aside(self._parts.database.path) else set()
        lost = {"database_lost"} if self._lost else set()
        return damaged | lost | ({"log_lost"} if self._log_lost else set())

    def report_trouble(self) -> None:
        """Log once that the database cannot be written, with its place and why, and once that it can again."""
        trouble, path = self._parts.database.trouble, safe_text(str(self._parts.database.path))
        if trouble is self._reported:
            return
        if trouble is None:
            self._log.info("database_writes_again", file=path)
        else:
            self._log.error("database_not_written", file=path, disk=trouble)
        self._reported = trouble

    def save_time_floor(self) -> None:
        """Store the time floor: the next process starts its clock no earlier."""
        clock = self._parts.clock
        self._parts.database.write((partial(tables.raise_floor, floor_ms=clock.floor_ms, sure_ms=clock.sure_ms()),))

    async def open_database(self) -> bool:
        """Open the database and hand what it holds to the core. False if it cannot be opened now.

        Raises ExitError(DATABASE) if a newer version of the software wrote it.
        """
        parts = self._parts
        try:
            stored = await parts.database.open()
        except (sqlite3.Error, OSError):
            parts.counts["database_unusable"] += 1
            self.report_trouble()
            return False
        self.report_trouble()
        self._report_loss(stored)
        parts.clock.raise_floor(stored.floor_ms, stored.sure_ms)
        self._log_lost |= stored.gap
        self._guard.refresh_context(at_once=True)
        self._executor.execute(parts.core.restore(self._snapshot_core(stored), parts.clock.now()))
        return True

    def _report_loss(self, stored: StoredState) -> None:
        """Log that the database before this one is gone, or was set aside as damaged."""
        file = safe_text(str(self._parts.database.path))
        if stored.damaged:
            self._log.warning("database_damaged", file=file, kept_as=safe_name(stored.damaged))
        elif stored.past is MarkerState.LOST and not stored.gap:
            self._lost = True
            self._log.warning("database_lost", file=file)

    def _snapshot_core(self, stored: StoredState) -> CoreSnapshot:
        """The stored state, for the core.

        What belongs to open questions in memory is restored first: the core may use it.
        """
        pending, rows = self._parts.pending, []
        pending.mark_unsent(stored.unsent)
        for row in stored.rows:
            taken, origin = self._parts.sealer.restore_row(row)
            pending.add(row, origin)
            rows.append(taken)
        return CoreSnapshot(
            epoch=stored.epoch, next_seq=stored.next_seq, rows=tuple(rows), notice=stored.notice,
            spend=msgspec.structs.replace(stored.spend, known=stored.past is not MarkerState.LOST),
            mirrored=stored.past is MarkerState.SAME,
        )  # fmt: skip
