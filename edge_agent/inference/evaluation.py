"""Evaluation of the model that answers: statistics for the device's gates, agreement counts for the hub's gate. Pure.

Rule: only counts are kept; of a sample nothing but the two predictions of an audited one, until its verdict has come or
is given up.
"""

from collections import OrderedDict
from math import isfinite, log2

import msgspec

from wire.protocol.messages import Prediction
from wire.protocol.rollout import (
    MAX_AUDIT_CELLS,
    Assignment,
    AuditAgreement,
    AuditQuality,
    ClassSignals,
    DeviceSignals,
    RolloutCohort,
)

MAX_PENDING = 4096  # audits that await a verdict, and answers that may still get feedback
_BINS_PER_OCTAVE = 8  # histogram bins per octave: 9 % width
_BINS = 26 * _BINS_PER_OCTAVE  # up to a minute
_P95 = 0.95
_NO_SIGNALS, _NO_QUALITY = DeviceSignals(), AuditQuality()


class AuditedAnswer(msgspec.Struct, frozen=True):
    """An audited answer whose verdict has not come yet.

    `served`: the prediction given to the caller. `committed`: the committed model's prediction, None if that is the
    model that answered. `share`: share of answers that were audited then, in 0..1. `tolerance`: in units of the target,
    for regressors.
    """

    data_class: str
    share: float
    served: Prediction
    committed: Prediction | None
    tolerance: float


class ServingStatistics:
    """Statistics of the answers since it was created: counts, confidence sums, latency histogram.

    Sums and sums of squares allow mean and variance of the confidence per data class. Latencies go into logarithmic
    bins of 9 % width, from 1 microsecond to a minute. `already`: counts of an earlier process, to continue from.
    """

    __slots__ = ("_already", "_bins", "_classes", "confidence", "confidence_sq", "errors", "escalated", "inferences")

    def __init__(self, already: DeviceSignals = _NO_SIGNALS) -> None:
        self._already = already
        self._bins = [0] * _BINS
        self._classes: dict[str, list[float]] = {
            each.data_class: [each.answers, each.escalated, each.confidence, each.confidence_sq]
            for each in already.classes
        }
        self.inferences, self.errors, self.escalated = already.inferences, already.errors, already.escalated
        self.confidence, self.confidence_sq = already.confidence, already.confidence_sq

    def add_answer(self, data_class: str, confidence: float, spent_s: float, *, unsure: bool) -> None:
        """Count one answer.

        `spent_s`: inference time in seconds. `unsure`: it was below the threshold and was escalated. A confidence
        outside 0..1 (or NaN) counts as an error.
        """
        self.inferences += 1
        if not 0.0 <= confidence <= 1.0:  # false for NaN too
            self.errors += 1
            return
        square = confidence * confidence
        self.escalated += unsure
        self.confidence += confidence
        self.confidence_sq += square
        micros = spent_s * 1e6
        self._bins[min(int(_BINS_PER_OCTAVE * log2(micros)), _BINS - 1) if micros > 1.0 else 0] += 1
        sums = self._classes.get(data_class)
        if sums is None:
            if len(self._classes) >= MAX_AUDIT_CELLS:
                return
            sums = self._classes[data_class] = [0, 0, 0.0, 0.0]
        sums[0] += 1
        sums[1] += unsure
        sums[2] += confidence
        sums[3] += square

    def add_failure(self) -> None:
        """Count an inference that raised an error."""
        self.inferences += 1
        self.errors += 1

    def p95_us(self) -> int:
        """95th percentile of this process's inference times in microseconds: the bin's upper end; 0 without answers."""
        most, found = sum(self._bins) * _P95, 0
        for bin_, count in enumerate(self._bins):
            found += count
            if found >= most and found:
                return int(2 ** ((bin_ + 1) / _BINS_PER_OCTAVE))
        return 0

    def make_signals(self, rss_bytes: int) -> DeviceSignals:
        """The statistics as sent to the hub; `rss_bytes`: memory of the process."""
        classes = (
            ClassSignals(name, int(n), int(asked), total, square)
            for name, (n, asked, total, square) in self._classes.items()
        )
        return DeviceSignals(
            inferences=self.inferences, errors=self.errors, escalated=self.escalated, confidence=self.confidence,
            confidence_sq=self.confidence_sq, p95_us=self.p95_us(), rss_bytes=rss_bytes,
            crashes=self._already.crashes, starts=self._already.starts, classes=tuple(classes),
        )  # fmt: skip


class CandidateEvaluation:
    """Evaluates a candidate model while a rollout assignment is active. Owned by the event loop.

    Without an assignment only the statistics are counted, as baseline for the next one. Agreement is counted in cells,
    one for each data class and audit share; at most `MAX_AUDIT_CELLS` of them.
    """

    def __init__(self) -> None:
        self.seen = ServingStatistics()
        self.assignment: Assignment | None = None
        self._cells: dict[tuple[str, float], AuditAgreement] = {}
        self._unaudited: set[str] = set()
        self._dropped = 0
        self._pending: OrderedDict[int, AuditedAnswer] = OrderedDict()
        self._told: OrderedDict[str, AuditedAnswer | None] = OrderedDict()  # by answer id; None: has its feedback

    def start_evaluation(
        self, assignment: Assignment | None, already: DeviceSignals = _NO_SIGNALS, quality: AuditQuality = _NO_QUALITY
    ) -> None:
        """Start the evaluation for an assignment, or end it with None.

        `already`, `quality`: what an earlier process has counted for it.
        """
        self.assignment = assignment
        self.seen = ServingStatistics(already)
        self._cells = {(cell.data_class, cell.share): cell for cell in quality.cells}
        self._unaudited = set(quality.unaudited)
        self._dropped = quality.dropped
        self._pending.clear()
        self._told.clear()

    def make_quality(self) -> AuditQuality:
        """The agreement counts as sent to the hub."""
        return AuditQuality(
            tuple(self._cells.values()), tuple(sorted(self._unaudited))[:MAX_AUDIT_CELLS], self._dropped
        )

    @property
    def is_candidate(self) -> bool:
        """Whether the model that answers is the candidate itself."""
        return self.assignment is not None and self.assignment.cohort is RolloutCohort.CANDIDATE

    # Samples

    def limit_audit_share(self, audit_share: float) -> float:
        """Share of all answers that is audited for the assignment; 0 without one.

        `audit_share`: the share that the policy allows, which the assignment cannot exceed.
        """
        if self.assignment is None:
            return 0.0
        return min(audit_share, self.assignment.audit_share)

    def on_audit_denied(self, data_class: str) -> None:
        """Note a data class whose policy allows no audits, so that the hub knows of the gap."""
        if self.assignment is not None and len(self._unaudited) < MAX_AUDIT_CELLS:
            self._unaudited.add(data_class)

    def on_audit_stored(self, seq: int, id: str, drawn: AuditedAnswer) -> None:  # noqa: A002 - the product's word
        """An audit was stored under this question number and answer id."""
        self._pending[seq] = drawn
        self._told[id] = drawn
        for kept in (self._pending, self._told):
            if len(kept) > MAX_PENDING:
                kept.popitem(last=False)

    def on_verdict(self, seq: int, said: Prediction) -> None:
        """The hub's verdict on an audit: count whether the served and the committed model agree with it."""
        drawn = self._pending.pop(seq, None)
        if drawn is None or has_no_label(said):
            return
        right = predictions_agree(drawn.served, said, drawn.tolerance)
        other = predictions_agree(drawn.committed, said, drawn.tolerance) if drawn.committed else right
        cell = self._find_cell(drawn.data_class, drawn.share)
        if cell is None:
            self._dropped += 1
            return
        self._cells[cell.data_class, cell.share] = msgspec.structs.replace(
            cell, audited=cell.audited + 1, agreed=cell.agreed + right,
            worse=cell.worse + (other and not right), better=cell.better + (right and not other),
        )  # fmt: skip

    def on_feedback(self, id: str, served: AuditedAnswer, truth: float) -> None:  # noqa: A002 - the product's word
        """A user's feedback on an answer: count it as right or wrong, once per answer.

        `served`: how it was answered, for an answer that was not audited. `truth`: the true label or value.
        """
        known = self._told.get(id, served)
        if self.assignment is None or known is None:
            return
        self._told[id] = None
        cell = self._find_cell(known.data_class, known.share)
        if cell is None:
            return
        right = matches_truth(known.served, truth, known.tolerance)
        other = matches_truth(known.committed, truth, known.tolerance) if known.committed else right
        self._cells[cell.data_class, cell.share] = msgspec.structs.replace(
            cell, told=cell.told + 1, told_wrong=cell.told_wrong + (not right),
            told_worse=cell.told_worse + (other and not right), told_better=cell.told_better + (right and not other),
        )  # fmt: skip

    def _find_cell(self, data_class: str, share: float) -> AuditAgreement | None:
        """The counts of this cell, a new one if there is room, otherwise None."""
        found = self._cells.get((data_class, share))
        if found is None and len(self._cells) < MAX_AUDIT_CELLS:
            found = AuditAgreement(data_class, share)
        return found


def has_no_label(said: Prediction) -> bool:
    """Whether a hub's answer is a text that names no label: it says nothing of the device's label."""
    return said.text is not None and said.label < 0


def predictions_agree(one: Prediction, other: Prediction, tolerance: float) -> bool:
    """Whether two predictions agree: the same label; for a regressor, values within `tolerance`."""
    if one.label >= 0 or other.label >= 0:
        return one.label == other.label
    if not one.scores or not other.scores:
        return False
    return abs(one.scores[0] - other.scores[0]) <= tolerance


def matches_truth(said: Prediction, truth: float, tolerance: float) -> bool:
    """Whether a prediction matches the truth: the same label; for a regressor, within `tolerance`."""
    if said.label >= 0:
        return said.label == truth
    return bool(said.scores) and isfinite(said.scores[0]) and abs(said.scores[0] - truth) <= tolerance
