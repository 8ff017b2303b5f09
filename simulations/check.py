"""The history checker: from what was accepted, ended, said and computed it finds what is lost, doubled or late.

Law: it believes no component. It sees facts that were made durable, one by one, devices interleaved at will; it keeps a
few bits per question and says in one line what is wrong with each. The words are those of docs/design.md, Words:

* accepted: the outbox transaction committed.
* lost: accepted, and without a terminal outcome `GRACE_S` after the last fault ended (or after it was accepted, if that
  is later). An outcome that comes after that is lost too. Judged without a time, every open question is lost.
* doubled: an id with two Answers or two Corrections, or a (device, epoch, seq) with more than one effect at the hub.
* late: Corrections.
"""

from collections import Counter
from collections.abc import Iterable
from enum import IntFlag, StrEnum, auto
from typing import NamedTuple

import msgspec

from edge_agent.records import Kind
from edge_agent.records import Outcome as End

GRACE_S = 60.0
STORIES_AT_MOST = 100


class Key(NamedTuple):
    """The name of one question, for ever."""

    device: str
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.device} {self.epoch:x}-{self.seq}"


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Charge, ledger entry and outbox row of `key` are committed. `id` is the answer's, "" where it is not known."""

    key: Key
    id: str
    at_s: float = 0.0


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The device has recorded a terminal outcome."""

    key: Key
    id: str
    end: End
    reason: str = ""
    at_s: float = 0.0


class AnswerSeen(msgspec.Struct, frozen=True, gc=False):
    """An answer or a correction is in the device's record. `hub`: its prediction is the hub's."""

    device: str
    id: str
    kind: Kind
    hub: bool
    why: str = ""


class Effect(msgspec.Struct, frozen=True, gc=False):
    """The hub has stored a verdict."""

    key: Key


Event = Accepted | Outcome | AnswerSeen | Effect


class Flaw(StrEnum):
    """What can be wrong with a history."""

    LOST = "lost"
    DOUBLED_ANSWER = "doubled answer"
    DOUBLED_CORRECTION = "doubled correction"
    DOUBLED_EFFECT = "doubled effect"
    ACCEPTED_TWICE = "accepted twice"
    ENDED_TWICE = "ended twice"
    NEVER_ACCEPTED = "never accepted"
    UNSAID = "ended unsaid"
    UNBACKED = "answered without effect"
    EARLY_CORRECTION = "correction without answer"


DOUBLED = (Flaw.DOUBLED_ANSWER, Flaw.DOUBLED_CORRECTION, Flaw.DOUBLED_EFFECT)


class Report(msgspec.Struct, frozen=True):
    """The judgement on one history. `late` = corrections; `open` = accepted and still within its time."""

    events: int
    accepted: int
    answered: int
    expired: int
    refused: int
    denied: int
    open: int
    answers: int
    answers_by_hub: int
    late: int
    effects: int
    lost: int
    doubled: int
    flaws: dict[str, int]
    whys: dict[str, int]
    stories: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.flaws

    def text(self) -> str:
        """A few lines for a person: the verdict first, then the counts, then each story."""
        ended = f"{self.answered} answered, {self.expired} expired, {self.refused} refused, {self.denied} denied"
        lines = [
            f"history {'holds' if self.ok else 'BROKEN'}: {self.lost} lost, {self.doubled} doubled, {self.late} late",
            f"  accepted {self.accepted}: {ended}, {self.open} open",
            f"  answers {self.answers}, {self.answers_by_hub} of them the hub's; {self.effects} effects at the hub",
        ]
        lines += [f"  {flaw}: {count}" for flaw, count in sorted(self.flaws.items())]
        return "\n".join([*lines, *(f"    {story}" for story in self.stories)])


class _Case(IntFlag):
    """What is known of one key."""

    ACCEPTED = auto()
    ENDED = auto()
    ANSWERED = auto()
    EFFECT = auto()


class _Said(IntFlag):
    """What was said under one id."""

    ANSWER = auto()
    CORRECTION = auto()
    HUB = auto()


class Judge:
    """Sees events one at a time; may be asked for a report at any moment.

    `last_fault_ended_s`: on the clock of the events; None where no time limit is judged. `grace_s`: longer only for
    plans whose faults outlast what the retry limits can heal within the minute.
    `hub_complete`: the effects seen are all there are; False after a restored backup, where a gap proves nothing.
    """

    def __init__(
        self, last_fault_ended_s: float | None = None, *, hub_complete: bool = True, grace_s: float = GRACE_S
    ) -> None:
        self._last_fault_ended_s = last_fault_ended_s
        self._grace_s = grace_s
        self._hub_complete = hub_complete
        self._cases: dict[Key, _Case] = {}
        self._open: dict[Key, Accepted] = {}
        self._said: dict[tuple[str, str], _Said] = {}
        self._owed: dict[tuple[str, str], Outcome] = {}  # ended, but what was to be said has not been seen
        self._epochs: set[tuple[str, int]] = set()
        self._early: dict[Key, Effect] = {}  # effects seen before their acceptance: two sources, two orders
        self._counts: Counter[str] = Counter()
        self._whys: Counter[str] = Counter()
        self._flaws: Counter[Flaw] = Counter()
        self._stories: list[str] = []

    def see(self, event: Event) -> None:
        self._counts["events"] += 1
        match event:
            case Accepted():
                self._accepted(event)
            case Outcome():
                self._ended(event)
            case AnswerSeen():
                self._answer(event)
            case Effect():
                self._effect(event)

    def report(self, now_s: float | None = None) -> Report:
        """The judgement as of `now_s`; None = nothing more will come, so whatever is open is lost."""
        flaws, stories = Counter(self._flaws), list(self._stories)
        late_open = [each for each in self._open.values() if now_s is None or now_s > self._deadline_s(each)]
        found = [(Flaw.LOST, f"{each.key} accepted as {each.id or '?'}, no outcome") for each in late_open]
        found += [(Flaw.UNSAID, _unsaid(each)) for each in self._owed.values()] + self._at_the_end()
        for flaw, story in found:
            flaws[flaw] += 1
            stories.append(f"{flaw}: {story}")
        return self._summary(len(self._open) - len(late_open), flaws, stories)

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

    def _accepted(self, event: Accepted) -> None:
        case = self._cases.get(event.key, _Case(0))
        if case & _Case.ACCEPTED:
            self._flaw(Flaw.ACCEPTED_TWICE, f"{event.key} as {event.id}")
            return
        self._counts["accepted"] += 1
        self._cases[event.key] = case | _Case.ACCEPTED
        self._epochs.add(event.key[:2])
        self._open[event.key] = event
        self._early.pop(event.key, None)

    def _ended(self, event: Outcome) -> None:
        case = self._cases.get(event.key, _Case(0))
        if not case & _Case.ACCEPTED:
            self._flaw(Flaw.NEVER_ACCEPTED, f"{event.key} ended {event.end}")
            return
        if case & _Case.ENDED:
            self._flaw(Flaw.ENDED_TWICE, f"{event.key} once more, as {event.end} ({event.reason})")
            return
        self._counts[event.end] += 1
        self._cases[event.key] = case | _Case.ENDED | (_Case.ANSWERED if event.end is End.ANSWERED else _Case(0))
        accepted = self._open.pop(event.key)
        if event.at_s > self._deadline_s(accepted):
            self._flaw(Flaw.LOST, f"{event.key} ended {event.end} only after {event.at_s - accepted.at_s:.0f} s")
        if not _all_said(event, self._said.get((event.key.device, event.id), _Said(0))):
            self._owed[event.key.device, event.id] = event

    def _answer(self, event: AnswerSeen) -> None:
        name = (event.device, event.id)
        said = self._said.get(name, _Said(0))
        bit = _Said.ANSWER if event.kind is Kind.ANSWER else _Said.CORRECTION
        if said & bit:
            flaw = Flaw.DOUBLED_ANSWER if event.kind is Kind.ANSWER else Flaw.DOUBLED_CORRECTION
            self._flaw(flaw, f"{event.device} {event.id} ({event.why})")
            return
        if event.kind is Kind.CORRECTION and not said & _Said.ANSWER:
            self._flaw(Flaw.EARLY_CORRECTION, f"{event.device} {event.id}")
        self._counts[event.kind] += 1
        self._counts["by_hub"] += event.hub and event.kind is Kind.ANSWER
        self._whys[event.why] += 1
        self._said[name] = said = said | bit | (_Said.HUB if event.hub else _Said(0))
        owed = self._owed.get(name)
        if owed is not None and _all_said(owed, said):
            del self._owed[name]

    def _effect(self, event: Effect) -> None:
        case = self._cases.get(event.key, _Case(0))
        self._counts["effects"] += 1
        if case & _Case.EFFECT:
            self._flaw(Flaw.DOUBLED_EFFECT, f"{event.key}")
        self._cases[event.key] = case | _Case.EFFECT
        if not case & _Case.ACCEPTED:
            self._early[event.key] = event

    def _at_the_end(self) -> list[tuple[Flaw, str]]:
        """What only the whole history can tell. An epoch without any record (database set aside) is not judged."""
        known = (key for key in self._early if key[:2] in self._epochs)
        found = [(Flaw.NEVER_ACCEPTED, f"{key} has an effect at the hub") for key in known]
        if self._hub_complete:
            bare = (key for key, case in self._cases.items() if case & _Case.ANSWERED and not case & _Case.EFFECT)
            found += [(Flaw.UNBACKED, f"{key}: no verdict of the hub stands behind it") for key in bare]
        return found

    def _deadline_s(self, accepted: Accepted) -> float:
        if self._last_fault_ended_s is None:
            return float("inf")
        return max(accepted.at_s, self._last_fault_ended_s) + self._grace_s

    def _flaw(self, flaw: Flaw, story: str) -> None:
        self._flaws[flaw] += 1
        if len(self._stories) < STORIES_AT_MOST:
            self._stories.append(f"{flaw}: {story}")


def judge(history: Iterable[Event], last_fault_ended_s: float | None = None, now_s: float | None = None) -> Report:
    """The whole of a finished history at once."""
    checker = Judge(last_fault_ended_s)
    for event in history:
        checker.see(event)
    return checker.report(now_s)


def _all_said(outcome: Outcome, said: _Said) -> bool:
    """Every question has one Answer; an answered one has the hub's word, as the Answer or as a Correction."""
    wanted = _Said.ANSWER | (_Said.HUB if outcome.end is End.ANSWERED else _Said(0))
    return said & wanted == wanted


def _unsaid(outcome: Outcome) -> str:
    return f"{outcome.key} ended {outcome.end} ({outcome.reason}), but {outcome.id} does not say so"
