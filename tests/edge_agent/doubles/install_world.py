"""Simulated disk and process around the pure install machine: power may fail between any two actions."""

from collections.abc import Callable
from typing import Any

import msgspec

from edge_agent.update.machine import InstallMachine
from edge_agent.update.types import (
    ActionDone,
    ActivateModel,
    AssignmentChecked,
    AssignmentReceived,
    BundleFetched,
    CheckAssignment,
    CheckGoldenSet,
    CleanUpStore,
    CommitModel,
    FetchBundle,
    GoldenSetChecked,
    HealthObserved,
    InstallCommand,
    InstallEvent,
    InstallLimits,
    InstallRow,
    InstallStatus,
    LoopStarted,
    ModelActivated,
    ProcessClosing,
    ProcessStarted,
    ReportStatus,
    RollBackModel,
    StateReached,
    StopWorker,
    WriteRow,
)
from models.update.slots import Slot
from wire.protocol.rollout import Assignment, DeviceSignals, InstallFailure, InstallState

DEVICE = "demo--d1"
OLD = "0" * 64
START_MS = 1_790_000_000_000
LIMITS = InstallLimits(interval_s=0.0)
S = InstallState
FINE = DeviceSignals(inferences=1000, starts=1)


class PowerCut(Exception):  # noqa: N818 - it is no error of anybody
    """The simulated power has failed: nothing more is done."""


class SimulatedDisk:
    """What survives a power cut. `whole`: digests of the slots that open."""

    def __init__(self) -> None:
        self.row = msgspec.json.encode(InstallRow())
        self.current: str = OLD
        self.previous = ""
        self.candidate = ""
        self.trial = False
        self.whole = {OLD}
        self.banned: set[str] = set()
        self.floor = 1


class SimulatedDevice:
    """A device with its disk, process and worker. `serving`: digest of the bundle in memory.

    `fuse`: so many more actions, then the power fails; -1: never.
    """

    def __init__(self, limits: InstallLimits = LIMITS) -> None:
        self.disk = SimulatedDisk()
        self.limits = limits
        self.now_ms = START_MS
        self.committed = OLD  # by this world's own books
        self.before = DeviceSignals(inferences=1000)  # figures of the model before
        self.counter = 0
        self.reports: list[InstallStatus] = []
        self.commands: list[InstallCommand] = []
        self.fuse = -1
        self.errand: CheckAssignment | FetchBundle | None = None
        self.fails: dict[type, InstallFailure] = {}
        self.alive = False
        self.start_process()

    # The process

    def start_process(self) -> None:
        self.alive, self.errand, self.serving, self.beside = True, None, "", ""
        self.core = InstallMachine(DEVICE, msgspec.json.decode(self.disk.row, type=InstallRow), self.limits)
        self.run_powered(self._begin)

    def _begin(self) -> None:
        self.execute(
            self.core.handle_event(ProcessStarted(self.disk.current, self.disk.trial), self.now_ms), starting=True
        )
        self.serving = self.disk.current
        if self.serving and self.serving not in self.disk.whole:
            self._revert()
            self.serving = self.disk.current
        self.beside = self.disk.previous if self.disk.trial else ""
        self.execute(self.core.handle_event(LoopStarted(self.serving), self.now_ms))

    def run_powered(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except PowerCut:
            self.alive, self.fuse, self.serving = False, -1, ""

    def crash_process(self) -> None:
        self.alive, self.serving = False, ""

    def stop_process(self) -> None:
        """End the process cleanly."""
        self.run_powered(lambda: self.execute(self.core.handle_event(ProcessClosing(self.core.row.seen), self.now_ms)))
        self.alive, self.serving = False, ""

    def handle_event(self, event: InstallEvent) -> None:
        if self.alive:
            self.run_powered(lambda: self.execute(self.core.handle_event(event, self.now_ms)))

    def advance(self, seconds: float = 1.0, seen: DeviceSignals | None = None) -> None:
        self.now_ms += int(seconds * 1000)
        self.handle_event(HealthObserved(seen or self.core.row.seen, hub_ms=self.now_ms, serving=self.serving))

    # Commands

    def execute(self, commands: list[InstallCommand], *, starting: bool = False) -> None:
        while commands:
            command, *commands = commands
            if starting and not isinstance(command, WriteRow | RollBackModel | CleanUpStore):
                continue
            self._burn_fuse()
            self.commands.append(command)
            found = self._execute_one(command)
            if found is not None:
                commands = [*commands, *self.core.handle_event(found, self.now_ms)]

    def _burn_fuse(self) -> None:
        if self.fuse == 0:
            raise PowerCut
        self.fuse -= self.fuse > 0

    def _execute_one(self, command: InstallCommand) -> InstallEvent | None:
        if isinstance(command, WriteRow):
            self.disk.row = msgspec.json.encode(command.row)
        elif isinstance(command, CheckAssignment | FetchBundle):
            self.errand = command
        elif isinstance(command, StopWorker):
            self.errand = None
        elif isinstance(command, ReportStatus):
            self.reports.append(command.status)
        elif isinstance(command, CleanUpStore):
            self.disk.candidate = ""
            self.disk.banned |= {command.target.digest} if command.target and command.until_ms else set()
        elif isinstance(command, CheckGoldenSet):
            return GoldenSetChecked(same=True)
        elif isinstance(command, ActivateModel | CommitModel | RollBackModel):
            return self._change_model(command)
        return None

    def _change_model(self, command: ActivateModel | CommitModel | RollBackModel) -> InstallEvent:
        failure = self.fails.pop(type(command), None)
        if isinstance(command, ActivateModel):
            return self._activate(command.target.digest, failure)
        if isinstance(command, CommitModel):
            return ActionDone(failure) if failure else self._commit(command.target)
        if failure:
            return ActionDone(failure)
        self.serving = self.beside or self.serving
        self._burn_fuse()
        return self._revert()

    def _activate(self, digest: str, failure: InstallFailure | None) -> InstallEvent:
        disk = self.disk
        if failure:
            return ModelActivated(failure)
        if disk.current != digest:
            disk.current, disk.previous, disk.candidate, disk.trial = digest, disk.current, "", True
        self._burn_fuse()
        if digest not in disk.whole:
            disk.current, disk.previous, disk.trial = disk.previous, "", False
            return ModelActivated(InstallFailure.SELF_TEST)
        self.serving, self.beside = digest, disk.previous
        return ModelActivated(before=self.before)

    def _commit(self, target: Slot) -> InstallEvent:
        self.disk.floor = max(self.disk.floor, target.version)
        self._burn_fuse()
        self.disk.trial, self.committed, self.beside = False, target.digest, ""
        return ActionDone()

    def _revert(self) -> InstallEvent:
        disk = self.disk
        before = disk.previous if disk.trial else disk.current
        if before not in disk.whole:
            disk.current = disk.previous = ""
            disk.trial = False
            self.serving = ""
            return ActionDone(InstallFailure.INTEGRITY)
        disk.current, disk.trial, self.beside = before, False, ""
        disk.previous = ""
        self.serving = before
        return ActionDone()

    # The worker

    def step_worker(self, failure: InstallFailure | None = None, *, sound: bool = True) -> None:
        """The worker comes one state further, or ends with this failure."""
        errand = self.errand
        if errand is None or not self.alive:
            return
        if isinstance(errand, CheckAssignment):
            self.errand = None
            self.handle_event(
                AssignmentChecked(None if failure else slot_of_assignment(errand.assignment), 100, failure)
            )
            return
        states = (S.DOWNLOADING, S.VERIFYING, S.STAGED, S.SELF_TEST)
        at = states.index(self.core.row.state) if self.core.row.state in states else 0
        if failure or at == len(states) - 1:
            self._end_worker(errand, failure, sound=sound)
        else:
            self.handle_event(StateReached(states[at + 1]))

    def _end_worker(self, errand: FetchBundle, failure: InstallFailure | None, *, sound: bool) -> None:
        self.errand = None
        if failure is None:
            self.disk.candidate = errand.target.digest
            self.disk.whole |= {errand.target.digest} if sound else set()
        self.handle_event(BundleFetched(None if failure else errand.target, failure))

    def finish_worker(self) -> None:
        for _ in range(8):
            self.step_worker()

    # The hub

    @property
    def state(self) -> InstallState:
        return self.core.row.state

    @property
    def work(self) -> Assignment:
        assert self.core.row.work
        return self.core.row.work

    def assign(self, **changes: Any) -> Assignment:
        self.counter += 1
        order = make_assignment(self.counter, self.now_ms, **changes)
        self.handle_event(AssignmentReceived(order))
        return order


def make_assignment(counter: int, now_ms: int, **changes: Any) -> Assignment:
    """An assignment, each of another version."""
    facts: dict[str, Any] = {
        "epoch": 0, "device": DEVICE, "counter": counter, "issued_ms": now_ms, "expires_ms": now_ms + 10 * 86_400_000,
        "rollout": f"r{counter}", "family": "echo", "path": f"models/echo/echo-{counter + 1}.skb",
        "version": counter + 1, "digest": f"{counter:064x}",
    }  # fmt: skip
    return Assignment(**{**facts, **changes})


def slot_of_assignment(order: Assignment) -> Slot:
    return Slot(order.path, order.version, order.digest)


def device_in_state(state: InstallState) -> SimulatedDevice:
    """A device in this state, on its way to version 2."""
    world = SimulatedDevice()
    world.assign()
    for _ in range(8):
        if world.core.row.state is state:
            return world
        world.step_worker()
    raise AssertionError(f"{state} is not on the way")


def device_on_probation(**terms: object) -> SimulatedDevice:
    world = SimulatedDevice()
    world.assign(**terms)
    world.finish_worker()
    assert world.core.row.state is S.PROBATION
    return world


def soak_device(world: SimulatedDevice, seen: DeviceSignals = FINE, seconds: float = 1801.0) -> SimulatedDevice:
    world.advance(seconds, seen)
    return world


def reported_states(world: SimulatedDevice) -> list[InstallState]:
    return [status.state for status in world.reports]
