"""Outcome of a run: counts per bucket of virtual time, latency histograms, history report, expectations.

Rule: values only; equal for equal scenarios and seeds but for `wall`. Nothing in it grows with the number of samples.
The JSON of a report is this value field by field.
"""

from math import ceil, log2
from typing import Any

import msgspec

from simulations.checking.events import HistoryReport

FIRST_S = 0.001  # upper edge of bin 0
PER_OCTAVE = 4  # bins of a doubling: an edge is 19 % above the last
BINS = 128  # the last holds whatever took longer than 35 days

Series = tuple[int, ...]  # one number a bucket
Bins = dict[int, int]  # latency bin -> how many


def find_latency_bin(seconds: float) -> int:
    """Number of the histogram bin that a latency in seconds falls into: up to and including its upper edge."""
    if seconds <= FIRST_S:
        return 0
    return min(BINS - 1, ceil(PER_OCTAVE * log2(seconds / FIRST_S)))


def bin_upper_s(number: int) -> float:
    """Upper edge of a histogram bin in seconds: no latency in it was longer (but in the last one)."""
    return float(FIRST_S * 2 ** (number / PER_OCTAVE))


def quantile_s(bins: Bins, share: float) -> float | None:
    """Quantile of a latency histogram in seconds (upper edge of the bin); None if it is empty.

    `share`: 0.5 = median.
    """
    rank, seen = share * sum(bins.values()), 0
    for number in sorted(bins):
        seen += bins[number]
        if seen >= rank and seen:
            return bin_upper_s(number)
    return None


class Latency(msgspec.Struct, frozen=True):
    """Latency histograms from sample to answer, by bucket of the answer.

    `source`: `local`, `hub`, or `correction`.
    """

    source: str
    bins: tuple[Bins, ...]


class TimelineMark(msgspec.Struct, frozen=True):
    """An event of the run, as it is marked on every time axis."""

    at_s: float
    lasts_s: float
    kind: str
    text: str


class Violation(msgspec.Struct, frozen=True):
    """A rule that a run broke. `replay`: a command that shows it again."""

    law: str
    story: str
    replay: str


class JudgedExpectation(msgspec.Struct, frozen=True):
    """One expectation with the value seen; None (and not held) where the run has no such figure."""

    figure: str
    value: float | None
    at_most: float | None
    at_least: float | None
    held: bool
    window: str = ""


class RolloutWave(msgspec.Struct, frozen=True):
    """Wave of a rollout: when it opened, and how many devices at most might run the candidate in it."""

    name: str
    from_s: float
    allowed: int


class GateDecision(msgspec.Struct, frozen=True):
    """Decision of the quality gate with its reason, and the statistical bound it rests on (None = inconclusive)."""

    at_s: float
    verdict: str
    why: str = ""
    bound: float | None = None


class RolloutRecord(msgspec.Struct, frozen=True):
    """A rollout as the run saw it. `exposed`: devices that ran the candidate, at each bucket's end."""

    name: str
    end: str
    began_s: float
    ended_s: float
    waves: tuple[RolloutWave, ...]
    exposed: Series
    looks: tuple[GateDecision, ...] = ()


class RunCost(msgspec.Struct, frozen=True):
    """Cost of the run on this machine: the one part that differs between equal runs."""

    seconds: float = 0.0
    processes: int = 1
    peak_rss_bytes: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run showed.

    `until_s`: virtual time reached; less than the scenario's end where it was stopped. `answers`: `source.why` -> how
    many a bucket (`local.confident`, `hub.verdict`, and `correction.…`). `right`: the same for those that were
    right. `queues`: hub -> most questions waiting in the bucket. `bytes_by_rule`: what left, by the rule that permitted
    it. `states`: devices at each bucket's end (`online`, `offline`, `cut`, `down`, ...). `counts`: totals by
    dotted name.
    """

    scenario: str
    digest: str
    question: str
    seed: int
    devices: int
    duration_s: float
    step_s: float
    until_s: float
    complete: bool
    samples: int
    events: int
    arrivals: Series
    answers: dict[str, Series]
    right: dict[str, Series]
    latency: tuple[Latency, ...]
    queues: dict[str, Series]
    bytes_by_rule: dict[str, Series]
    states: dict[str, Series]
    counts: dict[str, int]
    history: HistoryReport
    marks: tuple[TimelineMark, ...] = ()
    violations: tuple[Violation, ...] = ()
    expectations: tuple[JudgedExpectation, ...] = ()
    rollouts: tuple[RolloutRecord, ...] = ()
    wall: RunCost = RunCost()

    @property
    def ok(self) -> bool:
        """Whether the history has no flaw, no rule was broken, and every expectation held."""
        return self.history.ok and not self.violations and all(judged.held for judged in self.expectations)

    def to_plain(self, *, wall: bool = True) -> dict[str, Any]:
        """The outcome as a JSON object; without `wall`, equal runs give equal values."""
        values: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return values if wall else {name: value for name, value in values.items() if name != "wall"}


class RunProgress(msgspec.Struct, frozen=True):
    """Progress of a run: virtual seconds, samples and kernel events so far."""

    until_s: float
    samples: int
    events: int
