"""Obeys the install machine: one task, one event at a time; what it wants is on disk before it is done.

Law: where the disk takes no row, the machine stands still, but for one thing: a model that must go back goes back in
memory at once. Nothing of this waits for a hub, and no report, sent or lost, changes what serves.
"""

import asyncio
import contextlib
import random
import sqlite3
from typing import Any

from edge_agent.answering import Answering
from edge_agent.errand_job import Errand, Said
from edge_agent.install_acts import Acts, Served, Tools, resident_bytes
from edge_agent.install_core import InstallCore
from edge_agent.install_moves import EARLY
from edge_agent.install_road import InstallRoad
from edge_agent.install_table import InstallTable
from edge_agent.install_words import (
    Activate,
    Check,
    Checked,
    CleanUp,
    Closing,
    Command,
    Commit,
    Event,
    Examine,
    Fetch,
    Fetched,
    Heard,
    Observed,
    Proceed,
    Reached,
    Refused,
    Report,
    Resumed,
    RollBack,
    Row,
    Stop,
    Watch,
    Word,
    Write,
)  # fmt: skip
from edge_agent.outgoing import Outgoing
from edge_agent.parts import Parts
from wire.daemon_log import fault
from wire.rollout import Assignment, Cohort, InstallReport, InstallState, Quality, Signals

DISK_S = 2.0  # how often a row is tried again that the disk did not take
ERRAND_S = 25 * 3600.0  # its own limits are tighter
LOW_BATTERY = 0.15


class Install:
    """A side of the agent's status, and a task of its process."""

    def __init__(self, core: InstallCore, tools: Tools, served: Served) -> None:
        self.core = core
        self._tools = tools
        self._served = served
        self._table = InstallTable(tools.folder)
        self._road = InstallRoad(tools.busy, lambda state: self._events.put_nowait(Reached(state)))
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._errand: asyncio.Task[None] | None = None
        self._written = core.row
        self._disk = False
        self._hub_ms = 0
        self._parts: Parts
        self._answering: Answering
        self._outgoing: Outgoing
        self._acts: Acts

    def attach(self, parts: Parts, answering: Answering, outgoing: Outgoing) -> None:
        """To the agent that it works for."""
        self._parts, self._answering, self._outgoing = parts, answering, outgoing
        self._acts = Acts(self._tools, self._served, parts, answering)

    def hear(self, assignment: Assignment) -> None:
        """A hub of ours has signed it."""
        self._events.put_nowait(Heard(assignment))

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self._on(Resumed(self._serving))
            while True:
                event = await self._next()
                if event is not None:
                    await self._on(event)
                await self._on(self._observed())
        finally:
            self._stop()
            self.close()

    async def _next(self) -> Event | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._tools.tick_s):
                return await self._events.get()
        return None

    async def _on(self, event: Event) -> None:
        commands = self.core.on(event, self._parts.clock.ms())
        while commands:
            command, *commands = commands
            found = await self._obey(command)
            if found is not None:
                commands += self.core.on(found, self._parts.clock.ms())

    def close(self) -> None:
        """The process ends as it was told to, and not by a model."""
        trial = self._answering.trial
        for command in self.core.on(Closing(self._signals(), trial.quality()), self._parts.clock.ms()):
            if isinstance(command, Write):
                with contextlib.suppress(sqlite3.Error):
                    self._table.write(command.row)

    # One command

    async def _obey(self, command: Command) -> Event | None:
        """The event that follows at once, if one does."""
        if isinstance(command, Write):
            await self._write(command.row)
        elif isinstance(command, Check | Fetch):
            self._send(command)
        elif isinstance(command, Proceed):
            self._road.proceed()
        elif isinstance(command, Stop):
            self._stop()
        elif isinstance(command, Watch):
            self._answering.trial.watch(command.assignment, command.seen, command.quality)
        elif isinstance(command, Report):
            self._report(command)
        elif isinstance(command, Refused):
            self._refused(command)
        elif isinstance(command, CleanUp):
            await self._acts.clean_up(command)
        else:
            return await self._done(command)
        return None

    async def _done(self, command: Command) -> Event | None:
        if isinstance(command, Activate):
            return await self._acts.activate(command.target)
        if isinstance(command, RollBack):
            return await self._acts.roll_back(command.target, str(self.core.row.failure or "withdrawn"))
        if isinstance(command, Commit):
            return await self._acts.commit(command.target)
        if isinstance(command, Examine):
            target = self.core.row.target
            return await self._acts.examine(target) if target else None
        return None

    async def _write(self, row: Row) -> None:
        """Until the disk takes it; figures alone may be lost."""
        figures = row.state is self._written.state
        while True:
            try:
                self._tools.step(f"before_{row.state}")
                await asyncio.to_thread(self._table.write, row)
                self._tools.step(f"in_{row.state}")
            except sqlite3.Error as error:
                self._disk, kind = True, fault(error)
                self._parts.counts["install_row_refused"] += 1
                self._tools.log.warning("install_row_refused", error=kind)
            else:
                self._disk, self._written = False, row
                return
            if figures:
                return
            if row.state is InstallState.ROLLING_BACK:
                self._answering.go_back()
            await asyncio.sleep(DISK_S)

    # Errands

    def _send(self, command: Check | Fetch) -> None:
        self._stop()
        self._errand = asyncio.create_task(self._run(command), name="install-errand")

    def _stop(self) -> None:
        if self._errand is not None:
            self._errand.cancel()
            self._errand = None

    async def _run(self, command: Check | Fetch) -> None:
        row, now_ms = self.core.row, self._parts.clock.ms()
        if isinstance(command, Check):
            errand = Errand(self._tools.job(), command.assignment, now_ms)
            said = await self._road.run(errand, self.core.limits.checking_s)
            lot = random.random()  # noqa: S311 - jitter keeps no secret
            self._events.put_nowait(Checked(said.slot, said.length, said.failure, said.detail, lot))
        elif row.work is not None:
            errand = Errand(self._tools.job(), row.work, now_ms, command.target, command.state)
            said = await self._road.run(errand, ERRAND_S)
            self._acts.resident_bytes = said.resident_bytes
            self._events.put_nowait(Fetched(said.slot, said.failure, said.detail, said.hopeless))
        self._note(said)

    def _note(self, said: Said) -> None:
        if said.failure:
            self._parts.counts[f"install_failure_{said.failure}"] += 1
            self._tools.log.warning("install_failed", failure=said.failure)

    # Deeds

    # What it sees

    @property
    def _serving(self) -> str:
        slot = self._served.slot
        return slot.digest if slot else ""

    def _signals(self) -> Signals:
        return self._answering.trial.seen.signals(resident_bytes())

    def _observed(self) -> Observed:
        parts = self._parts
        if parts.link.up:
            self._hub_ms = parts.clock.ms()
        around = parts.core.ruling.around
        low = around.battery is not None and not around.battery >= LOW_BATTERY
        may = not low and (self._tools.metered or around.metered is not True)
        if not (self.core.row.state is InstallState.PROBATION or self.core.row.control):
            return Observed(hub_ms=self._hub_ms, download=may, serving=self._serving)
        return Observed(self._signals(), self._answering.trial.quality(), self._hub_ms, may, self._serving)

    def _report(self, command: Report) -> None:
        word, slot, parts = command.word, self._served.slot, self._parts
        figures: tuple[Quality | None, Signals | None] = (None, None)
        if command.figures and self._answering.trial.assignment is not None:
            figures = (self._answering.trial.quality(), self._signals())
        elif command.figures:  # of a process before this one
            figures = (self.core.row.quality, self.core.row.seen)
        report = InstallReport(
            0, 0, word.counter, word.rollout, word.family, word.state, word.failure, slot.version if slot else 0,
            self._serving, parts.clock.ms(), self._cohort(word), *figures, detail=word.detail,
        )  # fmt: skip
        self._outgoing.put(report)

    def _cohort(self, word: Word) -> Cohort:
        control = self.core.row.control
        return Cohort.CONTROL if control and control.counter == word.counter else Cohort.CANDIDATE

    def _refused(self, command: Refused) -> None:
        self._parts.counts[f"assignment_refused_{command.refusal.failure}"] += 1
        self._tools.log.warning("assignment_refused", failure=command.refusal.failure)

    # As a side of the agent's status

    def facts(self) -> dict[str, Any]:
        """JSON-able."""
        row = self.core.row
        work = row.work or row.control
        told = {
            "state": row.state.value,
            "since_ms": row.since_ms,
            "counter": row.counter,
            "rollout": work.rollout if work else "",
            "version": work.version if work else 0,
            "cohort": work.cohort.value if work else "",
            "attempts_left": row.attempts if row.state is InstallState.PROBATION else 0,
            "last": f"{row.ended.state} {row.ended.rollout}" if row.ended else "",
            "why": row.detail if row.state not in EARLY else "",
        }
        return {"install": told}

    def alarms(self) -> set[str]:
        """`install_safe_mode`: nothing is left that may serve. `install_disk`: the row cannot be written."""
        safe = self.core.row.state is InstallState.SAFE_MODE
        return ({"install_safe_mode"} if safe else set()) | ({"install_disk"} if self._disk else set())
