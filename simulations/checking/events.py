"""Facts of a run's history (accepted, answered, stored, sent, ...), its kinds of flaws, and the report.

Rule: a fact is reported once, when it has happened; which component reported it does not matter.
"""

from enum import StrEnum
from typing import ClassVar, NamedTuple

import msgspec

from edge_agent.question.records import AnswerKind, Outcome


class QuestionKey(NamedTuple):
    """Key of one question, unique for ever: device, epoch and seq."""

    device: str
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.device} {self.epoch:x}-{self.seq}"


class QuestionAccepted(msgspec.Struct, frozen=True, gc=False):
    """Question accepted: charge, ledger entry and outbox row of `key` are committed.

    `id` is the answer's, "" where it is not known. `size`: bytes of its frame, charged on `day` (whole days since
    1970, as the device has it); 0 = not known.
    """

    key: QuestionKey
    id: str
    at_s: float = 0.0
    size: int = 0
    day: int = 0


class QuestionEnded(msgspec.Struct, frozen=True, gc=False):
    """Question ended: the device has recorded a terminal outcome."""

    key: QuestionKey
    id: str
    end: Outcome
    reason: str = ""
    at_s: float = 0.0


class AnswerRecorded(msgspec.Struct, frozen=True, gc=False):
    """Answer or correction recorded on a device. `hub`: its prediction is the hub's. `key`: the question's."""

    device: str
    id: str
    kind: AnswerKind
    hub: bool
    why: str = ""
    key: QuestionKey | None = None


class VerdictStored(msgspec.Struct, frozen=True, gc=False):
    """Verdict stored by a hub. `hub`: which, "" where there is but one."""

    key: QuestionKey
    hub: str = ""


class VerdictUndone(msgspec.Struct, frozen=True, gc=False):
    """Verdict gone from a hub's store, which went back to a backup without it."""

    key: QuestionKey
    hub: str = ""


class FrameSent(msgspec.Struct, frozen=True, gc=False):
    """Frame of a question handed to the link, for this hub."""

    key: QuestionKey
    hub: str = ""


class LeaseTaken(msgspec.Struct, frozen=True, gc=False):
    """Lease of a shard taken by a process of a hub, in a term; `holder` "": it was given away."""

    hub: str
    shard: int
    term: int
    holder: str


class ShardWritten(msgspec.Struct, frozen=True, gc=False):
    """Row of a question written by a process of a hub, in the term that it believes to have."""

    hub: str
    shard: int
    term: int
    writer: str


class WaveAllowed(msgspec.Struct, frozen=True, gc=False):
    """Wave opened: from now on so many devices in all may serve what a rollout brings."""

    rollout: str
    devices_at_most: int


class CandidateServed(msgspec.Struct, frozen=True, gc=False):
    """Candidate served: a device serves what a rollout brings, on probation or for good."""

    rollout: str
    device: str


class CandidateCommitted(msgspec.Struct, frozen=True, gc=False):
    """Candidate committed: a device keeps what a rollout brought; `harm`: share of its right answers it turns wrong."""

    rollout: str
    device: str
    harm: float


HistoryEvent = (
    QuestionAccepted
    | QuestionEnded
    | AnswerRecorded
    | VerdictStored
    | VerdictUndone
    | FrameSent
    | LeaseTaken
    | ShardWritten
    | WaveAllowed
    | CandidateServed
    | CandidateCommitted
)


class Flaw(StrEnum):
    """Kinds of flaws that a history can have."""

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
    UNRECORDED = "left off the record"
    FORBIDDEN = "left against the policy"
    OVERSPENT = "beyond the budget"
    CROWDED = "more open than allowed"
    EXPOSED = "beyond its wave"
    WORSE_KEPT = "worse model committed"
    UNLEASED = "written without a lease"
    SAID_UNLEASED = "said without a lease"
    DEFECT = "defect"


class HistoryReport(msgspec.Struct, frozen=True):
    """Report on one history. `late` = corrections; `open` = accepted and still within its time.

    `SUMS`: the numbers that reports of several histories add up to.
    """

    SUMS: ClassVar[tuple[str, ...]] = (
        "events", "accepted", "answered", "expired", "refused", "denied", "open", "answers", "answers_by_hub", "late",
        "effects", "lost", "doubled",
    )  # fmt: skip

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
        """Whether the history has no flaw."""
        return not self.flaws

    def format_text(self) -> str:
        """A few lines for a person: the verdict first, then the counts, then each story."""
        ended = f"{self.answered} answered, {self.expired} expired, {self.refused} refused, {self.denied} denied"
        lines = [
            f"history {'holds' if self.ok else 'BROKEN'}: {self.lost} lost, {self.doubled} doubled, {self.late} late",
            f"  accepted {self.accepted}: {ended}, {self.open} open",
            f"  answers {self.answers}, {self.answers_by_hub} of them the hub's; {self.effects} effects at the hub",
        ]
        lines += [f"  {flaw}: {count}" for flaw, count in sorted(self.flaws.items())]
        return "\n".join([*lines, *(f"    {story}" for story in self.stories)])
