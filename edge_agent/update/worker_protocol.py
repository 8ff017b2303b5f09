"""What the agent and its update workers say to each other, each a line of JSON. Values only."""

from enum import StrEnum

import msgspec

from models.update.slots import Document, Slot
from models.update.trust import Refusal
from wire.protocol.rollout import Assignment, Failure, InstallState


class Follow(StrEnum):
    """Which bundle of a family a look may bring by itself."""

    ASSIGNMENTS = "assignments"  # the newest for a device that has none; after that only what is assigned
    NEWEST = "newest"
    NONE = "none"  # nothing: the last one is gone for a reason


class UpdateJob(msgspec.Struct, frozen=True):
    """`url`: above metadata/ and targets/. `root`: where trust begins. `least_ms`: an hour that has certainly passed.

    `hub_url`, `authorities` (PEM): there, and there alone, TLS trusts only these. `documents`: paths under `policy/`
    and `keys/`. `family` "" wants no bundle. `agent`: our version.
    """

    folder: str
    url: str
    root: bytes
    least_ms: int
    hub_url: str
    authorities: tuple[str, ...]
    documents: tuple[str, ...]
    family: str
    agent: str
    follow: Follow = Follow.NEWEST


class Report(msgspec.Struct, frozen=True):
    """`looked`: the store was opened, and `current` is what should serve now, None for nothing.

    `refreshed`: the repository was reached and vouched for. `documents`: new ones, in the store now. `left`: a bundle
    that may not serve any more; where `current` is None with it, nothing is left that may. `alarm`: two polls in a row
    met expired metadata.
    """

    looked: bool = False
    refreshed: bool = False
    documents: tuple[Document, ...] = ()
    current: Slot | None = None
    left: str = ""
    refusals: tuple[Refusal, ...] = ()
    alarm: bool = False


class WorkerRequest(msgspec.Struct, frozen=True):
    """Of the install machine. `target` None: only look whether `assignment` may be installed; else bring it home.

    `state`: where to begin. `now_ms`: hub time.
    """

    job: UpdateJob
    assignment: Assignment
    now_ms: int
    target: Slot | None = None
    state: InstallState = InstallState.DOWNLOADING


class WorkerMessage(msgspec.Struct, frozen=True):
    """A line of such a worker. `reached`: it is about to do that, and waits for a line; else it is the last.

    `slot`: as the repository has it, or as it is staged. `resident_bytes`: what the model took in its self-test.
    """

    reached: InstallState | None = None
    slot: Slot | None = None
    length: int = 0
    failure: Failure | None = None
    detail: str = ""
    hopeless: bool = False
    resident_bytes: int = 0
