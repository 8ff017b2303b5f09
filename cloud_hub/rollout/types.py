"""What a rollout is made of: its states and which lead to which, its plan, its devices, what it says. No behaviour.

Rule: a plan never changes once it is made; what people approve is its digest. Terminal states lead nowhere.
"""

from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from policies.rollout.plan import SMALL_FLEET, Excused
from wire.protocol.rollout import Assignment, Failure, InstallState, Quality, Signals


class RolloutState(StrEnum):
    """Where a rollout is."""

    DRAFT = "draft"
    VALIDATING = "validating"
    WAITING_APPROVAL = "waiting_approval"
    READY = "ready"
    RUNNING = "running"  # devices of the wave are told, and report
    SOAKING = "soaking"  # enough have reported: the wave is watched for a while
    EVALUATING = "evaluating"  # the soak is over: go on?
    PAUSED_INCONCLUSIVE = "paused_inconclusive"  # the evidence does not say: nobody new is told
    PAUSED_MANUAL = "paused_manual"  # a person has to look, or wanted it so
    ABORTING = "aborting"  # whatever is not committed is taken back
    REVERTING = "reverting"  # what was committed goes back under a permit
    COMPLETED = "completed"
    COMPLETED_PARTIAL = "completed_partial"  # the time was up before all had been reached
    ABORTED = "aborted"
    REVERTED = "reverted"
    DENIED = "denied"
    EXPIRED = "expired"  # nobody approved it in time


S = RolloutState
TERMINAL = frozenset((S.COMPLETED, S.COMPLETED_PARTIAL, S.ABORTED, S.REVERTED, S.DENIED, S.EXPIRED))
BEFORE = frozenset((S.DRAFT, S.VALIDATING, S.WAITING_APPROVAL, S.READY))  # no device was told yet
PAUSED = frozenset((S.PAUSED_INCONCLUSIVE, S.PAUSED_MANUAL))
UNDER_WAY = frozenset((S.RUNNING, S.SOAKING, S.EVALUATING))
_STOPS = frozenset((S.PAUSED_MANUAL, S.PAUSED_INCONCLUSIVE, S.ABORTING, S.COMPLETED_PARTIAL))
_NEXT = {
    S.DRAFT: frozenset((S.VALIDATING, S.DENIED)),
    S.VALIDATING: frozenset((S.WAITING_APPROVAL, S.READY, S.DENIED)),
    S.WAITING_APPROVAL: frozenset((S.READY, S.DENIED, S.EXPIRED)),
    S.READY: frozenset((S.RUNNING, S.DENIED, S.PAUSED_MANUAL)),
    S.RUNNING: _STOPS | {S.SOAKING, S.COMPLETED},
    S.SOAKING: _STOPS | {S.EVALUATING},
    S.EVALUATING: _STOPS | {S.RUNNING},
    S.PAUSED_INCONCLUSIVE: frozenset((S.EVALUATING, S.RUNNING, S.PAUSED_MANUAL, S.ABORTING)),
    S.PAUSED_MANUAL: frozenset((S.RUNNING, S.ABORTING)),
    S.ABORTING: frozenset((S.ABORTED, S.REVERTING)),
    S.REVERTING: frozenset((S.REVERTED,)),
}


def may_become(now: RolloutState, wanted: RolloutState) -> bool:
    return wanted in _NEXT.get(now, ())


class RolloutDeviceState(StrEnum):
    """Where one device of a rollout is, as far as the hub knows."""

    QUEUED = "queued"
    NOTIFIED = "notified"
    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"  # it said, signed, that it has committed the very bytes
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    UNREACHED = "unreached"  # told, never heard of: neither a success nor a failure


OPEN = frozenset((RolloutDeviceState.NOTIFIED, RolloutDeviceState.IN_PROGRESS))
# ends that the hub set: the device may still tell
UNSURE = frozenset((RolloutDeviceState.TIMED_OUT, RolloutDeviceState.UNREACHED))


class Goal(StrEnum):
    """What the newest word to a device was."""

    NONE = ""
    CANDIDATE = "candidate"
    CONTROL = "control"
    WITHDRAWN = "withdrawn"
    BACK = "back"  # to the version before, under a permit


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bundle of the update repository; `digest`: SHA-256 of its packed bytes, hex."""

    path: str
    version: int
    digest: str


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rollout is going to do, fixed when it is made.

    `back`: what the fleet runs now, and would go back to; None = nothing is compared. `permit`: the signed document
    that allows an older version. `rules`: all parameters, as JSON values. `waves`, `spare`: ids, in the order of the
    buckets; who is spare is never told to install. `fleet`: devices of the hub then. `people`: approvals it takes.
    """

    id: str
    family: str
    target: Target
    back: Target | None
    permit: str
    to: str
    rules: dict[str, Any]
    waves: tuple[tuple[str, ...], ...]
    spare: tuple[str, ...]
    fleet: int
    people: int
    by: str
    made_ms: int

    @property
    def digest(self) -> str:
        """What people approve: any other content has another digest."""
        return sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @property
    def size(self) -> int:
        """Devices it is for."""
        return sum(map(len, self.waves))

    @property
    def small(self) -> bool:
        """Whether a percent of those who may be told would be nobody."""
        return self.size + len(self.spare) < SMALL_FLEET


class Approval(msgspec.Struct, frozen=True):
    """A person has seen the plan of this digest and says yes."""

    by: str
    digest: str
    at_ms: int


class Row(msgspec.Struct):
    """One device. `counter`: of the newest word to it; `base`: of the word that its reports are about.

    `told_ms`, `since_ms`: when that word was given, when it came into its present phase; `wave`: counted from 0, -1 for
    a spare device. `heard`: whether it spoke since it was told.
    """

    device: str
    wave: int
    state: RolloutDeviceState = RolloutDeviceState.QUEUED
    goal: Goal = Goal.NONE
    counter: int = 0
    base: int = 0
    seq: int = 0
    told_ms: int = 0
    since_ms: int = 0
    sub: InstallState | None = None
    failure: Failure | None = None
    exposed: bool = False  # it was ever told to install
    heard: bool = False
    quality: Quality | None = None
    signals: Signals | None = None


class Head(msgspec.Struct, frozen=True):
    """All that changes of a rollout but its devices. `revision`: which state of it this is, for compare-and-set.

    `passed`: waves whose gate was passed. `held`: candidates were withdrawn while people look. Times in ms, 0 = never.
    """

    state: RolloutState = RolloutState.DRAFT
    why: str = ""
    revision: int = 0
    wave: int = 0
    passed: int = 0
    changed_ms: int = 0
    wave_ms: int = 0
    soak_ms: int = 0
    inconclusive: int = 0
    held: bool = False
    revert: bool = False
    excused: Excused = Excused()
    approvals: tuple[Approval, ...] = ()


class Entry(msgspec.Struct, frozen=True):
    """One line of a rollout's history. `by`: a person, or "hub"."""

    seq: int
    at_ms: int
    by: str
    what: str
    why: str
    state: RolloutState


class Record(msgspec.Struct):
    """A rollout as it lies in the store; `counters`: the highest that each device was ever given for the family."""

    plan: Plan
    head: Head
    rows: list[Row]
    counters: dict[str, int]
    entries: int = 0


class Changes(NamedTuple):
    """What is to be written, if the stored revision is still `expected`."""

    id: str
    expected: int
    head: Head
    rows: tuple[Row, ...]
    entries: tuple[Entry, ...]


# Commands


class Assign(NamedTuple):
    """Say this to the device."""

    device: str
    assignment: Assignment


class Validate(NamedTuple):
    """Look whether the plan can be carried out, and tell the core by `on_validated`."""

    plan: Plan


class Alarm(NamedTuple):
    """A person should know."""

    why: str


Command = Assign | Validate | Alarm


class RolloutError(Exception):
    """A request that is refused; `code`: not_found, conflict, refused, invalid."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
