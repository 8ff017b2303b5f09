"""What goes into `InstallMachine` and what comes out of it: its row, events, commands. Frozen values, no behaviour.

Times are hub time in whole milliseconds since 1970; they survive a restart.
"""

import msgspec

from models.update.slots import Slot
from models.update.trust import Refusal
from wire.protocol.rollout import Assignment, Failure, InstallState, Quality, Signals


class Limits(msgspec.Struct, frozen=True):
    """How long each state may last, in seconds, and how often something is tried."""

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
    """How one assignment fares. How the last ended is reported at each start: that report may have been lost."""

    counter: int
    rollout: str
    family: str
    state: InstallState
    failure: Failure | None = None
    detail: str = ""


class InstallRow(msgspec.Struct, frozen=True):
    """Where the machine stands, whole: written and synced before anything is done.

    `counter`, `newest`: the highest that was accepted. `work` is being installed, `queued` comes after it, `control` is
    watched while another version is tried elsewhere. `target`: of `work`, as the update repository has it. `tries`: of
    the state's own action. `attempts`: starts that are left to a model in probation. `clean`: the process before this
    one ended as it was told to. `safe`: nothing is left that may serve. `before`: figures of the model before; `seen`,
    `quality`: of this one, up to the last time they were written down.
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
    failure: Failure | None = None
    detail: str = ""
    begun_ms: int = 0  # of the download
    not_before_ms: int = 0
    activated_ms: int = 0
    declared_bytes: int = 0
    before: Signals = Signals()
    seen: Signals = Signals()
    quality: Quality = Quality()
    ended: InstallStatus | None = None


# Events


class AssignmentReceived(msgspec.Struct, frozen=True):
    """A hub of ours signed it for this device."""

    assignment: Assignment


class Started(msgspec.Struct, frozen=True):
    """A process begins. `current`: digest of what the store would serve; `on_trial`: it was never committed."""

    current: str
    on_trial: bool = False


class Resumed(msgspec.Struct, frozen=True):
    """The loop runs. `serving`: digest of what answers."""

    serving: str


class Checked(msgspec.Struct, frozen=True):
    """`target` None: refused, as `failure` says. `jitter`: drawn from [0, 1)."""

    target: Slot | None
    length: int = 0
    failure: Failure | None = None
    detail: str = ""
    jitter: float = 0.0


class Reached(msgspec.Struct, frozen=True):
    """The worker is about to do what this state stands for."""

    state: InstallState


class Fetched(msgspec.Struct, frozen=True):
    """The worker is done. `failure` None: it is staged and has proven itself. `hopeless`: never try it again."""

    slot: Slot | None = None
    failure: Failure | None = None
    detail: str = ""
    hopeless: bool = False


class Activated(msgspec.Struct, frozen=True):
    """The new model answers, and the old one still opens; or not, and nothing has changed.

    `declared_bytes`: what the process may be expected to take with both.
    """

    failure: Failure | None = None
    detail: str = ""
    before: Signals = Signals()
    declared_bytes: int = 0


class Observed(msgspec.Struct, frozen=True):
    """What was seen since it began. `hub_ms`: when a hub was last heard. `serving`: digest of what answers.

    `download`: power and link allow one now.
    """

    seen: Signals = Signals()
    quality: Quality = Quality()
    hub_ms: int = 0
    download: bool = True
    serving: str = ""


class Examined(msgspec.Struct, frozen=True):
    """`same`: it answers its golden set as it did in its self-test."""

    same: bool


class Done(msgspec.Struct, frozen=True):
    """The state's own action is done; or not, and why."""

    failure: Failure | None = None
    detail: str = ""


class Closing(msgspec.Struct, frozen=True):
    """The process ends as it was told to."""

    seen: Signals = Signals()
    quality: Quality = Quality()


Event = (
    AssignmentReceived | Started | Resumed | Checked | Reached | Fetched
    | Activated | Observed | Examined | Done | Closing
)  # fmt: skip


# Commands, obeyed in their order


class Write(msgspec.Struct, frozen=True):
    """Write the row and sync it; if the disk refuses, nothing after it is done."""

    row: InstallRow


class Check(msgspec.Struct, frozen=True):
    """Look at the update repository: may this be installed here? Then `Checked`."""

    assignment: Assignment


class Fetch(msgspec.Struct, frozen=True):
    """Download, verify, stage and try it, from this state on; `Reached` before each. Then `Fetched`."""

    target: Slot
    state: InstallState


class Proceed(msgspec.Struct, frozen=True):
    """The worker may do what it said."""


class Stop(msgspec.Struct, frozen=True):
    """End the worker."""


class Activate(msgspec.Struct, frozen=True):
    """Prove that what serves still opens, make the staged one serve beside it. Then `Activated`."""

    target: Slot


class Commit(msgspec.Struct, frozen=True):
    """Raise the floor, let go of the model before. Then `Done`."""

    target: Slot


class RollBack(msgspec.Struct, frozen=True):
    """The model before serves again. Then `Done`; a failure: there is none that can."""

    target: Slot


class CleanUp(msgspec.Struct, frozen=True):
    """What was staged or half downloaded is given back. `until_ms`: not before then again, 0 for no such wish."""

    target: Slot | None
    until_ms: int = 0
    hopeless: bool = False


class Watch(msgspec.Struct, frozen=True):
    """Count from now on for this assignment, beginning with what was counted before; None: no more."""

    assignment: Assignment | None
    seen: Signals = Signals()
    quality: Quality = Quality()


class Report(msgspec.Struct, frozen=True):
    """Tell the hub. `figures`: with what was counted."""

    status: InstallStatus
    figures: bool = False


class Examine(msgspec.Struct, frozen=True):
    """Does it still answer its golden set as in its self-test? Then `Examined`."""


class Refused(msgspec.Struct, frozen=True):
    """An assignment that is not believed: counted, and nothing else."""

    refusal: Refusal


Command = (
    Write | Check | Fetch | Proceed | Stop | Activate | Commit | RollBack | CleanUp | Watch | Report | Examine | Refused
)
