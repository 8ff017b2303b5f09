"""What the agent and its errand say to each other: one job, one report, each a line of JSON. Values only."""

import msgspec

from models.store import Document, Slot
from models.trust import Refusal


class Job(msgspec.Struct, frozen=True):
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
