"""What the shell of an agent works with, handed over as one value."""

from collections import Counter
from typing import NamedTuple

from edge_agent.clock import HubClock
from edge_agent.core import EdgeCore
from edge_agent.database import Database
from edge_agent.desk import EscalationSealer, PendingVerdicts
from edge_agent.envelope import Envelopes
from edge_agent.journal import Journal
from edge_agent.link import ConnectionPool


class Parts(NamedTuple):
    """Each owned by the event loop."""

    core: EdgeCore
    database: Database
    sealer: EscalationSealer
    pending: PendingVerdicts
    journal: Journal
    connections: ConnectionPool
    envelopes: Envelopes
    clock: HubClock
    counts: Counter[str]
