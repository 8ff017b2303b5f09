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
from edge_agent.update.install_worker import run
from edge_agent.update.installed import look
from edge_agent.update.machine import InstallMachine
from edge_agent.update.recovery import InstallTable, recover_install
from edge_agent.update.types import (
    Activate,
    Activated,
    AssignmentReceived,
    Check,
    Checked,
    CleanUp,
    Command,
    Commit,
    Event,
    Examine,
    Examined,
    Fetch,
    Fetched,
    InstallRow,
    Limits,
    Observed,
    Reached,
    Resumed,
    RollBack,
    Write,
)
from edge_agent.update.worker_protocol import UpdateJob, WorkerRequest
from models.update.slots import Step, Store
from tests.edge_agent.doubles.updates_bench import NAMES
from wire.protocol.rollout import Assignment, InstallState, Signals

DEVICE = "demo--d1"
PASSED = (
    InstallState.CHECKING, InstallState.ACCEPTED, InstallState.DOWNLOADING, InstallState.VERIFYING,
    InstallState.STAGED, InstallState.SELF_TEST, InstallState.ACTIVATING, InstallState.PROBATION,
    InstallState.COMMITTED,
)  # fmt: skip
BACK = (InstallState.ROLLING_BACK, InstallState.ROLLED_BACK)
DEEDS = ("prove", "flip", "load", "raise_floor", "commit")
Point = Callable[[str], None]


class Table(InstallTable):
    """An install table with a named point before each write, and one after it."""

    def __init__(self, folder: Path, point: Point) -> None:
        super().__init__(folder)
        self._point = point

    def write(self, row: InstallRow) -> None:
        self._point(f"before_{row.state}")
        super().write(row)
        self._point(f"in_{row.state}")


class Life:
    """One process of a device with no link, and with no model in memory but what its store names."""

    def __init__(self, job: UpdateJob, point: Point) -> None:
        self.folder = Path(job.folder)
        self._job, self._point = job, point
        self._table = Table(self.folder, point)
        self._actions = StoreActions(self.folder, NAMES, point)
        self.core = InstallMachine(DEVICE, self._table.read(), Limits(interval_s=0.0, retry_s=0.0))
        shun = recover_install(self.folder, NAMES, self.core, now_ms())
        found = look(self.folder, NAMES, shun=shun)
        self.serving = found.slot.digest if found.slot else ""
        self.on(Resumed(self.serving))

    def on(self, event: Event) -> None:
        commands = self.core.on(event, now_ms())
        while commands:
            command, *commands = commands
            found = self._obey(command)
            commands += self.core.on(found, now_ms()) if found else []

    def _obey(self, command: Command) -> Event | None:
        if isinstance(command, Write):
            self._write(command.row)
        elif isinstance(command, Check | Fetch):
            return self._errand(command)
        elif isinstance(command, Activate):
            found, runner = self._actions.activate(command.target)
            self.serving = command.target.digest if runner else self.serving
            return Activated(found.failure, found.detail, Signals(inferences=1000)) if runner else found
        elif isinstance(command, Commit):
            return self._actions.commit(command.target)
        elif isinstance(command, RollBack):
            done, slot = self._actions.roll_back(command.target)
            self.serving = slot.digest if slot else self.serving
            return done
        elif isinstance(command, CleanUp):
            self._actions.clean_up(command)
        elif isinstance(command, Examine):
            return Examined(same=True)
        return None

    def _write(self, row: InstallRow) -> None:
        """Write a row as the installer does: until the disk takes it."""
        for _ in range(5):
            try:
                return self._table.write(row)
            except (sqlite3.Error, OSError):
                continue
        raise RuntimeError("the disk is full for good")

    def _errand(self, command: Check | Fetch) -> Event:
        work = self.core.row.work
        if work is None:
            raise RuntimeError("nothing is assigned")
        target, state = (command.target, command.state) if isinstance(command, Fetch) else (None, InstallState.CHECKING)
        said = run(
            WorkerRequest(self._job, work, now_ms(), target, state), self._reach, lambda at: self._point(f"store_{at}")
        )
        if isinstance(command, Check):
            return Checked(said.slot, said.length, said.failure, said.detail)
        return Fetched(said.slot, said.failure, said.detail, said.hopeless)

    def _reach(self, state: InstallState) -> None:
        self.on(Reached(state))

    def rest(self, crashes: int = 0) -> None:
        """Observe until nothing is left to do."""
        for _ in range(20):
            seen = Signals(inferences=1000, starts=1, crashes=crashes)
            self.on(Observed(seen, serving=self.serving))
            if self.core.row.state in (InstallState.IDLE, InstallState.SAFE_MODE):
                return


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def lived(job: UpdateJob, order: Assignment, at: str, fails: Callable[[], None], crashes: int) -> str:
    """Run the process in which it happens: from the assignment to the end, or to the point."""
    met: list[str] = []

    def point(here: str) -> None:
        if here == at and not met:
            met.append(here)
            fails()

    life = Life(job, point)
    life.on(AssignmentReceived(order))
    life.rest(crashes)
    ended = life.core.row.ended
    return f"{ended.state if ended else ''} {ended.failure if ended else ''} {'met' if met else 'missed'}"


def after(job: UpdateJob) -> dict[str, Any]:
    """Run the next process to its end; what serves then is opened and checked."""
    life = Life(job, lambda _: None)
    life.rest()
    with Store(life.folder) as store:
        current = store.current
        version = store.open(current).manifest.version if current else 0
        slots = len(list((life.folder / "slots").iterdir()))
        litter = slots - sum(slot is not None for slot in (store.current, store.previous))
        found = {"serves": version, "trial": store.on_trial, "candidate": store.candidate is not None}
    ended = life.core.row.ended
    told = {"state": life.core.row.state.value, "ended": ended.state.value if ended else "", "litter": litter}
    return {**found, **told, "same": life.serving == (current.digest if current else "")}


def in_child(work: Callable[[], object]) -> str:
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


def killed() -> None:
    os._exit(9)


def refused() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def points(mode: str) -> dict[str, int]:
    """Each point, and how often the model crashes on its way there: three crashes lead to a rollback."""
    forth = [f"{when}_{state}" for state in PASSED for when in ("before", "in")]
    back = [f"{when}_{state}" for state in BACK for when in ("before", "in")]
    store = [f"store_{step}" for step in Step if step is not Step.SWEEP]
    found = dict.fromkeys([*forth, *DEEDS, *store], 0) | dict.fromkeys([*back, "roll_back"], 3)
    return found if mode == "kill" else {at: n for at, n in found.items() if not at.startswith("in_")}


def main() -> None:
    base, facts, mode, wanted = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), sys.argv[3], sys.argv[4:]
    order = msgspec.json.decode(facts["assignment"], type=Assignment)
    results = {}
    for at, crashes in points(mode).items():
        if wanted and at not in wanted:
            continue
        folder = base / at
        shutil.copytree(base / "installed", folder)
        job = msgspec.structs.replace(msgspec.json.decode(facts["job"], type=UpdateJob), folder=str(folder))
        fails = killed if mode == "kill" else refused
        said = json.loads(in_child(partial(lived, job, order, at, fails, crashes)))
        results[at] = {"said": said, **json.loads(in_child(partial(after, job)))}
        shutil.rmtree(folder)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
