"""Counters of a region while it runs: answers, latencies, queues, bytes and states per bucket of virtual time.

Rule: it counts and forgets; nothing in it grows with the number of samples. The sums over regions are the fleet's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from edge_agent.question.commands import Answer, Correction
from edge_agent.question.records import AnswerSource
from policies.model.reasons import DecisionReason
from simulations.kernel.kernel import Kernel
from simulations.nodes.device_disk import SampleTruth
from simulations.report.outcome import Bins, find_latency_bin

Counts = dict[str, list[int]]
LOCAL, HUB, CORRECTION = "local", "hub", "correction"


class RegionRecord(msgspec.Struct):
    """Counts of one region, or of all of them: each list has one number per bucket."""

    arrivals: list[int]
    latency: dict[str, list[Bins]]
    answers: Counts = {}
    right: Counts = {}
    queues: Counts = {}
    bytes_by_rule: Counts = {}
    states: Counts = {}

    def add_record(self, other: "RegionRecord") -> None:
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


def make_empty_record(buckets: int) -> RegionRecord:
    """A record of zeros for this many buckets."""
    latency: dict[str, list[Bins]] = {name: [{} for _ in range(buckets)] for name in (LOCAL, HUB, CORRECTION)}
    return RegionRecord([0] * buckets, latency)


class RegionRecorder:
    """Counters of a region. `bucket`: the one that virtual time is in; whoever advances the time sets it."""

    def __init__(self, buckets: int, kernel: Kernel) -> None:
        self.bucket = 0
        self.samples = 0
        self.record = make_empty_record(buckets)
        self._buckets = buckets
        self._kernel = kernel
        self._alone: Counter[tuple[DecisionReason, bool]] = Counter()

    def count_samples(self, count: int) -> None:
        """Count samples taken."""
        self.samples += count
        self.record.arrivals[self.bucket] += count

    def count_local(self, why: DecisionReason, right: bool) -> None:
        """Count an answer that was given at once, without a question to a hub."""
        self._alone[why, right] += 1

    def close_bucket(self) -> dict[DecisionReason, int]:
        """Close the current bucket; returns how many were answered without a question, by reason."""
        whys: Counter[DecisionReason] = Counter()
        for (why, right), count in sorted(self._alone.items()):
            self._add_answers(f"{LOCAL}.{why}", count, count * right)
            whys[why] += count
        if whys:
            bins = self.record.latency[LOCAL][self.bucket]
            bins[0] = bins.get(0, 0) + whys.total()
        self._alone.clear()
        return whys

    def count_answer(self, said: Answer | Correction, sampled: SampleTruth) -> None:
        """Count an answer or correction of a question, with its latency."""
        if isinstance(said, Correction):
            source, why = CORRECTION, said.why
        else:
            source, why = (HUB if said.source is AnswerSource.HUB else LOCAL), said.why
        self._add_answers(f"{source}.{why}", 1, said.prediction.label == sampled.truth)
        bins = self.record.latency[source][self.bucket]
        which = find_latency_bin(self._kernel.now - sampled.at_s)
        bins[which] = bins.get(which, 0) + 1

    def add_answers(self, bucket: int, series: str, count: int, right: int) -> None:
        """Count answers of a series (`source.why`) in a bucket; their latencies are added apart."""
        for rows, more in ((self.record.answers, count), (self.record.right, right)):
            self._row_for(rows, series)[bucket] += more

    def add_latencies(self, bucket: int, source: str, bins: Bins) -> None:
        """Add latencies to the histogram of a source in a bucket."""
        kept = self.record.latency[source][bucket]
        for number, count in bins.items():
            kept[number] = kept.get(number, 0) + count

    def count_alone(self, why: DecisionReason, count: int, right: int) -> None:
        """Count answers of this moment that were given at once, without a question to a hub."""
        self._alone[why, True] += right
        self._alone[why, False] += count - right

    def add_bytes(self, bucket: int, rule: str, size_bytes: int) -> None:
        """Count bytes that left in a bucket."""
        self._row_for(self.record.bytes_by_rule, rule)[bucket] += size_bytes

    def count_bytes(self, rule: str, size_bytes: int) -> None:
        """Count bytes that left a device, under the policy rule that permitted it."""
        self._row_for(self.record.bytes_by_rule, rule)[self.bucket] += size_bytes

    def record_queue(self, hub: str, queued: Mapping[str, int]) -> None:
        """Record the questions waiting at a hub; each bucket keeps the maximum."""
        self.record_peak(hub, sum(queued.values()))

    def record_peak(self, hub: str, waiting: int) -> None:
        """Record that so many questions waited at a hub at once."""
        row = self._row_for(self.record.queues, hub)
        row[self.bucket] = max(row[self.bucket], waiting)

    def record_states(self, states: Iterable[tuple[str, int]]) -> None:
        """Record the number of devices in each state at the end of the bucket."""
        for name, count in states:
            self._row_for(self.record.states, name)[self.bucket] = count

    def _add_answers(self, key: str, count: int, right: int) -> None:
        self._row_for(self.record.answers, key)[self.bucket] += count
        self._row_for(self.record.right, key)[self.bucket] += right

    def _row_for(self, counts: Counts, name: str) -> list[int]:
        row = counts.get(name)
        if row is None:
            row = counts[name] = [0] * self._buckets
        return row
