"""Rollout messages: assignments to a device, install reports to the hub, and the hub's receipt of a report. Pure.

Positional msgpack like `messages`: a field is only ever added at the end. Times are hub time in whole milliseconds
since 1970 (`_ms`) or durations in seconds (`_s`). Sums and counts run from when the assignment was accepted and never
go back, so that a lost report costs nothing: the next one contains it.
"""

from enum import StrEnum

import msgspec


class RolloutCohort(StrEnum):
    """Role of a device in a rollout."""

    CANDIDATE = "candidate"  # installs the version, if it may
    CONTROL = "control"  # keeps what it runs and reports the same figures at the same time


class InstallState(StrEnum):
    """State of the install state machine on a device; docs/rollout.md describes each."""

    IDLE = "idle"
    CHECKING = "checking"
    ACCEPTED = "accepted"
    DOWNLOADING = "downloading"
    PAUSED = "paused"
    VERIFYING = "verifying"
    STAGED = "staged"
    SELF_TEST = "self_test"
    SHADOW = "shadow"
    ACTIVATING = "activating"
    PROBATION = "probation"
    COMMITTED = "committed"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    SAFE_MODE = "safe_mode"


class InstallFailure(StrEnum):
    """Why an update did not happen, or was reverted."""

    INTEGRITY = "integrity"
    ROLLBACK = "rollback"
    FREEZE = "freeze"
    REPLAY = "replay"
    SLOW_RETRIEVAL = "slow_retrieval"
    NETWORK = "network"
    DISK = "disk"
    INCOMPATIBLE = "incompatible"
    QUARANTINED = "quarantined"
    SELF_TEST = "self_test"
    HEALTH = "health"
    POLICY = "policy"
    INTERNAL = "internal"


class Assignment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="t"):
    """Signed assignment of a model version to one device, on `down/desired`.

    `counter` only ever grows for a device and family: the highest is what holds. `path`, `version`, `digest` (SHA-256
    of the packed bundle, hex) name a target of the update repository; for `CONTROL` they name what it runs already.
    `withdraw`: nothing is assigned any more; an install that is not committed is given up.
    `soak_s` and `min_inferences` must both pass before a commit; after `max_soak_s` the first is enough for a model
    that has answered at all, and one that has not goes back. `needs_release`: it is committed only once the same
    assignment came again without this, and goes back when it expires; the hub releases a wave that passed its gate.
    `strict`: without a hub in reach for `strict_s` a device in probation goes back instead of committing.
    `epoch` is 0: it holds for any database of the device.
    """

    epoch: int
    device: str
    counter: int
    issued_ms: int
    expires_ms: int
    rollout: str
    family: str
    path: str
    version: int
    digest: str
    cohort: RolloutCohort = RolloutCohort.CANDIDATE
    withdraw: bool = False
    audit_share: float = 0.0  # of all answers, under the policy's own share
    soak_s: float = 1800.0
    min_inferences: int = 200
    max_soak_s: float = 86_400.0
    strict: bool = False
    strict_s: float = 1800.0
    report_s: float = 300.0  # how often figures are reported while it lasts
    needs_release: bool = False


MAX_AUDIT_CELLS = 32


class AuditAgreement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Counts of audited samples of one data class at one audit `share`, with human feedback. Whole numbers.

    `agreed`: the serving model agreed with the verdict of the *committed* model. `worse`: the committed model agreed
    with it and the serving one did not; `better`: the other way round. A control device has neither. `told`: answers
    that a person judged, `told_wrong` of these; `told_worse` and `told_better` where both models' answers are known.
    """

    data_class: str
    share: float
    audited: int = 0
    agreed: int = 0
    worse: int = 0
    better: int = 0
    told: int = 0
    told_wrong: int = 0
    told_worse: int = 0
    told_better: int = 0


class AuditQuality(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Audit counts of a device, at most `MAX_AUDIT_CELLS` cells; `dropped` counts the audits of further ones.

    `unaudited`: data classes that were answered and may not be audited under the policy in force.
    """

    cells: tuple[AuditAgreement, ...] = ()
    unaudited: tuple[str, ...] = ()
    dropped: int = 0


class ClassSignals(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Inference counts and sums of confidence of one data class; `confidence_sq` is the sum of squares."""

    data_class: str
    answers: int = 0
    escalated: int = 0
    confidence: float = 0.0
    confidence_sq: float = 0.0


class DeviceSignals(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Health figures that a device measures without a hub.

    `p95_us` (latency, microseconds) and `rss_bytes` are current values, the rest are sums.
    """

    inferences: int = 0
    errors: int = 0
    escalated: int = 0
    confidence: float = 0.0
    confidence_sq: float = 0.0
    p95_us: int = 0
    rss_bytes: int = 0
    crashes: int = 0
    starts: int = 0
    classes: tuple[ClassSignals, ...] = ()  # at most `MAX_AUDIT_CELLS`


class InstallReport(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="i"):
    """Progress report of an assignment, on `up/report`; repeated until the hub has sent a `ReportReceipt`.

    `seq` only ever grows for a device, over new databases too: hub time in milliseconds, or one more than the last.
    `version` and `running` (digest of the packed bundle, hex) are of what serves at that moment, "" for nothing.
    `quality` and `signals` are labelled fields (P1): None where the policy in force does not list them.
    `trial_passed`: the device's own probation is over and found nothing; only the hub's release is missing.
    """

    epoch: int
    seq: int
    counter: int
    rollout: str
    family: str
    state: InstallState
    failure: InstallFailure | None
    version: int
    running: str
    at_ms: int
    cohort: RolloutCohort = RolloutCohort.CANDIDATE
    quality: AuditQuality | None = None
    signals: DeviceSignals | None = None
    detail: str = ""  # one line for people; never anything of a sample
    trial_passed: bool = False


class ReportReceipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="j"):
    """Receipt of install reports: all of this device up to `seq` are stored durably."""

    epoch: int
    seq: int
