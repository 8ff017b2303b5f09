"""The services that the runtime of an agent works with, handed over as one value."""

from collections import Counter
from typing import NamedTuple

from edge_agent.question.decide import EdgeCore
from edge_agent.question.seal import Envelopes, EscalationSealer, PendingVerdicts
from edge_agent.storage.database import Database
from edge_agent.storage.journal import Journal
from edge_agent.system.clock import HubClock
from edge_agent.system.energy import EnergyMonitor
from edge_agent.uplink.connection import ConnectionPool


class AgentServices(NamedTuple):
    """Core, database, sealer, connections, clock, energy and counters of one agent, used on the event loop only."""

    core: EdgeCore
    database: Database
    sealer: EscalationSealer
    pending: PendingVerdicts
    journal: Journal
    connections: ConnectionPool
    envelopes: Envelopes
    clock: HubClock
    energy: EnergyMonitor
    counts: Counter[str]
