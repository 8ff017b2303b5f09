"""Simulated disk and process around the pure install machine: power may fail between any two actions."""

from collections.abc import Callable
from typing import Any

import msgspec

from edge_agent.update.machine import InstallMachine
from edge_agent.update.types import (
    Activate,
    Activated,
    AssignmentReceived,
    Check,
    Checked,
    CleanUp,
    Closing,
    Command,
    Commit,
    Done,
    Event,
    Examine,
    Examined,
    Fetch,
    Fetched,
    InstallRow,
    InstallStatus,
    Limits,
    Observed,
    Reached,
    Report,
    Resumed,
    RollBack,
    Started,
    Stop,
    Write,
)
from models.update.slots import Slot
from wire.protocol.rollout import Assignment, Failure, InstallState, Signals

DEVICE = "demo--d1"
OLD = "0" * 64
START_MS = 1_790_000_000_000
LIMITS = Limits(interval_s=0.0)
S = InstallState
FINE = Signals(inferences=1000, starts=1)


class PowerCut(Exception):  # noqa: N818 - it is no error of anybody
    """The simulated power has failed: nothing more is done."""


class Disk:
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


class World:
    """A device with its disk, process and worker. `serving`: digest of the bundle in memory.

    `fuse`: so many more actions, then the power fails; -1: never.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.disk = Disk()
        self.limits = limits
        self.now_ms = START_MS
        self.committed = OLD  # by this world's own books
        self.before = Signals(inferences=1000)  # figures of the model before
        self.counter = 0
        self.reports: list[InstallStatus] = []
        self.commands: list[Command] = []
        self.fuse = -1
        self.errand: Check | Fetch | None = None
        self.fails: dict[type, Failure] = {}
        self.alive = False
        self.start()

    # The process

    def start(self) -> None:
        self.alive, self.errand, self.serving, self.beside = True, None, "", ""
        self.core = InstallMachine(DEVICE, msgspec.json.decode(self.disk.row, type=InstallRow), self.limits)
        self.within(self._begin)

    def _begin(self) -> None:
        self.obey(self.core.on(Started(self.disk.current, self.disk.trial), self.now_ms), starting=True)
        self.serving = self.disk.current
        if self.serving and self.serving not in self.disk.whole:
            self._back()
            self.serving = self.disk.current
        self.beside = self.disk.previous if self.disk.trial else ""
        self.obey(self.core.on(Resumed(self.serving), self.now_ms))

    def within(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except PowerCut:
            self.alive, self.fuse, self.serving = False, -1, ""

    def crash(self) -> None:
        self.alive, self.serving = False, ""

    def stop(self) -> None:
        """End the process cleanly."""
        self.within(lambda: self.obey(self.core.on(Closing(self.core.row.seen), self.now_ms)))
        self.alive, self.serving = False, ""

    def see(self, event: Event) -> None:
        if self.alive:
            self.within(lambda: self.obey(self.core.on(event, self.now_ms)))

    def tick(self, seconds: float = 1.0, seen: Signals | None = None) -> None:
        self.now_ms += int(seconds * 1000)
        self.see(Observed(seen or self.core.row.seen, hub_ms=self.now_ms, serving=self.serving))

    # Commands

    def obey(self, commands: list[Command], *, starting: bool = False) -> None:
        while commands:
            command, *commands = commands
            if starting and not isinstance(command, Write | RollBack | CleanUp):
                continue
            self._spend()
            self.commands.append(command)
            found = self._do(command)
            if found is not None:
                commands = [*commands, *self.core.on(found, self.now_ms)]

    def _spend(self) -> None:
        if self.fuse == 0:
            raise PowerCut
        self.fuse -= self.fuse > 0

    def _do(self, command: Command) -> Event | None:
        if isinstance(command, Write):
            self.disk.row = msgspec.json.encode(command.row)
        elif isinstance(command, Check | Fetch):
            self.errand = command
        elif isinstance(command, Stop):
            self.errand = None
        elif isinstance(command, Report):
            self.reports.append(command.status)
        elif isinstance(command, CleanUp):
            self.disk.candidate = ""
            self.disk.banned |= {command.target.digest} if command.target and command.until_ms else set()
        elif isinstance(command, Examine):
            return Examined(same=True)
        elif isinstance(command, Activate | Commit | RollBack):
            return self._change(command)
        return None

    def _change(self, command: Activate | Commit | RollBack) -> Event:
        failure = self.fails.pop(type(command), None)
        if isinstance(command, Activate):
            return self._activate(command.target.digest, failure)
        if isinstance(command, Commit):
            return Done(failure) if failure else self._commit(command.target)
        if failure:
            return Done(failure)
        self.serving = self.beside or self.serving
        self._spend()
        return self._back()

    def _activate(self, digest: str, failure: Failure | None) -> Event:
        disk = self.disk
        if failure:
            return Activated(failure)
        if disk.current != digest:
            disk.current, disk.previous, disk.candidate, disk.trial = digest, disk.current, "", True
        self._spend()
        if digest not in disk.whole:
            disk.current, disk.previous, disk.trial = disk.previous, "", False
            return Activated(Failure.SELF_TEST)
        self.serving, self.beside = digest, disk.previous
        return Activated(before=self.before)

    def _commit(self, target: Slot) -> Event:
        self.disk.floor = max(self.disk.floor, target.version)
        self._spend()
        self.disk.trial, self.committed, self.beside = False, target.digest, ""
        return Done()

    def _back(self) -> Event:
        disk = self.disk
        before = disk.previous if disk.trial else disk.current
        if before not in disk.whole:
            disk.current = disk.previous = ""
            disk.trial = False
            self.serving = ""
            return Done(Failure.INTEGRITY)
        disk.current, disk.trial, self.beside = before, False, ""
        disk.previous = ""
        self.serving = before
        return Done()

    # The worker

    def errand_step(self, failure: Failure | None = None, *, sound: bool = True) -> None:
        """The worker comes one state further, or ends with this failure."""
        errand = self.errand
        if errand is None or not self.alive:
            return
        if isinstance(errand, Check):
            self.errand = None
            self.see(Checked(None if failure else slot_of(errand.assignment), 100, failure))
            return
        states = (S.DOWNLOADING, S.VERIFYING, S.STAGED, S.SELF_TEST)
        at = states.index(self.core.row.state) if self.core.row.state in states else 0
        if failure or at == len(states) - 1:
            self._last(errand, failure, sound=sound)
        else:
            self.see(Reached(states[at + 1]))

    def _last(self, errand: Fetch, failure: Failure | None, *, sound: bool) -> None:
        self.errand = None
        if failure is None:
            self.disk.candidate = errand.target.digest
            self.disk.whole |= {errand.target.digest} if sound else set()
        self.see(Fetched(None if failure else errand.target, failure))

    def bring_home(self) -> None:
        for _ in range(8):
            self.errand_step()

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
        order = assignment(self.counter, self.now_ms, **changes)
        self.see(AssignmentReceived(order))
        return order


def assignment(counter: int, now_ms: int, **changes: Any) -> Assignment:
    """An assignment, each of another version."""
    facts: dict[str, Any] = {
        "epoch": 0, "device": DEVICE, "counter": counter, "issued_ms": now_ms, "expires_ms": now_ms + 10 * 86_400_000,
        "rollout": f"r{counter}", "family": "echo", "path": f"models/echo/echo-{counter + 1}.skb",
        "version": counter + 1, "digest": f"{counter:064x}",
    }  # fmt: skip
    return Assignment(**{**facts, **changes})


def slot_of(order: Assignment) -> Slot:
    return Slot(order.path, order.version, order.digest)


def at(state: InstallState) -> World:
    """A device in this state, on its way to version 2."""
    world = World()
    world.assign()
    for _ in range(8):
        if world.core.row.state is state:
            return world
        world.errand_step()
    raise AssertionError(f"{state} is not on the way")


def probation(**terms: object) -> World:
    world = World()
    world.assign(**terms)
    world.bring_home()
    assert world.core.row.state is S.PROBATION
    return world


def soaked(world: World, seen: Signals = FINE, seconds: float = 1801.0) -> World:
    world.tick(seconds, seen)
    return world


def states(world: World) -> list[InstallState]:
    return [status.state for status in world.reports]
