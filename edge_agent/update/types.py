"""Types of the install state machine: its row, the events it takes and the commands it gives. Frozen values only.

Times are hub time in whole milliseconds since 1970 (`_ms`), which survive a restart; durations are seconds (`_s`).
"""

import msgspec

from models.update.slots import Slot
from models.update.trust import Refusal
from wire.protocol.rollout import Assignment, AuditQuality, DeviceSignals, InstallFailure, InstallState


class InstallLimits(msgspec.Struct, frozen=True):
    """How long each state of an install may last, and how often something is tried.

    `checking_s`, `accepted_s`, `downloading_s`, `paused_s`: the longest stay in that state. `retry_s`: the first pause
    before a failed action is tried again, doubled each time; `retries`: how often. `self_tests`: how often a self-test
    may be started. `attempts`: process starts that a model on probation may crash in. `quarantine_s`: how long a bundle
    that failed here is not tried again.
    """

    checking_s: float = 120.0
    accepted_s: float = 86_400.0
    downloading_s: float = 86_400.0
    paused_s: float = 7 * 86_400.0
    retry_s: float = 60.0
    retries: int = 10
    self_tests: int = 2
    attempts: int = 3
    spread_s: float = 0.0  # an accepted install waits a random part of it
    interval_s: float = 600.0  # at most one activation in so long: a stolen hub key shall not make a device spin
    quarantine_s: float = 7 * 86_400.0


class InstallStatus(msgspec.Struct, frozen=True):
    """The status of one assignment, as it is reported to the hub.

    The status of the last one that ended is reported again at each start: the report may have been lost.
    """

    counter: int
    rollout: str
    family: str
    state: InstallState
    failure: InstallFailure | None = None
    detail: str = ""
    trial_passed: bool = False  # only the hub's release is missing


class InstallRow(msgspec.Struct, frozen=True):
    """The machine's whole state, as it is stored: written and synced before anything is done.

    `counter`, `newest`: of the highest assignment that was accepted. `work` is being installed, `queued` comes after
    it; `control`: the device is in a rollout's control group, and only counts. `target`: the slot of `work`. `tries`:
    of the state's own action. `attempts`: process starts that are left to a model on probation. `clean`: the process
    before this one ended as it was told to. `safe`: no model is left that may serve. `before`: figures of the model
    before; `seen`, `quality`: of this one, up to the last write.
    """

    state: InstallState = InstallState.IDLE
    since_ms: int = 0
    counter: int = 0
    newest: Assignment | None = None
    work: Assignment | None = None
    queued: Assignment | None = None
    control: Assignment | None = None
    target: Slot | None = None
    length: int = 0
    tries: int = 0
    attempts: int = 0
    clean: bool = True
    withdrawn: bool = False
    safe: bool = False
    failure: InstallFailure | None = None
    detail: str = ""
    begun_ms: int = 0  # of the download
    not_before_ms: int = 0
    activated_ms: int = 0
    declared_bytes: int = 0
    before: DeviceSignals = DeviceSignals()
    seen: DeviceSignals = DeviceSignals()
    quality: AuditQuality = AuditQuality()
    ended: InstallStatus | None = None


# Events


class AssignmentReceived(msgspec.Struct, frozen=True):
    """Event: a verified assignment of our hub for this device."""

    assignment: Assignment


class ProcessStarted(msgspec.Struct, frozen=True):
    """Event: a process begins, before any model is loaded.

    `current`: digest of the bundle that the store would serve, "" for none; `on_trial`: it was never committed.
    """

    current: str
    on_trial: bool = False


class LoopStarted(msgspec.Struct, frozen=True):
    """Event: the event loop runs. `serving`: digest of the bundle that answers."""

    serving: str


class AssignmentChecked(msgspec.Struct, frozen=True):
    """Event: the repository was asked about the assignment.

    `target` None: it is refused, for the reason `failure`. `length`: of the bundle in bytes. `jitter`: drawn from [0,
    1).
    """

    target: Slot | None
    length: int = 0
    failure: InstallFailure | None = None
    detail: str = ""
    jitter: float = 0.0


class StateReached(msgspec.Struct, frozen=True):
    """Event: the worker is about to do what `state` stands for, and waits for `ProceedWorker`."""

    state: InstallState


class BundleFetched(msgspec.Struct, frozen=True):
    """Event: the worker has ended. `failure` None: the bundle is staged and passed its self-test.

    `hopeless`: the bundle itself is at fault, never try it again.
    """

    slot: Slot | None = None
    failure: InstallFailure | None = None
    detail: str = ""
    hopeless: bool = False


class ModelActivated(msgspec.Struct, frozen=True):
    """Event: the new model answers, and the old one still opens; with a `failure`, nothing has changed.

    `before`: signals of the model before. `declared_bytes`: resident memory that the process may use with both models.
    """

    failure: InstallFailure | None = None
    detail: str = ""
    before: DeviceSignals = DeviceSignals()
    declared_bytes: int = 0


class HealthObserved(msgspec.Struct, frozen=True):
    """Event, once a tick: what the trial has counted since it began.

    `hub_ms`: when a hub was last connected. `download`: battery and link allow a download now. `serving`: digest of the
    bundle that answers.
    """

    seen: DeviceSignals = DeviceSignals()
    quality: AuditQuality = AuditQuality()
    hub_ms: int = 0
    download: bool = True
    serving: str = ""


class GoldenSetChecked(msgspec.Struct, frozen=True):
    """Event: the serving session was run on its golden set. `same`: it answers as it did in its self-test."""

    same: bool


class ActionDone(msgspec.Struct, frozen=True):
    """Event: a commit or a rollback is done; `failure`: why it is not."""

    failure: InstallFailure | None = None
    detail: str = ""


class ProcessClosing(msgspec.Struct, frozen=True):
    """Event: the process ends as it was told to. The figures are stored for the next process."""

    seen: DeviceSignals = DeviceSignals()
    quality: AuditQuality = AuditQuality()


InstallEvent = (
    AssignmentReceived | ProcessStarted | LoopStarted | AssignmentChecked | StateReached | BundleFetched
    | ModelActivated | HealthObserved | GoldenSetChecked | ActionDone | ProcessClosing
)  # fmt: skip


# Commands, executed in their order


class WriteRow(msgspec.Struct, frozen=True):
    """Command: write the row and sync it. If the disk refuses, no command after it is executed."""

    row: InstallRow


class CheckAssignment(msgspec.Struct, frozen=True):
    """Command: ask the update repository whether the assignment may be installed here.

    Followed by `AssignmentChecked`.
    """

    assignment: Assignment


class FetchBundle(msgspec.Struct, frozen=True):
    """Command: download, verify, stage and self-test the bundle, from `state` on.

    `StateReached` before each, then `BundleFetched`.
    """

    target: Slot
    state: InstallState


class ProceedWorker(msgspec.Struct, frozen=True):
    """Command: the worker may do what it has announced."""


class StopWorker(msgspec.Struct, frozen=True):
    """Command: end the worker's process."""


class ActivateModel(msgspec.Struct, frozen=True):
    """Command: check that the serving model still opens, then serve the staged one on trial.

    Followed by `ModelActivated`.
    """

    target: Slot


class CommitModel(msgspec.Struct, frozen=True):
    """Command: raise the rollback floor and drop the model before. Followed by `ActionDone`."""

    target: Slot


class RollBackModel(msgspec.Struct, frozen=True):
    """Command: serve the model before again.

    Followed by `ActionDone`; with a failure, there is none that can serve.
    """

    target: Slot


class CleanUpStore(msgspec.Struct, frozen=True):
    """Command: remove what was staged or partly downloaded.

    `until_ms`: quarantine the bundle until then, 0 for no quarantine. `hopeless`: never try it again.
    """

    target: Slot | None
    until_ms: int = 0
    hopeless: bool = False


class WatchTrial(msgspec.Struct, frozen=True):
    """Command: count answers for this assignment from now on, starting with these figures; None: stop counting."""

    assignment: Assignment | None
    seen: DeviceSignals = DeviceSignals()
    quality: AuditQuality = AuditQuality()


class ReportStatus(msgspec.Struct, frozen=True):
    """Command: report the status to the hub. `figures`: with what was counted."""

    status: InstallStatus
    figures: bool = False


class CheckGoldenSet(msgspec.Struct, frozen=True):
    """Command: run the serving session on its golden set. Followed by `GoldenSetChecked`."""


class RefuseAssignment(msgspec.Struct, frozen=True):
    """Command: an assignment is not acceptable (stale, expired, for another device): count it, and do nothing else."""

    refusal: Refusal


InstallCommand = (
    WriteRow
    | CheckAssignment
    | FetchBundle
    | ProceedWorker
    | StopWorker
    | ActivateModel
    | CommitModel
    | RollBackModel
    | CleanUpStore
    | WatchTrial
    | ReportStatus
    | CheckGoldenSet
    | RefuseAssignment
)
