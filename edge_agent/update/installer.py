"""Installer: runs the install machine in one task, executes its commands and feeds it events, one at a time.

Rule: what the machine decides is on disk before it is done. While the disk takes no row the machine stands still, but
for one thing: a rollback is done in memory at once. Nothing here waits for a hub, and no report, sent or lost, changes
which model serves.
"""

import asyncio
import contextlib
import random
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from edge_agent.runtime.answering import Answering
from edge_agent.update.actions import InstallDependencies, RuntimeActions, Served, resident_bytes
from edge_agent.update.machine import InstallMachine
from edge_agent.update.recovery import InstallTable
from edge_agent.update.transitions import EARLY
from edge_agent.update.types import (
    Activate,
    AssignmentReceived,
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
    InstallRow,
    InstallStatus,
    Observed,
    Proceed,
    Reached,
    Refused,
    Report,
    Resumed,
    RollBack,
    Stop,
    Watch,
    Write,
)
from edge_agent.update.worker_protocol import WorkerMessage, WorkerRequest
from edge_agent.uplink.reports import Outgoing
from edge_agent.uplink.services import Parts
from wire.process.files import PACKAGES_FOLDER
from wire.process.logging import fault
from wire.protocol.rollout import Assignment, Cohort, Failure, InstallReport, InstallState, Quality, Signals

DISK_S = 2.0  # how often a row is tried again that the disk did not take
WORKER_S = 25 * 3600.0  # its own limits are tighter
LOW_BATTERY = 0.15
MAX_LINE_BYTES = 1 << 20


class Install:
    """The install task of the agent's process, and a provider of its status."""

    def __init__(self, machine: InstallMachine, needs: InstallDependencies, served: Served) -> None:
        self.machine = machine
        self._needs = needs
        self._served = served
        self._table = InstallTable(needs.folder)
        self._worker = InstallWorkerProcess(needs.busy, lambda state: self._events.put_nowait(Reached(state)))
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._written = machine.row
        self._disk = False
        self._hub_ms = 0
        self._parts: Parts
        self._answering: Answering
        self._outgoing: Outgoing
        self._actions: RuntimeActions

    def attach(self, parts: Parts, answering: Answering, outgoing: Outgoing) -> None:
        """Connect the installer with the agent that it works for."""
        self._parts, self._answering, self._outgoing = parts, answering, outgoing
        self._actions = RuntimeActions(self._needs, self._served, parts, answering)

    def hear(self, assignment: Assignment) -> None:
        """Take an assignment that was verified as signed by our home hub."""
        self._events.put_nowait(AssignmentReceived(assignment))

    async def run(self) -> None:
        """Run the machine until cancelled."""
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
            async with asyncio.timeout(self._needs.tick_s):
                return await self._events.get()
        return None

    async def _on(self, event: Event) -> None:
        commands = self.machine.on(event, self._parts.clock.ms())
        while commands:
            command, *commands = commands
            found = await self._obey(command)
            if found is not None:
                commands += self.machine.on(found, self._parts.clock.ms())

    def close(self) -> None:
        """Store that the process ends as it was told to, and not by a model's fault."""
        trial = self._answering.trial
        for command in self.machine.on(Closing(self._signals(), trial.quality()), self._parts.clock.ms()):
            if isinstance(command, Write):
                with contextlib.suppress(sqlite3.Error):
                    self._table.write(command.row)

    # One command

    async def _obey(self, command: Command) -> Event | None:
        """Execute one command. Returns the event that follows at once, if one does."""
        if isinstance(command, Write):
            await self._write(command.row)
        elif isinstance(command, Check | Fetch):
            self._send(command)
        elif isinstance(command, Proceed):
            self._worker.proceed()
        elif isinstance(command, Stop):
            self._stop()
        elif isinstance(command, Watch):
            self._answering.trial.watch(command.assignment, command.seen, command.quality)
        elif isinstance(command, Report):
            self._report(command)
        elif isinstance(command, Refused):
            self._refused(command)
        elif isinstance(command, CleanUp):
            await self._actions.clean_up(command)
        else:
            return await self._done(command)
        return None

    async def _done(self, command: Command) -> Event | None:
        if isinstance(command, Activate):
            return await self._actions.activate(command.target)
        if isinstance(command, RollBack):
            return await self._actions.roll_back(command.target, str(self.machine.row.failure or "withdrawn"))
        if isinstance(command, Commit):
            return await self._actions.commit(command.target)
        if isinstance(command, Examine):
            target = self.machine.row.target
            return await self._actions.examine(target) if target else None
        return None

    async def _write(self, row: InstallRow) -> None:
        """Write the row until the disk takes it; if only its figures changed, once is enough."""
        figures = row.state is self._written.state
        while True:
            try:
                self._needs.step(f"before_{row.state}")
                await asyncio.to_thread(self._table.write, row)
                self._needs.step(f"in_{row.state}")
            except sqlite3.Error as error:
                self._disk, kind = True, fault(error)
                self._parts.counts["install_row_refused"] += 1
                self._needs.log.warning("install_row_refused", error=kind)
            else:
                self._disk, self._written = False, row
                return
            if figures:
                return
            if row.state is InstallState.ROLLING_BACK:
                self._answering.go_back()
            await asyncio.sleep(DISK_S)

    # The worker's requests

    def _send(self, command: Check | Fetch) -> None:
        self._stop()
        self._task = asyncio.create_task(self._run(command), name="install-worker")

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, command: Check | Fetch) -> None:
        row, now_ms = self.machine.row, self._parts.clock.ms()
        if isinstance(command, Check):
            request = WorkerRequest(self._needs.job(), command.assignment, now_ms)
            message = await self._worker.run(request, self.machine.limits.checking_s)
            lot = random.random()  # noqa: S311 - jitter keeps no secret
            self._events.put_nowait(Checked(message.slot, message.length, message.failure, message.detail, lot))
        elif row.work is not None:
            request = WorkerRequest(self._needs.job(), row.work, now_ms, command.target, command.state)
            message = await self._worker.run(request, WORKER_S)
            self._actions.note_self_test(message.resident_bytes)
            self._events.put_nowait(Fetched(message.slot, message.failure, message.detail, message.hopeless))
        self._note(message)

    def _note(self, message: WorkerMessage) -> None:
        if message.failure:
            self._parts.counts[f"install_failure_{message.failure}"] += 1
            self._needs.log.warning("install_failed", failure=message.failure)

    # Observations and reports

    @property
    def _serving(self) -> str:
        slot = self._served.slot
        return slot.digest if slot else ""

    def _signals(self) -> Signals:
        return self._answering.trial.seen.signals(resident_bytes())

    def _observed(self) -> Observed:
        parts = self._parts
        if parts.connections.home.up:
            self._hub_ms = parts.clock.ms()
        around = parts.core.ruling.around
        low = around.battery is not None and not around.battery >= LOW_BATTERY
        may = not low and (self._needs.metered or around.metered is not True)
        if not (self.machine.row.state is InstallState.PROBATION or self.machine.row.control):
            return Observed(hub_ms=self._hub_ms, download=may, serving=self._serving)
        return Observed(self._signals(), self._answering.trial.quality(), self._hub_ms, may, self._serving)

    def _report(self, command: Report) -> None:
        status, slot, parts = command.status, self._served.slot, self._parts
        quality: Quality | None = None
        signals: Signals | None = None
        if command.figures and self._answering.trial.assignment is not None:
            quality, signals = self._answering.trial.quality(), self._signals()
        elif command.figures:  # of a process before this one
            quality, signals = self.machine.row.quality, self.machine.row.seen
        report = InstallReport(
            epoch=0, seq=0, counter=status.counter, rollout=status.rollout, family=status.family, state=status.state,
            failure=status.failure, version=slot.version if slot else 0, running=self._serving,
            at_ms=parts.clock.ms(), cohort=self._cohort(status), quality=quality, signals=signals,
            detail=status.detail,
        )  # fmt: skip
        self._outgoing.put(report)

    def _cohort(self, status: InstallStatus) -> Cohort:
        control = self.machine.row.control
        return Cohort.CONTROL if control and control.counter == status.counter else Cohort.CANDIDATE

    def _refused(self, command: Refused) -> None:
        self._parts.counts[f"assignment_refused_{command.refusal.failure}"] += 1
        self._needs.log.warning("assignment_refused", failure=command.refusal.failure)

    # For the agent's status

    def facts(self) -> dict[str, Any]:
        """JSON-able fields of the agent's status: the install under way, and how the last one ended."""
        row = self.machine.row
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
        """`install_safe_mode`: no model is left that may serve. `install_disk`: the row cannot be written."""
        safe = self.machine.row.state is InstallState.SAFE_MODE
        return ({"install_safe_mode"} if safe else set()) | ({"install_disk"} if self._disk else set())


class InstallWorkerProcess:
    """The agent's end of an install worker's process: one request at a time, while `busy` is held.

    `reached(state)`: called when the worker announces a state; it waits there until `proceed` is called.
    """

    def __init__(self, busy: asyncio.Lock, reached: Callable[[InstallState], None]) -> None:
        self._busy = busy
        self._reached = reached
        self._go = asyncio.Event()

    def proceed(self) -> None:
        """Let the worker do what it has announced."""
        self._go.set()

    async def run(self, request: WorkerRequest, deadline_s: float) -> WorkerMessage:
        """Run a worker for this request and return its last message.

        A worker that ends without one, or not within `deadline_s`, is a failure like any other. Cancelled, it kills the
        process.
        """
        async with self._busy:
            try:
                async with asyncio.timeout(deadline_s):
                    return await self._run(request)
            except TimeoutError:
                return WorkerMessage(failure=Failure.SLOW_RETRIEVAL, detail=f"no end within {deadline_s:g} s")

    async def _run(self, request: WorkerRequest) -> WorkerMessage:
        command = (sys.executable, "-m", "edge_agent.update.install_worker")
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            child = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=PACKAGES_FOLDER, limit=MAX_LINE_BYTES
            )
        except OSError as error:
            return WorkerMessage(failure=Failure.INTERNAL, detail=f"no process: {error.strerror}")
        try:
            return await self._talk(child, request)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()

    async def _talk(self, child: asyncio.subprocess.Process, request: WorkerRequest) -> WorkerMessage:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the worker's stdin and stdout must be pipes")
        line = msgspec.json.encode(request)
        try:
            while True:
                child.stdin.write(line + b"\n")
                await child.stdin.drain()
                message = msgspec.json.decode(await child.stdout.readline(), type=WorkerMessage)
                if message.reached is None:
                    return message
                self._go.clear()
                self._reached(message.reached)
                await self._go.wait()
                line = b"{}"
        except (ValueError, ConnectionError):  # nothing, no JSON, or a line without an end
            return WorkerMessage(failure=Failure.INTERNAL, detail=f"the worker ended with {await child.wait()}")
