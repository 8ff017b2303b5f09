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

from simulations.nodes.services import CoreClasses
from simulations.regions.coordinator import (
    RegionGroup,
    RegionResult,
    SliceHandover,
    has_borders,
    iterate_slices,
    measure_peak_rss_bytes,
)
from simulations.regions.region import DefectError
from simulations.report.outcome import RunProgress
from simulations.scenario.types import Scenario

_STOP = None


class WorkerResult(msgspec.Struct, frozen=True):
    """Results of a worker's regions.

    `until_s`: virtual time that they reached; `peak_rss_bytes`: memory of its process.
    """

    shares: dict[int, RegionResult]
    until_s: float
    complete: bool
    peak_rss_bytes: int


class WorkerError(Exception):
    """A worker process has died."""


def run_worker(pipe: Connection, scenario: Scenario, numbers: tuple[int, ...], bulk: bool) -> None:
    """Main function of a worker process: runs its regions slice by slice and sends what each hands over.

    It ends at the scenario's end, or when `pipe` tells it to stop; its last message is an `WorkerResult`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    team, borders = RegionGroup(scenario, numbers, CoreClasses(), bulk=bulk), has_borders(scenario)
    until_s, complete = 0.0, True
    for begin_s, end_s in iterate_slices(scenario):
        try:
            handed = team.run_slice(begin_s, end_s)
        except DefectError:
            complete = False
            break
        until_s = end_s
        pipe.send((RunProgress(until_s, team.samples, team.events), handed))
        if borders or pipe.poll():
            said = pipe.recv()
            if said is _STOP:
                complete = until_s >= scenario.ends_s
                break
            team.accept_handover(said)
    pipe.send(WorkerResult(team.collect_results(complete=complete), until_s, complete, measure_peak_rss_bytes()))


class RegionWorkers:
    """Worker processes of one run, as a context manager that leaves no process behind."""

    def __init__(self, scenario: Scenario, processes: int, *, bulk: bool = False) -> None:
        regions = range(len(scenario.regions))
        self._borders = has_borders(scenario)
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._passed: dict[Connection, RunProgress] = {}
        self._ended: dict[Connection, WorkerResult] = {}
        context = get_context("spawn")
        for place in range(min(processes, len(regions))):
            ours, theirs = context.Pipe()
            numbers = tuple(regions[place::processes])
            process = context.Process(target=run_worker, args=(theirs, scenario, numbers, bulk), name=f"region-{place}")
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

    def run(self, progress: Callable[[RunProgress], bool]) -> list[WorkerResult]:
        """Run until all workers have ended; if `progress` returns False they stop soon."""
        while len(self._ended) < len(self._pipes):
            handed = self._receive_round()
            if not progress(self._progress_so_far()):
                self._send_all(_STOP)
                self._drain_pipes()
            elif self._borders and handed:
                self._send_all(SliceHandover.combine([handed[number] for number in sorted(handed)]))
        return [self._ended[pipe] for pipe in self._pipes]

    def _receive_round(self) -> dict[int, SliceHandover]:
        """One message of each worker that still runs where they keep step; else of whoever has one."""
        running = [pipe for pipe in self._pipes if pipe not in self._ended]
        handed: dict[int, SliceHandover] = {}
        for pipe in running if self._borders else wait(running):
            handed |= self._receive(pipe)  # type: ignore[arg-type]
        return handed

    def _receive(self, pipe: Connection) -> dict[int, SliceHandover]:
        """Receive one message of a worker. WorkerError if its process has died."""
        try:
            said = pipe.recv()
        except EOFError:
            raise WorkerError("a worker process of the simulation has died") from None
        if isinstance(said, WorkerResult):
            self._ended[pipe] = said
            return {}
        self._passed[pipe], handed = said
        return handed if self._borders else {}

    def _drain_pipes(self) -> None:
        """Receive until every worker has sent its results."""
        for pipe in self._pipes:
            while pipe not in self._ended:
                self._receive(pipe)

    def _send_all(self, word: SliceHandover | None) -> None:
        for pipe in self._pipes:
            if pipe not in self._ended:
                pipe.send(word)

    def _progress_so_far(self) -> RunProgress:
        """Progress of all workers; virtual time is that of the slowest."""
        seen: Sequence[RunProgress] = list(self._passed.values())
        behind = min((each.until_s for each in seen), default=0.0) if len(seen) == len(self._pipes) else 0.0
        return RunProgress(behind, sum(each.samples for each in seen), sum(each.events for each in seen))
