"""History checker: finds questions that were lost or doubled, from the facts of a run one by one.

Rule: it believes no component. It sees facts that were made durable or left, devices interleaved at will, and reports
in one line what is wrong. What has ended is forgotten: its memory grows with what is open and with what went wrong, not
with the samples. The terms are those of docs/design.md, Words:

* accepted: the outbox transaction committed.
* lost: accepted, and without a terminal outcome `GRACE_S` after the last fault ended (or after it was accepted, if that
  is later). An outcome that comes after that is lost too. Judged without a time, every open question is lost.
* doubled: an id with two Answers or two Corrections, or a (device, epoch, seq) with more than one effect at a hub. A
  question that moved, since the hub it was sent to fell silent, may have one at each hub that it was sent to.
* late: Corrections.
"""

from collections import Counter, defaultdict

import msgspec

from edge_agent.question.records import AnswerKind, Outcome
from simulations.checking.bounds import BoundsChecker
from simulations.checking.events import (
    AnswerRecorded,
    CandidateCommitted,
    CandidateServed,
    Flaw,
    FrameSent,
    HistoryEvent,
    HistoryReport,
    LeaseTaken,
    QuestionAccepted,
    QuestionEnded,
    QuestionKey,
    ShardWritten,
    VerdictStored,
    VerdictUndone,
    WaveAllowed,
)
from simulations.checking.leases import LeaseChecker

GRACE_S = 60.0
STORIES_AT_MOST = 100
DOUBLED = (Flaw.DOUBLED_ANSWER, Flaw.DOUBLED_CORRECTION, Flaw.DOUBLED_EFFECT)
_RECENT = 1024  # answers without a question that are remembered, to notice a second one

# What is known of one question, in bits
_ANSWER, _CORRECTION, _HUB, _BACKED = 1, 2, 4, 8

_Stream = tuple[str, int]
_COUNTED = {
    "events": "events", "accepted": "accepted", "answered": Outcome.ANSWERED, "expired": Outcome.EXPIRED,
    "refused": Outcome.REFUSED, "denied": Outcome.DENIED, "answers": AnswerKind.ANSWER, "answers_by_hub": "by_hub",
    "late": AnswerKind.CORRECTION, "effects": "effects",
}  # fmt: skip


class _QuestionState(msgspec.Struct, gc=False):
    """An accepted question of which something is still to come. `sent`: to which hubs; `at`: which have its verdict."""

    accepted: QuestionAccepted
    bits: int = 0
    end: QuestionEnded | None = None
    sent: tuple[str, ...] = ()
    at: tuple[str, ...] = ()


class HistoryChecker:
    """History checker that sees facts one at a time; a report may be asked for at any moment.

    `last_fault_ended_s`: on the clock of the facts; None where no time limit is judged. `grace_s`: longer only for
    plans whose faults outlast what the retry limits can heal within the minute. `hub_complete`: the effects seen
    are all there are; False after a restored backup, where a gap proves nothing.
    """

    def __init__(
        self, last_fault_ended_s: float | None = None, *, hub_complete: bool = True, grace_s: float = GRACE_S
    ) -> None:
        self.bounds = BoundsChecker(self.add_flaw)
        leases = LeaseChecker(self.add_flaw)
        self._last_fault_ended_s = last_fault_ended_s
        self._grace_s = grace_s
        self._hub_complete = hub_complete
        self._cases: dict[QuestionKey, _QuestionState] = {}
        self._highest: dict[_Stream, int] = {}  # of what was accepted: below it all is open, over, or passed over
        self._passed_over: defaultdict[_Stream, list[tuple[int, int]]] = defaultdict(list)  # seqs never accepted
        # said or computed of what is not accepted (yet): two sources, two orders
        self._aside: dict[QuestionKey, int] = {}
        self._early: dict[QuestionKey, tuple[str, ...]] = {}  # hubs with its verdict
        self._bare: dict[QuestionKey, tuple[str, ...]] = {}  # over, and these hubs may still store a verdict
        self._lone: dict[tuple[str, str], None] = {}
        self._counts: Counter[str] = Counter()
        self._whys: Counter[str] = Counter()
        self._flaws: Counter[Flaw] = Counter()
        self._stories: list[str] = []
        self._hears = {
            QuestionAccepted: self._on_accepted, QuestionEnded: self._on_ended, AnswerRecorded: self._on_answer,
            VerdictStored: self._on_effect, VerdictUndone: self._on_undone, FrameSent: self._on_sent,
            WaveAllowed: self.bounds.on_allowed, CandidateServed: self.bounds.on_exposed,
            CandidateCommitted: self.bounds.on_committed, LeaseTaken: leases.on_taken,
            ShardWritten: leases.on_written,
        }  # fmt: skip

    def on_event(self, event: HistoryEvent) -> None:
        """Check one fact."""
        self._counts["events"] += 1
        self._hears[type(event)](event)  # type: ignore[operator]

    def count_local(self, why: str, count: int = 1) -> None:
        """Count answers that needed no question; nothing else is checked of them."""
        self._counts["events"] += count
        self._counts[AnswerKind.ANSWER] += count
        self._whys[why] += count

    def add_report(self, report: HistoryReport, times: int) -> None:
        """Count a history that was checked elsewhere, so many times; it has no flaw and nothing open."""
        for name, kept in _COUNTED.items():
            self._counts[kept] += times * getattr(report, name)
        for why, count in report.whys.items():
            self._whys[why] += times * count

    def take_over(self, stream: _Stream, highest: int, day: int, spent_bytes: int) -> None:
        """Know of a stream that its questions up to this number were accepted and are over, and what it spent."""
        self._highest[stream] = max(highest, self._highest.get(stream, -1))
        self.bounds.take_over(stream[0], day, spent_bytes)

    def add_flaw(self, flaw: Flaw, story: str) -> None:
        """Report a flaw that a fact alone does not show."""
        self._flaws[flaw] += 1
        if len(self._stories) < STORIES_AT_MOST:
            self._stories.append(f"{flaw}: {story}")

    @property
    def flawed(self) -> bool:
        """Whether a flaw was found already."""
        return bool(self._flaws)

    @property
    def held(self) -> int:
        """Number of questions in memory: something is still to come of them, or they went wrong."""
        return len(self._cases) + len(self._aside) + len(self._bare)

    # Facts

    def _on_accepted(self, event: QuestionAccepted) -> None:
        key, stream = event.key, event.key[:2]
        highest = self._highest.get(stream, -1)
        if key.seq <= highest:
            self.add_flaw(Flaw.ACCEPTED_TWICE, f"{key} as {event.id}")
            return
        if key.seq > max(highest, 0) + 1:
            self._passed_over[stream].append((highest + 1, key.seq - 1))
        self._counts["accepted"] += 1
        self._highest[stream] = key.seq
        self._cases[key] = _QuestionState(event, self._aside.pop(key, 0), at=self._early.pop(key, ()))
        self.bounds.on_accepted(event)

    def _on_ended(self, event: QuestionEnded) -> None:
        case = self._cases.get(event.key)
        if case is None or case.end is not None:
            flaw = Flaw.ENDED_TWICE if case or self._is_over(event.key) else Flaw.NEVER_ACCEPTED
            self.add_flaw(flaw, f"{event.key} ended {event.end} ({event.reason})")
            return
        self._counts[event.end] += 1
        case.end = event
        if event.at_s > self._deadline_s(case.accepted):
            took_s = event.at_s - case.accepted.at_s
            self.add_flaw(Flaw.LOST, f"{event.key} ended {event.end} only after {took_s:.0f} s")
        self.bounds.on_ended(case.accepted, free=event.end is Outcome.DENIED and not case.sent)
        self._forget_if_done(event.key, case)

    def _on_answer(self, event: AnswerRecorded) -> None:
        bit = _ANSWER if event.kind is AnswerKind.ANSWER else _CORRECTION
        said = self._lone_answer(event) if event.key is None else self._said_bits(event.key)
        if said & bit:
            flaw = Flaw.DOUBLED_ANSWER if bit == _ANSWER else Flaw.DOUBLED_CORRECTION
            self.add_flaw(flaw, f"{event.device} {event.id} ({event.why})")
            return
        if bit == _CORRECTION and not said & _ANSWER:
            self.add_flaw(Flaw.EARLY_CORRECTION, f"{event.device} {event.id}")
        self._counts[event.kind] += 1
        self._counts["by_hub"] += event.hub and bit == _ANSWER
        self._whys[event.why] += 1
        if event.key is not None:
            self._add_bits(event.key, bit | (_HUB if event.hub else 0))

    def _lone_answer(self, event: AnswerRecorded) -> int:
        name = event.device, event.id
        if name in self._lone:
            return _ANSWER
        self._lone[name] = None
        if len(self._lone) > _RECENT:
            del self._lone[next(iter(self._lone))]
        return 0

    def _said_bits(self, key: QuestionKey) -> int:
        """What was recorded of a question, in bits; of one that is over, everything."""
        case = self._cases.get(key)
        if case is not None:
            return case.bits
        return _ANSWER | _CORRECTION if self._is_over(key) else self._aside.get(key, 0)

    def _on_effect(self, event: VerdictStored) -> None:
        """A hub stored a verdict: the first of each hub that it was sent to is expected."""
        self._counts["effects"] += 1
        key, hub, case = event.key, event.hub, self._cases.get(event.key)
        if case is None and self._is_over(key):
            once = hub in self._bare.get(key, ())
            self._set_expected(key, tuple(each for each in self._bare.get(key, ()) if each != hub))
        else:
            once = hub not in (case.at if case else self._early.get(key, ()))
            self._record_effect(key, case, hub)
        if not once:
            self.add_flaw(Flaw.DOUBLED_EFFECT, f"{key} {hub}".rstrip())

    def _record_effect(self, key: QuestionKey, case: _QuestionState | None, hub: str) -> None:
        if case is None:
            self._early[key] = (*self._early.get(key, ()), hub)
        else:
            case.at = (*case.at, hub)
        self._add_bits(key, _BACKED)

    def _on_undone(self, event: VerdictUndone) -> None:
        """A hub's store went back: the effect is gone, and may be had once more."""
        self._counts["undone"] += 1
        key, hub, case = event.key, event.hub, self._cases.get(event.key)
        if case is not None:
            case.at = tuple(each for each in case.at if each != hub)
        elif self._is_over(key):
            self._set_expected(key, (*self._bare.get(key, ()), hub))
        elif key in self._early:
            self._early[key] = tuple(each for each in self._early[key] if each != hub)

    def _set_expected(self, key: QuestionKey, hubs: tuple[str, ...]) -> None:
        """Set which hubs may still store a verdict of a question that is over."""
        self._bare[key] = hubs
        if not hubs:
            del self._bare[key]

    def _on_sent(self, event: FrameSent) -> None:
        case = self._cases.get(event.key)
        if case is not None and event.hub not in case.sent:
            case.sent = (*case.sent, event.hub)
        if case is None or case.end is not None:
            when = "after its end" if case or self._is_over(event.key) else "and was never accepted"
            self.add_flaw(Flaw.UNRECORDED, f"{event.key} left {when}")

    # Conclusions

    def _add_bits(self, key: QuestionKey, bits: int) -> None:
        case = self._cases.get(key)
        if case is None:
            self._aside[key] = self._aside.get(key, 0) | bits
        else:
            case.bits |= bits
            if case.end is not None:
                self._forget_if_done(key, case)

    def _forget_if_done(self, key: QuestionKey, case: _QuestionState) -> None:
        """Forget a question if nothing more is to come."""
        end = case.end
        if (
            end is None
            or not _is_fully_answered(end, case.bits)
            or (self._hub_complete and not _has_effect(end, case.bits))
        ):
            return
        del self._cases[key]
        rest = tuple(hub for hub in case.sent or ("",) if hub not in case.at)
        if rest:
            self._bare[key] = rest

    def _is_over(self, key: QuestionKey) -> bool:
        """Whether it was accepted once, and is not open."""
        if key.seq > self._highest.get(key[:2], -1):
            return False
        return not any(first <= key.seq <= last for first, last in self._passed_over.get(key[:2], ()))

    def make_report(self, now_s: float | None = None) -> HistoryReport:
        """Report as of `now_s`; None = nothing more will come, so whatever is open is lost."""
        flaws, stories = Counter(self._flaws), list(self._stories)
        waiting = [case.accepted for case in self._cases.values() if case.end is None]
        late = [each for each in waiting if now_s is None or now_s > self._deadline_s(each)]
        found = [(Flaw.LOST, f"{each.key} accepted as {each.id or '?'}, no outcome") for each in late]
        for flaw, story in found + self._final_flaws():
            flaws[flaw] += 1
            stories.append(f"{flaw}: {story}")
        return self._build_report(len(waiting) - len(late), flaws, stories)

    def _final_flaws(self) -> list[tuple[Flaw, str]]:
        """Flaws that only the whole history shows.

        An epoch without any record (database set aside) is not judged.
        """
        found: list[tuple[Flaw, str]] = []
        for key, case in self._cases.items():
            if case.end is not None and not _is_fully_answered(case.end, case.bits):
                found.append((Flaw.UNSAID, _describe_unsaid(case.end)))
            if case.end is not None and self._hub_complete and not _has_effect(case.end, case.bits):
                found.append((Flaw.UNBACKED, f"{key}: no verdict of the hub stands behind it"))
        strange = [key for key, bits in self._aside.items() if bits & _BACKED and key[:2] in self._highest]
        return found + [(Flaw.NEVER_ACCEPTED, f"{key} has an effect at the hub") for key in strange]

    def _build_report(self, still_open: int, flaws: Counter[Flaw], stories: list[str]) -> HistoryReport:
        counts = self._counts
        return HistoryReport(
            events=counts["events"],
            accepted=counts["accepted"],
            answered=counts[Outcome.ANSWERED],
            expired=counts[Outcome.EXPIRED],
            refused=counts[Outcome.REFUSED],
            denied=counts[Outcome.DENIED],
            open=still_open,
            answers=counts[AnswerKind.ANSWER],
            answers_by_hub=counts["by_hub"],
            late=counts[AnswerKind.CORRECTION],
            effects=counts["effects"],
            lost=flaws[Flaw.LOST],
            doubled=sum(flaws[flaw] for flaw in DOUBLED),
            flaws={flaw.value: count for flaw, count in sorted(flaws.items()) if count},
            whys={str(why): count for why, count in sorted(self._whys.items())},
            stories=tuple(stories[:STORIES_AT_MOST]),
        )

    def _deadline_s(self, accepted: QuestionAccepted) -> float:
        if self._last_fault_ended_s is None:
            return float("inf")
        return max(accepted.at_s, self._last_fault_ended_s) + self._grace_s


def _is_fully_answered(outcome: QuestionEnded, bits: int) -> bool:
    """Whether all was answered.

    Every question has one Answer; one that ended `answered` has the hub's prediction in it.
    """
    wanted = _ANSWER | (_HUB if outcome.end is Outcome.ANSWERED else 0)
    return bits & wanted == wanted


def _has_effect(outcome: QuestionEnded, bits: int) -> bool:
    """Whether a question that ended `answered` had a verdict in the hub's store once."""
    return outcome.end is not Outcome.ANSWERED or bool(bits & _BACKED)


def _describe_unsaid(outcome: QuestionEnded) -> str:
    return f"{outcome.key} ended {outcome.end} ({outcome.reason}), but {outcome.id} does not say so"
