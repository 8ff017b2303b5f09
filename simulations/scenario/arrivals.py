"""Sample arrival processes of a region: Poisson, diurnal, bursty or traced, drawn by numpy slice by slice.

Rule: every draw comes from the generator passed in, in the order of slices: the same slices give the same samples.
Rates keep their mean whatever the kind; a trace is followed exactly, sample by sample.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.scenario.types import DAY_S, EventKind, LoadKind, Scenario, ScenarioEvent

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


_MORE = (EventKind.SURGE, EventKind.STORM)


class ArrivalSlice(NamedTuple):
    """Samples of one slice of time as three lists of one length.

    `at_s`: virtual seconds, sorted; `device`: number in the whole fleet; `data_class`: its data class.
    """

    at_s: list[float]
    device: list[int]
    data_class: list[str]


class ArrivalArrays(NamedTuple):
    """Samples of one slice of time as arrays: virtual seconds (sorted), device, place of the class in the load's."""

    at_s: Floats
    device: Whole
    place: Whole

    def select(self, which: Whole) -> "ArrivalArrays":
        """Those at these places."""
        return ArrivalArrays(self.at_s[which], self.device[which], self.place[which])


class _UnsortedArrivals(NamedTuple):
    """Arrivals that are not sorted by time yet."""

    at_s: Floats
    device: Whole


def select_devices(event: ScenarioEvent, devices: range) -> range:
    """Devices of a region that an event is about: the first `share` of them, or the one it names.

    `devices`: those of the region. An empty range if the named device lives elsewhere.
    """
    if event.device >= 0:
        return range(event.device, event.device + 1) if event.device in devices else range(0)
    return devices[: math.ceil(event.share * len(devices))]


class ArrivalProcess:
    """Sample arrivals of region `number` of a scenario, drawn from `rng`.

    `draw_between` is asked for slices that follow each other; bursts that last beyond a slice are carried over.
    """

    def __init__(self, scenario: Scenario, number: int, rng: np.random.Generator) -> None:
        region, load = scenario.regions[number], scenario.load
        self._load = load
        self._until_s = scenario.duration_s
        self._devices = scenario.devices_of(number)
        self._share = len(self._devices) / scenario.devices
        self._clock_s = scenario.begins_minute * 60.0 - region.shift_s
        self._rng = rng
        self._surges = [e for e in scenario.events if e.kind in _MORE and e.region in ("", region.name)]
        self._bursts = _UnsortedArrivals(np.zeros(0), np.zeros(0, np.int64))  # that may not be over yet: begin, device
        self._names = np.array([name for name, _ in load.classes], dtype=object)
        self._class_edges = np.cumsum([share for _, share in load.classes])[:-1]
        if load.kind is LoadKind.TRACE:
            self._trace_s = np.array([row.at_s for row in load.trace])
            self._trace_n = np.concatenate([[0.0], np.cumsum([row.samples for row in load.trace[:-1]])]) * self._share

    def draw_between(self, begin_s: float, end_s: float) -> ArrivalSlice:
        """Draw the samples of [begin_s, end_s); none after the scenario's duration."""
        return self.to_lists(self.draw_arrays(begin_s, end_s))

    def to_lists(self, some: ArrivalArrays) -> ArrivalSlice:
        """The same samples as lists, with the names of their classes."""
        names: list[str] = self._names[some.place].tolist()
        return ArrivalSlice(some.at_s.tolist(), some.device.tolist(), names)

    def draw_arrays(self, begin_s: float, end_s: float) -> ArrivalArrays:
        """Draw the samples of [begin_s, end_s) as arrays; none after the scenario's duration."""
        end_s = min(end_s, self._until_s)
        if end_s <= begin_s or not self._devices:
            return ArrivalArrays(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
        parts = [self._draw_usual(begin_s, end_s), *(self._draw_surge(event, begin_s, end_s) for event in self._surges)]
        at_s, device = np.concatenate([p.at_s for p in parts]), np.concatenate([p.device for p in parts])
        order = np.argsort(at_s, kind="stable")
        return ArrivalArrays(at_s[order], device[order], self._draw_classes(len(order)))

    def _draw_usual(self, begin_s: float, end_s: float) -> _UnsortedArrivals:
        """Samples of [begin_s, end_s) without surges, by the kind of the load."""
        match self._load.kind:
            case LoadKind.POISSON:
                return self._draw_poisson(self._load.samples_per_s, begin_s, end_s)
            case LoadKind.DIURNAL:
                return self._draw_diurnal(begin_s, end_s)
            case LoadKind.BURSTY:
                return self._draw_bursty(begin_s, end_s)
            case LoadKind.TRACE:
                return self._draw_traced(begin_s, end_s)

    def _draw_poisson(self, rate_per_s: float, begin_s: float, end_s: float) -> _UnsortedArrivals:
        """A Poisson process: its number, then that many moments and devices, evenly drawn."""
        count = int(self._rng.poisson(rate_per_s * len(self._devices) * (end_s - begin_s)))
        return _UnsortedArrivals(self._rng.uniform(begin_s, end_s, count), self._draw_devices(count))

    def _draw_diurnal(self, begin_s: float, end_s: float) -> _UnsortedArrivals:
        """Drawn at the day's highest rate, then thinned (Lewis and Shedler 1979)."""
        load = self._load
        found = self._draw_poisson(load.samples_per_s * (1 + load.swing), begin_s, end_s)
        turn = 2 * math.pi / DAY_S
        rate = 1 + load.swing * np.cos(turn * (found.at_s + self._clock_s - load.peak_s))
        kept = self._rng.random(len(rate)) * (1 + load.swing) < rate
        return _UnsortedArrivals(found.at_s[kept], found.device[kept])

    def _draw_bursty(self, begin_s: float, end_s: float) -> _UnsortedArrivals:
        """Poisson at a quiet rate, and more during each device's bursts; the mean is as stated."""
        load = self._load
        more, lasts_s = load.burst_factor - 1, load.burst_lasts_s
        quiet = load.samples_per_s / (1 + more * lasts_s / load.burst_every_s)  # so that the mean is as stated
        usual = self._draw_poisson(quiet, begin_s, end_s)
        begun = self._draw_poisson(1 / load.burst_every_s, begin_s, end_s)
        start = np.concatenate([self._bursts.at_s, begun.at_s])
        who = np.concatenate([self._bursts.device, begun.device])
        low, high = np.maximum(start, begin_s), np.minimum(start + lasts_s, end_s)
        counts = self._rng.poisson(quiet * more * (high - low))
        at_s = self._rng.uniform(np.repeat(low, counts), np.repeat(high, counts))
        lasting = start + lasts_s > end_s
        self._bursts = _UnsortedArrivals(start[lasting], who[lasting])
        return _UnsortedArrivals(
            np.concatenate([usual.at_s, at_s]), np.concatenate([usual.device, np.repeat(who, counts)])
        )

    def _draw_traced(self, begin_s: float, end_s: float) -> _UnsortedArrivals:
        """The k-th sample comes while the trace counts from k to k + 1: each exactly once, whatever the slices."""
        first, last = (math.floor(float(x)) for x in np.interp([begin_s, end_s], self._trace_s, self._trace_n))
        ranks = np.arange(first, last) + self._rng.random(last - first)
        at_s = np.clip(np.interp(ranks, self._trace_n, self._trace_s), begin_s, end_s)
        return _UnsortedArrivals(at_s, self._draw_devices(len(at_s)))

    def _draw_surge(self, event: ScenarioEvent, begin_s: float, end_s: float) -> _UnsortedArrivals:
        """`amount` times the mean rate, on the devices that are struck."""
        low, high = max(begin_s, event.at_s), min(end_s, event.ends_s)
        if high <= low:
            return _UnsortedArrivals(np.zeros(0), np.zeros(0, np.int64))
        some = select_devices(event, self._devices)
        mean = (event.amount - 1) * self._mean_per_s() * len(some) * (high - low)
        count = int(self._rng.poisson(max(0.0, mean)))
        return _UnsortedArrivals(
            self._rng.uniform(low, high, count), self._rng.integers(some.start, max(some.stop, 1), count)
        )

    def _mean_per_s(self) -> float:
        """Mean rate of one device, samples per second."""
        if self._load.kind is not LoadKind.TRACE:
            return self._load.samples_per_s
        return float(self._trace_n[-1] / (self._trace_s[-1] - self._trace_s[0]) / len(self._devices))

    def _draw_devices(self, count: int) -> Whole:
        return self._rng.integers(self._devices.start, self._devices.stop, count)

    def _draw_classes(self, count: int) -> Whole:
        """Data classes of `count` samples, drawn by their shares, as places in the load's list."""
        if len(self._names) == 1:
            return np.zeros(count, np.int64)
        return np.searchsorted(self._class_edges, self._rng.random(count), side="right")
