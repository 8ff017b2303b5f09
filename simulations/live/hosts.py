"""Processes that the agents of a live run live in, as the run sees them: started, told what to do, watched, ended.

Rule: a process that ends before it is told to ends the run, with the last lines that it wrote.
"""

import asyncio
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from simulations.live.fleet.messages import HostCommand, HostRecords, HostSettings, HostState, HostStep
from simulations.processes import FOLLOW_PARENT
from simulations.scenario.schema import ScenarioError
from wire.process.exit_codes import ExitCode, ExitError

SPARE_DESCRIPTORS = 500
DESCRIPTORS = 4  # of an agent: its socket, its database and that one's two side files
_ENOUGH = 500  # agents that another process is worth its start for
_TELL_EVERY_S = 10.0
_STOP_S = 20.0
_LAST_LINES = 5

Say = Callable[[str], None]
K = TypeVar("K")


def choose_processes(devices: int, wanted: int | None, cores: int) -> int:
    """How many processes share the agents: as wanted, else one for every 500, but no more than there are cores."""
    most = max(1, min(cores, math.ceil(devices / _ENOUGH)))
    return min(devices, most if wanted is None else wanted)


def check_descriptors(devices: int, processes: int, limit: int) -> None:
    """Check that the open files of so many processes suffice. ScenarioError, one line, if they do not."""
    most = max(0, (limit - SPARE_DESCRIPTORS) // DESCRIPTORS)
    if devices > most * processes:
        more = f", of {math.ceil(devices / most)} they would" if most else ""
        raise ScenarioError(
            f"devices: {devices}, the open files ({limit}) of {processes} process{'es' if processes > 1 else ''} "
            f"suffice for {most * processes}{more}"
        )


class AgentProcess:
    """One process of agents. `state`: what it last said. `records`: what it left, once it has finished."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._folder = Path(settings.folder)
        self._log = self._folder / f"{settings.index}.log"
        self._child: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.state = HostState()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def start(self) -> None:
        """Start the process; it enrols its devices at once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{self._settings.index}.settings.json"
        file.write_bytes(msgspec.json.encode(self._settings))
        words = ("-P", "-m", "simulations.live.fleet.host", str(file))
        with self._log.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", FOLLOW_PARENT, str(os.getpid()), *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._reading = asyncio.create_task(self._read_states(self._child), name=f"agents-{self._settings.index}")

    async def _read_states(self, child: asyncio.subprocess.Process) -> None:
        while child.stdout is not None and (line := await child.stdout.readline()):
            self.state = msgspec.json.decode(line, type=HostState)

    def send(self, command: HostCommand) -> None:
        """Tell it what to do next."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.write(msgspec.json.encode(command) + b"\n")

    def check(self) -> None:
        """ExitError(INTERNAL) if the process has ended too early."""
        if self._reading is not None and self._reading.done() and not self.state.finished:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            told = " | ".join(lines[-_LAST_LINES:]) or "it said nothing"
            raise ExitError(ExitCode.INTERNAL, f"a process of the live run's agents has ended: {told}")

    def read_records(self) -> HostRecords:
        """What it left, once it has finished."""
        return msgspec.json.decode(self._settings.records_file.read_bytes(), type=HostRecords)

    async def stop(self) -> None:
        """End the process: it was told to, or has not long to do it."""
        if self._child is None or self._child.stdin is None:
            return
        self._child.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S if self.state.finished else 0):
                await self._child.wait()
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading})


class AgentProcesses:
    """All agents of a run, in their processes. `say`: gets a line for each step, and every ten seconds on the way."""

    def __init__(self, settings: Iterable[HostSettings], say: Say = lambda _: None) -> None:
        self._hosts = [AgentProcess(each) for each in settings]
        self._say = say
        self.records: list[HostRecords] = []

    @property
    def pids(self) -> list[int]:
        """Process ids of those that run."""
        return [host.pid for host in self._hosts if host.pid is not None]

    @property
    def states(self) -> list[HostState]:
        """What each process last said. ExitError(INTERNAL) if one has ended too early."""
        for host in self._hosts:
            host.check()
        return [host.state for host in self._hosts]

    @property
    def samples(self) -> int:
        """Samples that were taken so far."""
        return sum(state.samples for state in self.states)

    @property
    def is_quiet(self) -> bool:
        """Whether load and kills are over and no question is open."""
        return all(state.over and not state.open for state in self.states)

    @property
    def late_s(self) -> float:
        """How far the load fell behind at worst."""
        return max(state.late_s for state in self.states)

    async def enrol(self, devices: int) -> None:
        """Start the processes; returns when all devices are enrolled."""
        for host in self._hosts:
            await host.start()
        await self._wait_for_all("enrolled", devices, lambda state: state.enrolled)

    async def connect(self, devices: int) -> None:
        """Connect all agents; returns when every link is up."""
        self._send(HostCommand(HostStep.CONNECT))
        await self._wait_for_all("connected", devices, lambda state: state.connected)

    def begin(self, began_s: float) -> None:
        """Let load and kills begin at this moment, in monotonic seconds."""
        self._send(HostCommand(HostStep.ACT, began_s))

    def halt(self) -> None:
        """End load and kills now."""
        self._send(HostCommand(HostStep.HALT))

    async def finish(self) -> None:
        """Stop all agents cleanly, and take their processes' records."""
        self._send(HostCommand(HostStep.FINISH))
        await self._wait_for_all("stopped", len(self._hosts), lambda state: state.finished)
        self.records = [host.read_records() for host in self._hosts]

    async def stop(self) -> None:
        """End the processes."""
        await asyncio.gather(*(host.stop() for host in self._hosts))

    def _send(self, command: HostCommand) -> None:
        for host in self._hosts:
            host.send(command)

    async def _wait_for_all(self, what: str, most: int, count: Callable[[HostState], int]) -> None:
        """Wait until the processes have done something `most` times, and tell how far they are."""
        tell_at = time.monotonic() + _TELL_EVERY_S
        while (done := sum(map(count, self.states))) < most:
            if time.monotonic() >= tell_at:
                tell_at += _TELL_EVERY_S
                self._say(f"{done} of {most} {what}")
            await asyncio.sleep(0.1)

    # What the processes left

    @property
    def counts(self) -> dict[str, int]:
        """The agents' counters and those of their load, by dotted name."""
        agents, load = self._sum(lambda each: each.counts), self._sum(lambda each: each.load)
        told = {f"agent.{name}": count for name, count in sorted(agents.items())}
        return told | {f"load.{name}": count for name, count in sorted(load.items())}

    @property
    def arrivals(self) -> Counter[int]:
        """Samples by bucket."""
        return self._sum(lambda each: each.arrivals)

    @property
    def truth(self) -> dict[str, int]:
        """The right label by answer id."""
        return {id_: label for each in self.records for id_, label in each.truth.items()}

    def _sum(self, part: Callable[[HostRecords], dict[K, int]]) -> Counter[K]:
        found: Counter[K] = Counter()
        for each in self.records:
            found.update(part(each))
        return found


def list_settings(common: HostSettings) -> list[HostSettings]:
    """The settings of every process, from those of one."""
    return [msgspec.structs.replace(common, index=index) for index in range(common.processes)]
