"""Kills an install at each of its named points, each in a child process, and reports what the next process makes of it.

Run as a program: FOLDER JOB MODE. JOB is JSON: the update job without its folder, and the assignment, both as text. One
JSON object on stdout: point -> what the last process found. Modes: `kill` ends the process at the point at once; `full`
lets the disk refuse there, once.
"""

import errno
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.update.actions import StoreActions
from edge_agent.update.install_worker import run_request
from edge_agent.update.installed import read_installed
from edge_agent.update.machine import InstallMachine
from edge_agent.update.recovery import InstallTable, recover_install
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
    GoldenSetChecked,
    HealthObserved,
    InstallCommand,
    InstallEvent,
    InstallLimits,
    InstallRow,
    LoopStarted,
    ModelActivated,
    RollBackModel,
    StateReached,
    WriteRow,
)
from edge_agent.update.worker_protocol import InstallRequest, UpdateJob
from models.update.slots import Store, StoreStep
from tests.edge_agent.doubles.updates_bench import NAMES
from wire.protocol.rollout import Assignment, DeviceSignals, InstallState

DEVICE = "demo--d1"
PASSED = (
    InstallState.CHECKING, InstallState.ACCEPTED, InstallState.DOWNLOADING, InstallState.VERIFYING,
    InstallState.STAGED, InstallState.SELF_TEST, InstallState.ACTIVATING, InstallState.PROBATION,
    InstallState.COMMITTED,
)  # fmt: skip
BACK = (InstallState.ROLLING_BACK, InstallState.ROLLED_BACK)
STORE_POINTS = ("prove", "flip", "load", "raise_floor", "commit")
Point = Callable[[str], None]


class InstrumentedTable(InstallTable):
    """An install table with a named point before each write, and one after it."""

    def __init__(self, folder: Path, point: Point) -> None:
        super().__init__(folder)
        self._point = point

    def write_row(self, row: InstallRow) -> None:
        self._point(f"before_{row.state}")
        super().write_row(row)
        self._point(f"in_{row.state}")


class DeviceProcess:
    """One process of a device with no link, and with no model in memory but what its store names."""

    def __init__(self, job: UpdateJob, point: Point) -> None:
        self.folder = Path(job.folder)
        self._job, self._point = job, point
        self._table = InstrumentedTable(self.folder, point)
        self._actions = StoreActions(self.folder, NAMES, point)
        self.core = InstallMachine(DEVICE, self._table.read_row(), InstallLimits(interval_s=0.0, retry_s=0.0))
        shun = recover_install(self.folder, NAMES, self.core, now_ms())
        found = read_installed(self.folder, NAMES, shun=shun)
        self.serving = found.slot.digest if found.slot else ""
        self.handle_event(LoopStarted(self.serving))

    def handle_event(self, event: InstallEvent) -> None:
        commands = self.core.handle_event(event, now_ms())
        while commands:
            command, *commands = commands
            found = self._execute(command)
            commands += self.core.handle_event(found, now_ms()) if found else []

    def _execute(self, command: InstallCommand) -> InstallEvent | None:
        if isinstance(command, WriteRow):
            self._write_row(command.row)
        elif isinstance(command, CheckAssignment | FetchBundle):
            return self._run_worker(command)
        elif isinstance(command, ActivateModel):
            found, runner = self._actions.activate(command.target)
            self.serving = command.target.digest if runner else self.serving
            return ModelActivated(found.failure, found.detail, DeviceSignals(inferences=1000)) if runner else found
        elif isinstance(command, CommitModel):
            return self._actions.commit(command.target)
        elif isinstance(command, RollBackModel):
            done, slot = self._actions.roll_back(command.target)
            self.serving = slot.digest if slot else self.serving
            return done
        elif isinstance(command, CleanUpStore):
            self._actions.clean_up(command)
        elif isinstance(command, CheckGoldenSet):
            return GoldenSetChecked(same=True)
        return None

    def _write_row(self, row: InstallRow) -> None:
        """Write a row as the installer does: until the disk takes it."""
        for _ in range(5):
            try:
                return self._table.write_row(row)
            except (sqlite3.Error, OSError):
                continue
        raise RuntimeError("the disk is full for good")

    def _run_worker(self, command: CheckAssignment | FetchBundle) -> InstallEvent:
        work = self.core.row.work
        if work is None:
            raise RuntimeError("nothing is assigned")
        target, state = (
            (command.target, command.state) if isinstance(command, FetchBundle) else (None, InstallState.CHECKING)
        )
        said = run_request(
            InstallRequest(self._job, work, now_ms(), target, state), self._reach, lambda at: self._point(f"store_{at}")
        )
        if isinstance(command, CheckAssignment):
            return AssignmentChecked(said.slot, said.length, said.failure, said.detail)
        return BundleFetched(said.slot, said.failure, said.detail, said.hopeless)

    def _reach(self, state: InstallState) -> None:
        self.handle_event(StateReached(state))

    def run_to_end(self, crashes: int = 0) -> None:
        """Observe until nothing is left to do."""
        for _ in range(20):
            seen = DeviceSignals(inferences=1000, starts=1, crashes=crashes)
            self.handle_event(HealthObserved(seen, serving=self.serving))
            if self.core.row.state in (InstallState.IDLE, InstallState.SAFE_MODE):
                return


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def run_to_point(job: UpdateJob, order: Assignment, at: str, fails: Callable[[], None], crashes: int) -> str:
    """Run the process in which it happens: from the assignment to the end, or to the point."""
    met: list[str] = []

    def point(here: str) -> None:
        if here == at and not met:
            met.append(here)
            fails()

    life = DeviceProcess(job, point)
    life.handle_event(AssignmentReceived(order))
    life.run_to_end(crashes)
    ended = life.core.row.ended
    return f"{ended.state if ended else ''} {ended.failure if ended else ''} {'met' if met else 'missed'}"


def run_next_process(job: UpdateJob) -> dict[str, Any]:
    """Run the next process to its end; what serves then is opened and checked."""
    life = DeviceProcess(job, lambda _: None)
    life.run_to_end()
    with Store(life.folder) as store:
        current = store.current
        version = store.open_slot(current).manifest.version if current else 0
        slots = len(list((life.folder / "slots").iterdir()))
        litter = slots - sum(slot is not None for slot in (store.current, store.previous))
        found = {"serves": version, "trial": store.on_trial, "candidate": store.candidate is not None}
    ended = life.core.row.ended
    told = {"state": life.core.row.state.value, "ended": ended.state.value if ended else "", "litter": litter}
    return {**found, **told, "same": life.serving == (current.digest if current else "")}


def run_in_child(work: Callable[[], object]) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        return file.read().decode() or '"killed"'


def kill_process() -> None:
    os._exit(9)


def refuse_write() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def list_points(mode: str) -> dict[str, int]:
    """Each point, and how often the model crashes on its way there: three crashes lead to a rollback."""
    forth = [f"{when}_{state}" for state in PASSED for when in ("before", "in")]
    back = [f"{when}_{state}" for state in BACK for when in ("before", "in")]
    store = [f"store_{step}" for step in StoreStep if step is not StoreStep.SWEEP]
    found = dict.fromkeys([*forth, *STORE_POINTS, *store], 0) | dict.fromkeys([*back, "roll_back"], 3)
    return found if mode == "kill" else {at: n for at, n in found.items() if not at.startswith("in_")}


def main() -> None:
    base, facts, mode, wanted = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), sys.argv[3], sys.argv[4:]
    order = msgspec.json.decode(facts["assignment"], type=Assignment)
    results = {}
    for at, crashes in list_points(mode).items():
        if wanted and at not in wanted:
            continue
        folder = base / at
        shutil.copytree(base / "installed", folder)
        job = msgspec.structs.replace(msgspec.json.decode(facts["job"], type=UpdateJob), folder=str(folder))
        fails = kill_process if mode == "kill" else refuse_write
        said = json.loads(run_in_child(partial(run_to_point, job, order, at, fails, crashes)))
        results[at] = {"said": said, **json.loads(run_in_child(partial(run_next_process, job)))}
        shutil.rmtree(folder)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
