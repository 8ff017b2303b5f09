"""Answers and questions of the lane that are counted once virtual time has reached them.

Rule: a run that is stopped early has counted what had happened by then, and no more.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.bulk.tariff import QuestionTariff
from simulations.checking.history import HistoryChecker
from simulations.nodes.recorder import RegionRecorder
from simulations.report.outcome import BINS, FIRST_S, PER_OCTAVE

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]


class AnswerFacts(NamedTuple):
    """Answers of one series (`source.why`): when each was given, how long it took, and whether it was right."""

    series: str
    at_s: Floats
    took_s: Floats
    right: Flags

    def select(self, which: Flags) -> "AnswerFacts":
        """Some of them."""
        return AnswerFacts(self.series, self.at_s[which], self.took_s[which], self.right[which])


class QuestionFacts(NamedTuple):
    """Questions of one tariff: when each had ended and was accepted, and the bytes of its frame."""

    tariff: QuestionTariff
    at_s: Floats
    accepted_s: Floats
    sizes: Whole

    def select(self, which: Flags) -> "QuestionFacts":
        """Some of them."""
        return QuestionFacts(self.tariff, self.at_s[which], self.accepted_s[which], self.sizes[which])


def find_latency_bins(took_s: Floats) -> npt.NDArray[np.int64]:
    """Numbers of the histogram bins of many latencies, as `find_latency_bin` of one."""
    bins = np.ceil(PER_OCTAVE * np.log2(np.maximum(took_s, FIRST_S) / FIRST_S)).astype(np.int64)
    found: npt.NDArray[np.int64] = np.minimum(bins, BINS - 1)
    return found


class BulkTally:
    """What is still to be counted, of one region. `open_at` says how many questions are open at a moment."""

    def __init__(self, recorder: RegionRecorder, judge: HistoryChecker, step_s: float) -> None:
        self._recorder = recorder
        self._judge = judge
        self._step_s = step_s
        self._last = len(recorder.record.arrivals) - 1
        self._answers: list[AnswerFacts] = []
        self._questions: list[QuestionFacts] = []

    def add(self, answers: list[AnswerFacts], questions: list[QuestionFacts]) -> None:
        """Add what will have happened by its time."""
        self._answers += answers
        self._questions += questions

    def settle(self, until_s: float) -> None:
        """Count all that has happened by then."""
        answers, self._answers = self._answers, []
        for each in answers:
            due = each.at_s <= until_s
            self._count_answers(each.select(due))
            if not due.all():
                self._answers.append(each.select(~due))
        questions, self._questions = self._questions, []
        for asked in questions:
            due = asked.at_s <= until_s
            self._count_questions(asked.select(due))
            if not due.all():
                self._questions.append(asked.select(~due))

    def open_at(self, now_s: float) -> int:
        """Number of questions that are accepted and not counted yet."""
        return sum(int((asked.accepted_s <= now_s).sum()) for asked in self._questions)

    def _buckets(self, at_s: Floats) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = np.minimum((at_s // self._step_s).astype(np.int64), self._last)
        return found

    def _count_answers(self, facts: AnswerFacts) -> None:
        source = facts.series.partition(".")[0]
        buckets, bins = self._buckets(facts.at_s), find_latency_bins(facts.took_s)
        for bucket in np.unique(buckets).tolist():
            here = buckets == bucket
            self._recorder.add_answers(bucket, facts.series, int(here.sum()), int(facts.right[here].sum()))
            counts = np.bincount(bins[here])
            found = {number: int(counts[number]) for number in np.flatnonzero(counts).tolist()}
            self._recorder.add_latencies(bucket, source, found)

    def _count_questions(self, facts: QuestionFacts) -> None:
        self._judge.add_report(facts.tariff.history, len(facts.at_s))
        sent = np.bincount(self._buckets(facts.accepted_s), facts.sizes)
        for bucket in np.flatnonzero(sent).tolist():
            self._recorder.add_bytes(bucket, facts.tariff.rule, int(sent[bucket]))
