"""Types of a rollout: its states and their transitions, plan, device rows, history, commands and errors. Pure data.

Rule: a plan never changes once it is made; what people approve is its digest. Terminal states lead nowhere.
"""

from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from policies.rollout_rules.plan import SMALL_FLEET
from policies.rollout_rules.wave_results import ExcusedCounts
from wire.protocol.rollout import Assignment, AuditQuality, DeviceSignals, InstallFailure, InstallState


class RolloutState(StrEnum):
    """State of a rollout; `can_become` says which follows which, the last six are terminal."""

    DRAFT = "draft"
    VALIDATING = "validating"
    WAITING_APPROVAL = "waiting_approval"
    READY = "ready"
    RUNNING = "running"  # devices of the wave get assignments, and report
    SOAKING = "soaking"  # enough have reported: the wave is watched for a while
    EVALUATING = "evaluating"  # the soak is over: decide whether to go on
    PAUSED_INCONCLUSIVE = "paused_inconclusive"  # the evidence does not decide: no further assignments
    PAUSED_MANUAL = "paused_manual"  # paused by a person, or until a person decides
    ABORTING = "aborting"  # whatever is not committed is withdrawn
    REVERTING = "reverting"  # what was committed goes back under a permit
    COMPLETED = "completed"
    COMPLETED_PARTIAL = "completed_partial"  # the time was up before all had been reached
    ABORTED = "aborted"
    REVERTED = "reverted"
    DENIED = "denied"
    EXPIRED = "expired"  # nobody approved it in time


S = RolloutState
TERMINAL = frozenset((S.COMPLETED, S.COMPLETED_PARTIAL, S.ABORTED, S.REVERTED, S.DENIED, S.EXPIRED))
NOT_STARTED = frozenset((S.DRAFT, S.VALIDATING, S.WAITING_APPROVAL, S.READY))  # nothing was assigned yet
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


def can_become(now: RolloutState, wanted: RolloutState) -> bool:
    """Whether a rollout may go from state `now` to state `wanted`."""
    return wanted in _NEXT.get(now, ())


class RolloutDeviceState(StrEnum):
    """State of one device of a rollout, as far as the hub knows."""

    QUEUED = "queued"
    NOTIFIED = "notified"
    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"  # a signed report: it has committed the assigned bytes
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    UNREACHED = "unreached"  # assigned, never answered: neither a success nor a failure
    LEFT = "left"  # revoked, retired, suspended or moved out of the selection: it counts for nothing


OPEN = frozenset((RolloutDeviceState.NOTIFIED, RolloutDeviceState.IN_PROGRESS))
FAILED_STATES = frozenset(
    (
        RolloutDeviceState.FAILED,
        RolloutDeviceState.ROLLED_BACK,
        RolloutDeviceState.TIMED_OUT,
        RolloutDeviceState.REJECTED,
    )
)
# ends that the hub set by timeout: a report may still change them
TIMED_OUT_STATES = frozenset((RolloutDeviceState.TIMED_OUT, RolloutDeviceState.UNREACHED))


class DeviceGoal(StrEnum):
    """Kind of the newest assignment of a device: install, be a control, nothing any more, or go back."""

    NONE = ""
    CANDIDATE = "candidate"
    CONTROL = "control"
    WITHDRAWN = "withdrawn"
    BACK = "back"  # to the version before, under a permit


class BundleTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bundle of the update repository.

    `path`: its target path; `version`: of the model; `digest`: SHA-256 of its packed bytes, hex.
    """

    path: str
    version: int
    digest: str


class RolloutPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a rollout is going to do, fixed when it is made.

    `target`: the bundle that devices are to install; `back`: what the fleet runs now, and would go back to; None =
    nothing is compared. `permit`: the signed document that allows an older version. `to`: the selector that was asked
    for. `rules`: all parameters, as JSON values. `waves`, `spare`: ids, in the order of the buckets; a spare device is
    never assigned an install. `fleet`: devices of the hub then. `people`: approvals it takes. `by`, `made_ms`: who made
    it, when.
    """

    id: str
    family: str
    target: BundleTarget
    back: BundleTarget | None
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
        """SHA-256 of the plan's canonical JSON, hex: what people approve."""
        return sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @property
    def size(self) -> int:
        """Number of devices in all waves."""
        return sum(map(len, self.waves))

    @property
    def needs_release(self) -> bool:
        """Whether devices commit only what the hub's gate has passed; not where people signed a permit for it."""
        return self.back is not None and not self.permit

    @property
    def is_small(self) -> bool:
        """Whether a percent of the devices that may be assigned would be less than one."""
        return self.size + len(self.spare) < SMALL_FLEET


class Approval(msgspec.Struct, frozen=True):
    """A person's approval of the plan with this digest. `at_ms`: hub time."""

    by: str
    digest: str
    at_ms: int


class RolloutRow(msgspec.Struct):
    """Stored state of one device of a rollout.

    `counter`: of its newest assignment; `base`: of the assignment that its reports are about; `seq`: of its last
    report. `told_ms`, `since_ms`: when it was assigned, when it came into its present phase; `wave`: counted from 0, -1
    for a spare device. `heard`: whether it sent anything since. `trial_passed`: the device's own probation found
    nothing; `released`: it may commit. `excused`: a person has seen just this failure, and went on.
    """

    device: str
    wave: int
    state: RolloutDeviceState = RolloutDeviceState.QUEUED
    goal: DeviceGoal = DeviceGoal.NONE
    counter: int = 0
    base: int = 0
    seq: int = 0
    told_ms: int = 0
    since_ms: int = 0
    sub: InstallState | None = None
    failure: InstallFailure | None = None
    exposed: bool = False  # it was ever assigned an install
    heard: bool = False
    quality: AuditQuality | None = None
    signals: DeviceSignals | None = None
    trial_passed: bool = False
    released: bool = False
    excused: bool = False


class RolloutHead(msgspec.Struct, frozen=True):
    """Everything that changes of a rollout except its devices. `revision` counts its writes, for compare-and-set.

    `passed`: waves whose gate was passed. `held`: candidates were withdrawn while people look. `soak_ms`: when the soak
    began, `look_ms`: when it was last prolonged, with `audits` of the wave then; `inconclusive`: evaluations without a
    decision in a row; times in ms, 0 = never. `accepted`: a person lets the wave pass without evidence.
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
    excused: ExcusedCounts = ExcusedCounts()
    approvals: tuple[Approval, ...] = ()
    look_ms: int = 0
    audits: int = 0
    accepted: bool = False


class HistoryEntry(msgspec.Struct, frozen=True):
    """One entry of a rollout's history. `by`: a person, or "hub"."""

    seq: int
    at_ms: int
    by: str
    what: str
    why: str
    state: RolloutState


class RolloutRecord(msgspec.Struct):
    """A rollout as stored; `counters`: the highest that each device was ever given for the family."""

    plan: RolloutPlan
    head: RolloutHead
    rows: list[RolloutRow]
    counters: dict[str, int]
    entries: int = 0


class RolloutChanges(NamedTuple):
    """Changes to be written if the stored revision is still `expected`."""

    id: str
    expected: int
    head: RolloutHead
    rows: tuple[RolloutRow, ...]
    entries: tuple[HistoryEntry, ...]


# Commands


class Assign(NamedTuple):
    """Command: send this assignment to the device."""

    device: str
    assignment: Assignment


class ValidatePlan(NamedTuple):
    """Command: check whether the plan can be carried out, and tell the core by `on_validated`."""

    plan: RolloutPlan


class NotifyOperator(NamedTuple):
    """Command: notify a person."""

    why: str


RolloutCommand = Assign | ValidatePlan | NotifyOperator


class RolloutError(Exception):
    """A request about a rollout that is refused; `code`: not_found, conflict, refused, invalid."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
