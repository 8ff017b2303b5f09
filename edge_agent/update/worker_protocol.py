"""Messages between the agent and its update workers, each one line of JSON. Frozen values only."""

from enum import StrEnum

import msgspec

from models.update.slots import Slot, StoredDocument
from models.update.trust import Refusal
from wire.process.proxy import NO_PROXY, ForwardProxy
from wire.protocol.rollout import Assignment, InstallFailure, InstallState


class FollowMode(StrEnum):
    """Which bundles of its family a poll may install by itself."""

    ASSIGNMENTS = "assignments"  # the newest for a device that has none; after that only what is assigned
    NEWEST = "newest"
    NONE = "none"  # nothing: the last one is gone for a reason


class UpdateJob(msgspec.Struct, frozen=True):
    """A job of the update worker. `url`: above metadata/ and targets/. `root`: the trusted TUF root.

    `least_ms`: an hour that has certainly passed (hub time). `hub_url`, `authorities` (PEM): TLS to the hub's own host,
    and only there, trusts these alone. `documents`: paths under `policy/` and `keys/`. `family` "": no bundle wanted.
    `agent`: our version. `proxy`: on the way to the repository.
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
    follow: FollowMode = FollowMode.NEWEST
    proxy: ForwardProxy = NO_PROXY


class PollReport(msgspec.Struct, frozen=True):
    """The update worker's report. `looked`: the store was opened, and `current` is what should serve, None for nothing.

    `refreshed`: the repository was reached and verified. `documents`: new ones, in the store now. `left`: path of a
    bundle that may not serve any more; where `current` is None with it, none is left that may. `alarm`: two polls in a
    row met expired metadata (TUF freeze attack, or a repository that nobody signs).
    """

    looked: bool = False
    refreshed: bool = False
    documents: tuple[StoredDocument, ...] = ()
    current: Slot | None = None
    left: str = ""
    refusals: tuple[Refusal, ...] = ()
    alarm: bool = False


class InstallRequest(msgspec.Struct, frozen=True):
    """A request of the install machine to its worker.

    `target` None: only check whether `assignment` may be installed; else download and test it, beginning with `state`.
    `now_ms`: hub time.
    """

    job: UpdateJob
    assignment: Assignment
    now_ms: int
    target: Slot | None = None
    state: InstallState = InstallState.DOWNLOADING


class InstallMessage(msgspec.Struct, frozen=True):
    """A message of the install worker. `reached`: it is about to do that, and waits; without it, this is the last.

    `slot`: as the repository lists it, or as it is staged. `length`: in bytes. `hopeless`: never try this bundle again.
    `resident_bytes`: memory that the model took in its self-test.
    """

    reached: InstallState | None = None
    slot: Slot | None = None
    length: int = 0
    failure: InstallFailure | None = None
    detail: str = ""
    hopeless: bool = False
    resident_bytes: int = 0
