"""What the hands of an agent work with, handed over as one value."""

from collections import Counter
from typing import NamedTuple

from edge_agent.clock import HubClock
from edge_agent.core import EdgeCore
from edge_agent.database import Database
from edge_agent.desk import Desk
from edge_agent.envelope import Envelopes
from edge_agent.journal import Journal
from edge_agent.link import Link
from wire.messages import Hello


class Parts(NamedTuple):
    """Each owned by the event loop."""

    core: EdgeCore
    database: Database
    desk: Desk
    journal: Journal
    link: Link
    envelopes: Envelopes
    clock: HubClock
    counts: Counter[str]
    hello: Hello  # with epoch 0: the core knows it later
    max_age_s: float
