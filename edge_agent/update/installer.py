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

from edge_agent.runtime.answering import InferenceService
from edge_agent.update.actions import InstallDependencies, RuntimeActions, ServingSlot, read_resident_bytes
from edge_agent.update.machine import InstallMachine
from edge_agent.update.recovery import InstallTable
from edge_agent.update.transitions import EARLY_STATES
from edge_agent.update.types import (
    ActivateModel,
    AssignmentChecked,
    AssignmentReceived,
    BundleFetched,
    CheckAssignment,
    CheckGoldenSet,
    CleanUpStore,
    CommitModel,
    FetchBundle,
    HealthObserved,
    InstallCommand,
    InstallEvent,
    InstallRow,
    InstallStatus,
    LoopStarted,
    ProceedWorker,
    ProcessClosing,
    RefuseAssignment,
    ReportStatus,
    RollBackModel,
    StateReached,
    StopWorker,
    WatchTrial,
    WriteRow,
)
from edge_agent.update.worker_protocol import InstallMessage, InstallRequest
from edge_agent.uplink.reports import RolloutReporter
from edge_agent.uplink.services import AgentServices
from wire.process.files import PACKAGES_FOLDER
from wire.process.logging import describe_error
from wire.protocol.rollout import (
    Assignment,
    AuditQuality,
    DeviceSignals,
    InstallFailure,
    InstallReport,
    InstallState,
    RolloutCohort,
)

DISK_RETRY_S = 2.0  # how often a row is tried again that the disk did not take
WORKER_TIMEOUT_S = 25 * 3600.0  # its own limits are tighter
LOW_BATTERY = 0.15
MAX_LINE_BYTES = 1 << 20


class Installer:
    """The install task of the agent's process, and a provider of its status."""

    def __init__(self, machine: InstallMachine, needs: InstallDependencies, served: ServingSlot) -> None:
        self.machine = machine
        self._needs = needs
        self._served = served
        self._table = InstallTable(needs.folder)
        self._worker = InstallWorkerProcess(needs.busy, lambda state: self._events.put_nowait(StateReached(state)))
        self._events: asyncio.Queue[InstallEvent] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._written = machine.row
        self._disk = False
        self._hub_ms = 0
        self._parts: AgentServices
        self._answering: InferenceService
        self._outgoing: RolloutReporter
        self._actions: RuntimeActions

    def attach_agent(self, parts: AgentServices, answering: InferenceService, outgoing: RolloutReporter) -> None:
        """Connect the installer with the agent that it works for."""
        self._parts, self._answering, self._outgoing = parts, answering, outgoing
        self._actions = RuntimeActions(self._needs, self._served, parts, answering)

    def on_assignment(self, assignment: Assignment) -> None:
        """Take an assignment that was verified as signed by our home hub."""
        self._events.put_nowait(AssignmentReceived(assignment))

    async def run(self) -> None:
        """Run the machine until cancelled."""
        try:
            await self._handle_event(LoopStarted(self._serving))
            while True:
                event = await self._next_event()
                if event is not None:
                    await self._handle_event(event)
                await self._handle_event(self._observe())
        finally:
            self._stop_worker()
            self.close()

    async def _next_event(self) -> InstallEvent | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._needs.tick_s):
                return await self._events.get()
        return None

    async def _handle_event(self, event: InstallEvent) -> None:
        commands = self.machine.handle_event(event, self._parts.clock.hub_ms())
        while commands:
            command, *commands = commands
            found = await self._execute(command)
            if found is not None:
                commands += self.machine.handle_event(found, self._parts.clock.hub_ms())

    def close(self) -> None:
        """Store that the process ends as it was told to, and not by a model's fault."""
        trial = self._answering.trial
        for command in self.machine.handle_event(
            ProcessClosing(self._read_signals(), trial.make_quality()), self._parts.clock.hub_ms()
        ):
            if isinstance(command, WriteRow):
                with contextlib.suppress(sqlite3.Error):
                    self._table.write_row(command.row)

    # One command

    async def _execute(self, command: InstallCommand) -> InstallEvent | None:
        """Execute one command. Returns the event that follows at once, if one does."""
        if isinstance(command, WriteRow):
            await self._write_row(command.row)
        elif isinstance(command, CheckAssignment | FetchBundle):
            self._start_worker(command)
        elif isinstance(command, ProceedWorker):
            self._worker.proceed()
        elif isinstance(command, StopWorker):
            self._stop_worker()
        elif isinstance(command, WatchTrial):
            self._answering.trial.start_evaluation(command.assignment, command.seen, command.quality)
        elif isinstance(command, ReportStatus):
            self._put_report(command)
        elif isinstance(command, RefuseAssignment):
            self._count_refusal(command)
        elif isinstance(command, CleanUpStore):
            await self._actions.clean_up(command)
        else:
            return await self._execute_action(command)
        return None

    async def _execute_action(self, command: InstallCommand) -> InstallEvent | None:
        if isinstance(command, ActivateModel):
            return await self._actions.activate(command.target)
        if isinstance(command, RollBackModel):
            return await self._actions.roll_back(command.target, str(self.machine.row.failure or "withdrawn"))
        if isinstance(command, CommitModel):
            return await self._actions.commit(command.target)
        if isinstance(command, CheckGoldenSet):
            target = self.machine.row.target
            return await self._actions.check_golden_set(target) if target else None
        return None

    async def _write_row(self, row: InstallRow) -> None:
        """Write the row until the disk takes it; if only its figures changed, once is enough."""
        figures = row.state is self._written.state
        while True:
            try:
                self._needs.step(f"before_{row.state}")
                await asyncio.to_thread(self._table.write_row, row)
                self._needs.step(f"in_{row.state}")
            except sqlite3.Error as error:
                self._disk, kind = True, describe_error(error)
                self._parts.counts["install_row_refused"] += 1
                self._needs.log.warning("install_row_refused", error=kind)
            else:
                self._disk, self._written = False, row
                return
            if figures:
                return
            if row.state is InstallState.ROLLING_BACK:
                self._answering.revert_trial()
            await asyncio.sleep(DISK_RETRY_S)

    # The worker's requests

    def _start_worker(self, command: CheckAssignment | FetchBundle) -> None:
        self._stop_worker()
        self._task = asyncio.create_task(self._run_worker(command), name="install-worker")

    def _stop_worker(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run_worker(self, command: CheckAssignment | FetchBundle) -> None:
        row, now_ms = self.machine.row, self._parts.clock.hub_ms()
        if isinstance(command, CheckAssignment):
            request = InstallRequest(self._needs.job(), command.assignment, now_ms)
            message = await self._worker.run(request, self.machine.limits.checking_s)
            lot = random.random()  # noqa: S311 - jitter keeps no secret
            self._events.put_nowait(
                AssignmentChecked(message.slot, message.length, message.failure, message.detail, lot)
            )
        elif row.work is not None:
            request = InstallRequest(self._needs.job(), row.work, now_ms, command.target, command.state)
            message = await self._worker.run(request, WORKER_TIMEOUT_S)
            self._actions.note_self_test(message.resident_bytes)
            self._events.put_nowait(BundleFetched(message.slot, message.failure, message.detail, message.hopeless))
        self._log_failure(message)

    def _log_failure(self, message: InstallMessage) -> None:
        if message.failure:
            self._parts.counts[f"install_failure_{message.failure}"] += 1
            self._needs.log.warning("install_failed", failure=message.failure)

    # Observations and reports

    @property
    def _serving(self) -> str:
        slot = self._served.slot
        return slot.digest if slot else ""

    def _read_signals(self) -> DeviceSignals:
        return self._answering.trial.seen.make_signals(read_resident_bytes())

    def _observe(self) -> HealthObserved:
        parts = self._parts
        if parts.connections.home.up:
            self._hub_ms = parts.clock.hub_ms()
        around = parts.core.permissions.device_context
        low = around.battery is not None and not around.battery >= LOW_BATTERY
        may = not low and (self._needs.metered or around.metered is not True)
        if not (self.machine.row.state is InstallState.PROBATION or self.machine.row.control):
            return HealthObserved(hub_ms=self._hub_ms, download=may, serving=self._serving)
        return HealthObserved(
            self._read_signals(), self._answering.trial.make_quality(), self._hub_ms, may, self._serving
        )

    def _put_report(self, command: ReportStatus) -> None:
        status, slot, parts = command.status, self._served.slot, self._parts
        quality: AuditQuality | None = None
        signals: DeviceSignals | None = None
        if command.figures and self._answering.trial.assignment is not None:
            quality, signals = self._answering.trial.make_quality(), self._read_signals()
        elif command.figures:  # of a process before this one
            quality, signals = self.machine.row.quality, self.machine.row.seen
        report = InstallReport(
            epoch=0, seq=0, counter=status.counter, rollout=status.rollout, family=status.family, state=status.state,
            failure=status.failure, version=slot.version if slot else 0, running=self._serving,
            at_ms=parts.clock.hub_ms(), cohort=self._cohort_of(status), quality=quality, signals=signals,
            detail=status.detail, trial_passed=status.trial_passed,
        )  # fmt: skip
        self._outgoing.put_report(report)

    def _cohort_of(self, status: InstallStatus) -> RolloutCohort:
        control = self.machine.row.control
        return RolloutCohort.CONTROL if control and control.counter == status.counter else RolloutCohort.CANDIDATE

    def _count_refusal(self, command: RefuseAssignment) -> None:
        self._parts.counts[f"assignment_refused_{command.refusal.failure}"] += 1
        self._needs.log.warning("assignment_refused", failure=command.refusal.failure)

    # For the agent's status

    def status_fields(self) -> dict[str, Any]:
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
            "why": row.detail if row.state not in EARLY_STATES else "",
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

    async def run(self, request: InstallRequest, deadline_s: float) -> InstallMessage:
        """Run a worker for this request and return its last message.

        A worker that ends without one, or not within `deadline_s`, is a failure like any other. Cancelled, it kills the
        process.
        """
        async with self._busy:
            try:
                async with asyncio.timeout(deadline_s):
                    return await self._run_process(request)
            except TimeoutError:
                return InstallMessage(failure=InstallFailure.SLOW_RETRIEVAL, detail=f"no end within {deadline_s:g} s")

    async def _run_process(self, request: InstallRequest) -> InstallMessage:
        command = (sys.executable, "-P", "-m", "edge_agent.update.install_worker")
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            child = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=PACKAGES_FOLDER, limit=MAX_LINE_BYTES
            )
        except OSError as error:
            return InstallMessage(failure=InstallFailure.INTERNAL, detail=f"no process: {error.strerror}")
        try:
            return await self._exchange(child, request)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()

    async def _exchange(self, child: asyncio.subprocess.Process, request: InstallRequest) -> InstallMessage:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the worker's stdin and stdout must be pipes")
        line = msgspec.json.encode(request)
        try:
            while True:
                child.stdin.write(line + b"\n")
                await child.stdin.drain()
                message = msgspec.json.decode(await child.stdout.readline(), type=InstallMessage)
                if message.reached is None:
                    return message
                self._go.clear()
                self._reached(message.reached)
                await self._go.wait()
                line = b"{}"
        except (ValueError, ConnectionError):  # nothing, no JSON, or a line without an end
            return InstallMessage(failure=InstallFailure.INTERNAL, detail=f"the worker ended with {await child.wait()}")
