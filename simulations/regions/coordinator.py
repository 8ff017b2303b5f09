"""Advances the regions of a scenario slice by slice, as many in a process as it is given.

Rule: slices and what is handed over between them depend on the scenario alone, never on the number of processes.
"""

import gc
import resource
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

import msgspec

from simulations.checking.events import HistoryReport
from simulations.nodes.recorder import RegionRecord
from simulations.nodes.services import CoreClasses
from simulations.regions.borders import BorderMessage, RemoteBroker
from simulations.regions.region import SimulatedRegion
from simulations.report.outcome import RolloutRecord
from simulations.scenario.types import Scenario

LONGEST_SLICE_S = 60.0
_MANY = 10_000
_SELDOM = (100_000, 50, 100)
BORDER_SLICE_S = 0.25  # where questions may cross a border: nothing crosses faster


class RegionResult(msgspec.Struct, frozen=True):
    """Result of one region at the end of a run."""

    record: RegionRecord
    report: HistoryReport
    counts: dict[str, int]
    samples: int
    events: int
    rollouts: tuple[RolloutRecord, ...] = ()


class SliceHandover(msgspec.Struct, frozen=True):
    """Messages and broker states that regions hand over at the end of a slice."""

    passages: list[BorderMessage]
    brokers: dict[str, RemoteBroker]

    @classmethod
    def combine(cls, borders: Sequence["SliceHandover"]) -> "SliceHandover":
        """Combine what several regions hand over; the order is that of the regions, not of the processes."""
        brokers = {name: broker for border in borders for name, broker in border.brokers.items()}
        return cls([each for border in borders for each in border.passages], brokers)


class RegionGroup:
    """Regions that share a process. `bulk`: ordinary questions are decided in bulk."""

    def __init__(self, scenario: Scenario, numbers: Sequence[int], cores: CoreClasses, *, bulk: bool = False) -> None:
        self.grounds = {number: SimulatedRegion(scenario, number, cores, bulk=bulk) for number in numbers}
        if scenario.devices >= _MANY:  # at rest they need not be looked at again
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_SELDOM)  # what is made from now on has hardly a cycle
        for ground in self.grounds.values():
            ground.start_region()

    def run_slice(self, begin_s: float, end_s: float) -> dict[int, SliceHandover]:
        """Run one slice of each region; returns what each hands over."""
        borders: dict[int, SliceHandover] = {}
        for number, ground in self.grounds.items():
            ground.run_slice(begin_s, end_s)
            borders[number] = SliceHandover(ground.abroad.take_outgoing(), ground.broker_states())
        return borders

    def accept_handover(self, border: SliceHandover) -> None:
        """Give each region the messages for it and the states of all brokers."""
        for ground in self.grounds.values():
            mine = [each for each in border.passages if each.to == ground.name]
            ground.abroad.accept_passages(mine, border.brokers)

    @property
    def samples(self) -> int:
        """Samples taken so far."""
        return sum(ground.recorder.samples for ground in self.grounds.values())

    @property
    def events(self) -> int:
        """Kernel events so far."""
        return sum(ground.kernel.events for ground in self.grounds.values())

    def collect_results(self, *, complete: bool) -> dict[int, RegionResult]:
        """Results of the regions; `complete` False: questions still open are judged as of now."""
        return {number: _collect_result(ground, complete=complete) for number, ground in self.grounds.items()}


def _collect_result(ground: SimulatedRegion, *, complete: bool) -> RegionResult:
    report = ground.make_report(complete=complete)
    seen = (ground.rollout.rollout_record(),) if ground.rollout else ()
    return RegionResult(
        record=ground.recorder.record,
        report=report,
        counts=ground.collect_counts(),
        samples=ground.recorder.samples,
        events=ground.kernel.events,
        rollouts=seen,
    )


def iterate_slices(scenario: Scenario) -> Iterator[tuple[float, float]]:
    """Begin and end of each slice up to the scenario's end, in virtual seconds; none lies in two buckets."""
    parts = ceil(scenario.step_s / (BORDER_SLICE_S if has_borders(scenario) else LONGEST_SLICE_S))
    for bucket in range(scenario.buckets):
        begin_s = bucket * scenario.step_s
        for part in range(parts):
            low, high = (begin_s + each * scenario.step_s / parts for each in (part, part + 1))
            if low < scenario.ends_s:
                yield low, min(high, scenario.ends_s)


def has_borders(scenario: Scenario) -> bool:
    """Whether anything can pass from one region to another (one has a failover region)."""
    return any(region.failover for region in scenario.regions)


def measure_peak_rss_bytes() -> int:
    """Highest resident memory of this process so far, in bytes.

    Not `ru_maxrss` where Linux tells it otherwise: a process that was started with fork and exec begins with the
    highest value of the process that started it.
    """
    try:
        status = Path("/proc/self/status").read_text("ascii").splitlines()
        return int(next(line.split()[1] for line in status if line.startswith("VmHWM:"))) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
