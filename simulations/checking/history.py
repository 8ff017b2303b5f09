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
from collections.abc import Iterable

import msgspec

from edge_agent.core.records import Kind
from edge_agent.core.records import Outcome as End
from simulations.checking.bounds import Bounds
from simulations.checking.events import (
    Accepted,
    Allowed,
    AnswerSeen,
    Effect,
    Event,
    Exposed,
    Flaw,
    Key,
    Left,
    Outcome,
    Report,
    Undone,
)

GRACE_S = 60.0
STORIES_AT_MOST = 100
DOUBLED = (Flaw.DOUBLED_ANSWER, Flaw.DOUBLED_CORRECTION, Flaw.DOUBLED_EFFECT)
_RECENT = 1024  # answers without a question that are remembered, to notice a second one

# What is known of one question, in bits
_ANSWER, _CORRECTION, _HUB, _BACKED = 1, 2, 4, 8

_Stream = tuple[str, int]


class _Case(msgspec.Struct, gc=False):
    """An accepted question of which something is still to come. `sent`: to which hubs; `at`: which have its verdict."""

    accepted: Accepted
    bits: int = 0
    end: Outcome | None = None
    sent: tuple[str, ...] = ()
    at: tuple[str, ...] = ()


class Judge:
    """History checker that sees facts one at a time; a report may be asked for at any moment.

    `last_fault_ended_s`: on the clock of the facts; None where no time limit is judged. `grace_s`: longer only for
    plans whose faults outlast what the retry limits can heal within the minute. `hub_complete`: the effects seen
    are all there are; False after a restored backup, where a gap proves nothing.
    """

    def __init__(
        self, last_fault_ended_s: float | None = None, *, hub_complete: bool = True, grace_s: float = GRACE_S
    ) -> None:
        self.bounds = Bounds(self.blame)
        self._last_fault_ended_s = last_fault_ended_s
        self._grace_s = grace_s
        self._hub_complete = hub_complete
        self._cases: dict[Key, _Case] = {}
        self._highest: dict[_Stream, int] = {}  # of what was accepted: below it all is open, over, or passed over
        self._passed_over: defaultdict[_Stream, list[tuple[int, int]]] = defaultdict(list)  # seqs never accepted
        self._aside: dict[Key, int] = {}  # said or computed of what is not accepted (yet): two sources, two orders
        self._early: dict[Key, tuple[str, ...]] = {}  # hubs with its verdict
        self._bare: dict[Key, tuple[str, ...]] = {}  # over, and these hubs may still store a verdict
        self._lone: dict[tuple[str, str], None] = {}
        self._counts: Counter[str] = Counter()
        self._whys: Counter[str] = Counter()
        self._flaws: Counter[Flaw] = Counter()
        self._stories: list[str] = []
        self._hears = {
            Accepted: self._accepted, Outcome: self._ended, AnswerSeen: self._answer, Effect: self._effect,
            Undone: self._undone, Left: self._left, Allowed: self.bounds.allow, Exposed: self.bounds.expose,
        }  # fmt: skip

    def see(self, event: Event) -> None:
        """Check one fact."""
        self._counts["events"] += 1
        self._hears[type(event)](event)  # type: ignore[operator]

    def alone(self, why: str, count: int = 1) -> None:
        """Count answers that needed no question; nothing else is checked of them."""
        self._counts["events"] += count
        self._counts[Kind.ANSWER] += count
        self._whys[why] += count

    def blame(self, flaw: Flaw, story: str) -> None:
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

    def _accepted(self, event: Accepted) -> None:
        key, stream = event.key, event.key[:2]
        highest = self._highest.get(stream, -1)
        if key.seq <= highest:
            self.blame(Flaw.ACCEPTED_TWICE, f"{key} as {event.id}")
            return
        if key.seq > max(highest, 0) + 1:
            self._passed_over[stream].append((highest + 1, key.seq - 1))
        self._counts["accepted"] += 1
        self._highest[stream] = key.seq
        self._cases[key] = _Case(event, self._aside.pop(key, 0), at=self._early.pop(key, ()))
        self.bounds.charge(event)

    def _ended(self, event: Outcome) -> None:
        case = self._cases.get(event.key)
        if case is None or case.end is not None:
            flaw = Flaw.ENDED_TWICE if case or self._is_over(event.key) else Flaw.NEVER_ACCEPTED
            self.blame(flaw, f"{event.key} ended {event.end} ({event.reason})")
            return
        self._counts[event.end] += 1
        case.end = event
        if event.at_s > self._deadline_s(case.accepted):
            took_s = event.at_s - case.accepted.at_s
            self.blame(Flaw.LOST, f"{event.key} ended {event.end} only after {took_s:.0f} s")
        self.bounds.ended(case.accepted, free=event.end is End.DENIED and not case.sent)
        self._close(event.key, case)

    def _answer(self, event: AnswerSeen) -> None:
        bit = _ANSWER if event.kind is Kind.ANSWER else _CORRECTION
        said = self._lone_answer(event) if event.key is None else self._said(event.key)
        if said & bit:
            flaw = Flaw.DOUBLED_ANSWER if bit == _ANSWER else Flaw.DOUBLED_CORRECTION
            self.blame(flaw, f"{event.device} {event.id} ({event.why})")
            return
        if bit == _CORRECTION and not said & _ANSWER:
            self.blame(Flaw.EARLY_CORRECTION, f"{event.device} {event.id}")
        self._counts[event.kind] += 1
        self._counts["by_hub"] += event.hub and bit == _ANSWER
        self._whys[event.why] += 1
        if event.key is not None:
            self._note(event.key, bit | (_HUB if event.hub else 0))

    def _lone_answer(self, event: AnswerSeen) -> int:
        name = event.device, event.id
        if name in self._lone:
            return _ANSWER
        self._lone[name] = None
        if len(self._lone) > _RECENT:
            del self._lone[next(iter(self._lone))]
        return 0

    def _said(self, key: Key) -> int:
        """What was recorded of a question, in bits; of one that is over, everything."""
        case = self._cases.get(key)
        if case is not None:
            return case.bits
        return _ANSWER | _CORRECTION if self._is_over(key) else self._aside.get(key, 0)

    def _effect(self, event: Effect) -> None:
        """A hub stored a verdict: the first of each hub that it was sent to is expected."""
        self._counts["effects"] += 1
        key, hub, case = event.key, event.hub, self._cases.get(event.key)
        if case is None and self._is_over(key):
            once = hub in self._bare.get(key, ())
            self._expect(key, tuple(each for each in self._bare.get(key, ()) if each != hub))
        else:
            once = hub not in (case.at if case else self._early.get(key, ()))
            self._at(key, case, hub)
        if not once:
            self.blame(Flaw.DOUBLED_EFFECT, f"{key} {hub}".rstrip())

    def _at(self, key: Key, case: _Case | None, hub: str) -> None:
        if case is None:
            self._early[key] = (*self._early.get(key, ()), hub)
        else:
            case.at = (*case.at, hub)
        self._note(key, _BACKED)

    def _undone(self, event: Undone) -> None:
        """A hub's store went back: the effect is gone, and may be had once more."""
        self._counts["undone"] += 1
        key, hub, case = event.key, event.hub, self._cases.get(event.key)
        if case is not None:
            case.at = tuple(each for each in case.at if each != hub)
        elif self._is_over(key):
            self._expect(key, (*self._bare.get(key, ()), hub))
        elif key in self._early:
            self._early[key] = tuple(each for each in self._early[key] if each != hub)

    def _expect(self, key: Key, hubs: tuple[str, ...]) -> None:
        """Set which hubs may still store a verdict of a question that is over."""
        self._bare[key] = hubs
        if not hubs:
            del self._bare[key]

    def _left(self, event: Left) -> None:
        case = self._cases.get(event.key)
        if case is not None and event.hub not in case.sent:
            case.sent = (*case.sent, event.hub)
        if case is None or case.end is not None:
            when = "after its end" if case or self._is_over(event.key) else "and was never accepted"
            self.blame(Flaw.UNRECORDED, f"{event.key} left {when}")

    # Conclusions

    def _note(self, key: Key, bits: int) -> None:
        case = self._cases.get(key)
        if case is None:
            self._aside[key] = self._aside.get(key, 0) | bits
        else:
            case.bits |= bits
            if case.end is not None:
                self._close(key, case)

    def _close(self, key: Key, case: _Case) -> None:
        """Forget a question if nothing more is to come."""
        end = case.end
        if end is None or not _all_said(end, case.bits) or (self._hub_complete and not _backed(end, case.bits)):
            return
        del self._cases[key]
        rest = tuple(hub for hub in case.sent or ("",) if hub not in case.at)
        if rest:
            self._bare[key] = rest

    def _is_over(self, key: Key) -> bool:
        """Whether it was accepted once, and is not open."""
        if key.seq > self._highest.get(key[:2], -1):
            return False
        return not any(first <= key.seq <= last for first, last in self._passed_over.get(key[:2], ()))

    def report(self, now_s: float | None = None) -> Report:
        """Report as of `now_s`; None = nothing more will come, so whatever is open is lost."""
        flaws, stories = Counter(self._flaws), list(self._stories)
        waiting = [case.accepted for case in self._cases.values() if case.end is None]
        late = [each for each in waiting if now_s is None or now_s > self._deadline_s(each)]
        found = [(Flaw.LOST, f"{each.key} accepted as {each.id or '?'}, no outcome") for each in late]
        for flaw, story in found + self._at_the_end():
            flaws[flaw] += 1
            stories.append(f"{flaw}: {story}")
        return self._summary(len(waiting) - len(late), flaws, stories)

    def _at_the_end(self) -> list[tuple[Flaw, str]]:
        """Flaws that only the whole history shows.

        An epoch without any record (database set aside) is not judged.
        """
        found: list[tuple[Flaw, str]] = []
        for key, case in self._cases.items():
            if case.end is not None and not _all_said(case.end, case.bits):
                found.append((Flaw.UNSAID, _unsaid(case.end)))
            if case.end is not None and self._hub_complete and not _backed(case.end, case.bits):
                found.append((Flaw.UNBACKED, f"{key}: no verdict of the hub stands behind it"))
        strange = [key for key, bits in self._aside.items() if bits & _BACKED and key[:2] in self._highest]
        return found + [(Flaw.NEVER_ACCEPTED, f"{key} has an effect at the hub") for key in strange]

    def _summary(self, still_open: int, flaws: Counter[Flaw], stories: list[str]) -> Report:
        counts = self._counts
        return Report(
            events=counts["events"],
            accepted=counts["accepted"],
            answered=counts[End.ANSWERED],
            expired=counts[End.EXPIRED],
            refused=counts[End.REFUSED],
            denied=counts[End.DENIED],
            open=still_open,
            answers=counts[Kind.ANSWER],
            answers_by_hub=counts["by_hub"],
            late=counts[Kind.CORRECTION],
            effects=counts["effects"],
            lost=flaws[Flaw.LOST],
            doubled=sum(flaws[flaw] for flaw in DOUBLED),
            flaws={flaw.value: count for flaw, count in sorted(flaws.items()) if count},
            whys={str(why): count for why, count in sorted(self._whys.items())},
            stories=tuple(stories[:STORIES_AT_MOST]),
        )

    def _deadline_s(self, accepted: Accepted) -> float:
        if self._last_fault_ended_s is None:
            return float("inf")
        return max(accepted.at_s, self._last_fault_ended_s) + self._grace_s


def judge(history: Iterable[Event], last_fault_ended_s: float | None = None, now_s: float | None = None) -> Report:
    """Check a finished history at once."""
    checker = Judge(last_fault_ended_s)
    for event in history:
        checker.see(event)
    return checker.report(now_s)


def _all_said(outcome: Outcome, bits: int) -> bool:
    """Whether all was answered.

    Every question has one Answer; one that ended `answered` has the hub's prediction in it.
    """
    wanted = _ANSWER | (_HUB if outcome.end is End.ANSWERED else 0)
    return bits & wanted == wanted


def _backed(outcome: Outcome, bits: int) -> bool:
    """Whether a question that ended `answered` had a verdict in the hub's store once."""
    return outcome.end is not End.ANSWERED or bool(bits & _BACKED)


def _unsaid(outcome: Outcome) -> str:
    return f"{outcome.key} ended {outcome.end} ({outcome.reason}), but {outcome.id} does not say so"
