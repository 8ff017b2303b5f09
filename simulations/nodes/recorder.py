"""Counters of a region while it runs: answers, latencies, queues, bytes and states per bucket of virtual time.

Rule: it counts and forgets; nothing in it grows with the number of samples. The sums over regions are the fleet's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from edge_agent.core.commands import Answer, Correction
from edge_agent.core.records import Source
from policies.model.reasons import Why
from simulations.kernel.kernel import Kernel
from simulations.nodes.device_disk import Sampled
from simulations.report.outcome import Bins, bin_of

Counts = dict[str, list[int]]
LOCAL, HUB, CORRECTION = "local", "hub", "correction"


class Record(msgspec.Struct):
    """Counts of one region, or of all of them: each list has one number per bucket."""

    arrivals: list[int]
    latency: dict[str, list[Bins]]
    answers: Counts = {}
    right: Counts = {}
    queues: Counts = {}
    bytes_by_rule: Counts = {}
    states: Counts = {}

    def add(self, other: "Record") -> None:
        """Add what another region counted."""
        self.arrivals = [a + b for a, b in zip(self.arrivals, other.arrivals, strict=True)]
        for mine, theirs in (
            (self.answers, other.answers), (self.right, other.right), (self.queues, other.queues),
            (self.bytes_by_rule, other.bytes_by_rule), (self.states, other.states),
        ):  # fmt: skip
            for name, counts in theirs.items():
                before = mine.get(name, [0] * len(counts))
                mine[name] = [a + b for a, b in zip(before, counts, strict=True)]
        for source, bins in other.latency.items():
            pairs = zip(self.latency[source], bins, strict=True)
            self.latency[source] = [dict(sorted((Counter(a) + Counter(b)).items())) for a, b in pairs]


def empty(buckets: int) -> Record:
    """A record of zeros for this many buckets."""
    latency: dict[str, list[Bins]] = {name: [{} for _ in range(buckets)] for name in (LOCAL, HUB, CORRECTION)}
    return Record([0] * buckets, latency)


class Recorder:
    """Counters of a region. `bucket`: the one that virtual time is in; whoever advances the time sets it."""

    def __init__(self, buckets: int, kernel: Kernel) -> None:
        self.bucket = 0
        self.samples = 0
        self.record = empty(buckets)
        self._buckets = buckets
        self._kernel = kernel
        self._alone: Counter[tuple[Why, bool]] = Counter()

    def sampled(self, count: int) -> None:
        """Count samples taken."""
        self.samples += count
        self.record.arrivals[self.bucket] += count

    def alone(self, why: Why, right: bool) -> None:
        """Count an answer that was given at once, without a question to a hub."""
        self._alone[why, right] += 1

    def close(self) -> dict[Why, int]:
        """Close the current bucket; returns how many were answered without a question, by reason."""
        whys: Counter[Why] = Counter()
        for (why, right), count in sorted(self._alone.items()):
            self._count(f"{LOCAL}.{why}", count, count * right)
            whys[why] += count
        if whys:
            bins = self.record.latency[LOCAL][self.bucket]
            bins[0] = bins.get(0, 0) + whys.total()
        self._alone.clear()
        return whys

    def said(self, said: Answer | Correction, sampled: Sampled) -> None:
        """Count an answer or correction of a question, with its latency."""
        if isinstance(said, Correction):
            source, why = CORRECTION, Why.VERDICT
        else:
            source, why = (HUB if said.source is Source.HUB else LOCAL), said.why
        self._count(f"{source}.{why}", 1, said.prediction.label == sampled.truth)
        bins = self.record.latency[source][self.bucket]
        which = bin_of(self._kernel.now - sampled.at_s)
        bins[which] = bins.get(which, 0) + 1

    def left(self, rule: str, size_bytes: int) -> None:
        """Count bytes that left a device, under the policy rule that permitted it."""
        self._row(self.record.bytes_by_rule, rule)[self.bucket] += size_bytes

    def queued(self, hub: str, queued: Mapping[str, int]) -> None:
        """Record the questions waiting at a hub; each bucket keeps the maximum."""
        row, waiting = self._row(self.record.queues, hub), sum(queued.values())
        row[self.bucket] = max(row[self.bucket], waiting)

    def states(self, states: Iterable[tuple[str, int]]) -> None:
        """Record the number of devices in each state at the end of the bucket."""
        for name, count in states:
            self._row(self.record.states, name)[self.bucket] = count

    def _count(self, key: str, count: int, right: int) -> None:
        self._row(self.record.answers, key)[self.bucket] += count
        self._row(self.record.right, key)[self.bucket] += right

    def _row(self, counts: Counts, name: str) -> list[int]:
        row = counts.get(name)
        if row is None:
            row = counts[name] = [0] * self._buckets
        return row
