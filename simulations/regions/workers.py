"""Worker processes of a run: each simulates some regions, all in step where messages can pass between them.

Rule: workers are spawned, never forked; Ctrl-C is handled by the caller alone, who stops them through their pipes.
"""

import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Self

import msgspec

from simulations.nodes.services import Cores
from simulations.regions.coordinator import Border, Share, Team, has_borders, peak_rss_bytes, slices
from simulations.regions.region import DefectError
from simulations.report.outcome import Passed
from simulations.scenario.types import Scenario

_STOP = None


class Ended(msgspec.Struct, frozen=True):
    """Results of a worker's regions.

    `until_s`: virtual time that they reached; `peak_rss_bytes`: memory of its process.
    """

    shares: dict[int, Share]
    until_s: float
    complete: bool
    peak_rss_bytes: int


class WorkerError(Exception):
    """A worker process has died."""


def work(pipe: Connection, scenario: Scenario, numbers: tuple[int, ...]) -> None:
    """Main function of a worker process: runs its regions slice by slice and sends what each hands over.

    It ends at the scenario's end, or when `pipe` tells it to stop; its last message is an `Ended`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    team, borders = Team(scenario, numbers, Cores()), has_borders(scenario)
    until_s, complete = 0.0, True
    for begin_s, end_s in slices(scenario):
        try:
            handed = team.go(begin_s, end_s)
        except DefectError:
            complete = False
            break
        until_s = end_s
        pipe.send((Passed(until_s, team.samples, team.events), handed))
        if borders or pipe.poll():
            said = pipe.recv()
            if said is _STOP:
                complete = until_s >= scenario.ends_s
                break
            team.take(said)
    pipe.send(Ended(team.shares(complete=complete), until_s, complete, peak_rss_bytes()))


class Workers:
    """Worker processes of one run, as a context manager that leaves no process behind."""

    def __init__(self, scenario: Scenario, processes: int) -> None:
        regions = range(len(scenario.regions))
        self._borders = has_borders(scenario)
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._passed: dict[Connection, Passed] = {}
        self._ended: dict[Connection, Ended] = {}
        context = get_context("spawn")
        for place in range(min(processes, len(regions))):
            ours, theirs = context.Pipe()
            numbers = tuple(regions[place::processes])
            process = context.Process(target=work, args=(theirs, scenario, numbers), name=f"region-{place}")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            if process.is_alive() and error[0] is not None:
                process.terminate()
            process.join()

    def run(self, progress: Callable[[Passed], bool]) -> list[Ended]:
        """Run until all workers have ended; if `progress` returns False they stop soon."""
        while len(self._ended) < len(self._pipes):
            handed = self._round()
            if not progress(self._so_far()):
                self._tell(_STOP)
                self._drain()
            elif self._borders and handed:
                self._tell(Border.of([handed[number] for number in sorted(handed)]))
        return [self._ended[pipe] for pipe in self._pipes]

    def _round(self) -> dict[int, Border]:
        """One message of each worker that still runs where they keep step; else of whoever has one."""
        running = [pipe for pipe in self._pipes if pipe not in self._ended]
        handed: dict[int, Border] = {}
        for pipe in running if self._borders else wait(running):
            handed |= self._hear(pipe)  # type: ignore[arg-type]
        return handed

    def _hear(self, pipe: Connection) -> dict[int, Border]:
        """Receive one message of a worker. WorkerError if its process has died."""
        try:
            said = pipe.recv()
        except EOFError:
            raise WorkerError("a worker process of the simulation has died") from None
        if isinstance(said, Ended):
            self._ended[pipe] = said
            return {}
        self._passed[pipe], handed = said
        return handed if self._borders else {}

    def _drain(self) -> None:
        """Receive until every worker has sent its results."""
        for pipe in self._pipes:
            while pipe not in self._ended:
                self._hear(pipe)

    def _tell(self, word: Border | None) -> None:
        for pipe in self._pipes:
            if pipe not in self._ended:
                pipe.send(word)

    def _so_far(self) -> Passed:
        """Progress of all workers; virtual time is that of the slowest."""
        seen: Sequence[Passed] = list(self._passed.values())
        behind = min((each.until_s for each in seen), default=0.0) if len(seen) == len(self._pipes) else 0.0
        return Passed(behind, sum(each.samples for each in seen), sum(each.events for each in seen))
