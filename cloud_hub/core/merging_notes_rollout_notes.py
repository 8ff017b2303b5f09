"""Can a device's report be meant? Pure: numbers that no device of ours would say are refused before they count.

Rule: a lie that could be true is not found here; what a liar can do with those is the quality gate's to bound.
"""

from collections.abc import Iterable
from math import inf

from wire.protocol.rollout import MOST_CELLS, Agreement, ClassSignals, InstallReport, Quality, Signals

BIGGEST_COUNT = 2**53
MAX_WORD_CHARS = 120
MAX_DETAIL_CHARS = 400


def is_possible(report: InstallReport) -> bool:
    """NaN and infinity fail every comparison, so they fail here."""
    words = (report.rollout, report.family, report.running)
    named = all(len(word) <= MAX_WORD_CHARS for word in words) and len(report.detail) <= MAX_DETAIL_CHARS
    counted = _counts((report.seq, report.counter, report.version, report.at_ms)) and report.seq > 0
    return named and counted and _is_quality(report.quality) and _are_signals(report.signals)


def _is_quality(quality: Quality | None) -> bool:
    if quality is None:
        return True
    few = len(quality.cells) <= MOST_CELLS and len(quality.unaudited) <= MOST_CELLS
    named = all(len(word) <= MAX_WORD_CHARS for word in quality.unaudited)
    once = len({(cell.data_class, cell.share) for cell in quality.cells}) == len(quality.cells)
    return few and named and once and _counts((quality.dropped,)) and all(map(_is_cell, quality.cells))


def _is_cell(cell: Agreement) -> bool:
    """Whole numbers that can stand beside each other: nobody agrees more often than he was audited."""
    numbers = (cell.audited, cell.agreed, cell.worse, cell.better)
    told = (cell.told, cell.told_wrong, cell.told_worse, cell.told_better)
    drawn = 0 < cell.share <= 1 and len(cell.data_class) <= MAX_WORD_CHARS and _counts((*numbers, *told))
    audits = cell.better <= cell.agreed and cell.agreed + cell.worse <= cell.audited
    people = cell.told_wrong <= cell.told and cell.told_worse <= cell.told_wrong
    return drawn and audits and people and cell.told_better <= cell.told - cell.told_wrong


def _are_signals(signals: Signals | None) -> bool:
    if signals is None:
        return True
    s = signals
    whole = (s.inferences, s.errors, s.escalated, s.p95_us, s.rss_bytes, s.crashes, s.starts)
    few = len(s.classes) <= MOST_CELLS and len({each.data_class for each in s.classes}) == len(s.classes)
    within = s.escalated <= s.inferences and _sums(s.inferences, s.confidence, s.confidence_sq)
    return few and _counts(whole) and within and all(map(_is_class, s.classes))


def _is_class(signals: ClassSignals) -> bool:
    named = len(signals.data_class) <= MAX_WORD_CHARS and _counts((signals.answers, signals.escalated))
    return (
        named
        and signals.escalated <= signals.answers
        and _sums(signals.answers, signals.confidence, signals.confidence_sq)
    )


def _sums(count: int, total: float, squares: float) -> bool:
    """Of so many numbers of 0 to 1; sums of floats may be a hair off."""
    slack = 1e-6 * (1 + count)
    return 0 <= total <= count + slack < inf and 0 <= squares <= total + slack


def _counts(numbers: Iterable[int]) -> bool:
    return all(0 <= number <= BIGGEST_COUNT for number in numbers)
