"""An agent that runs for its open questions alone, before a device is retired."""

import asyncio

from edge_agent.app.agent import Agent
from edge_agent.app.process import StartupState
from edge_agent.identity.renewal import Renewer
from edge_agent.system.clock import HubClock
from edge_agent.system.settings import AgentSettings
from edge_agent.uplink.connection import make_connector
from wire.process.logging import JsonLog

_DRAIN_POLL_S = 0.1


async def drain_questions(parts: StartupState, settings: AgentSettings, within_s: float) -> int:
    """Run an agent for its open questions alone: no samples and no API, until none is open or the time is over.

    Returns how many questions are still open. The caller holds the folder's lock.
    """
    clock = HubClock(parts.identity.hub_time_ms)
    credentials = Renewer(parts.identity, clock, JsonLog(least="error"))
    connect = make_connector(credentials, settings)
    agent = Agent(settings, parts.identity, parts.runner, parts.standing.policy, connect, clock=clock)
    await agent.open()
    if parts.installed.hubs:
        agent.use_hubs(parts.installed.hubs)
    running = asyncio.create_task(agent.run(), name="agent")
    deadline = asyncio.get_running_loop().time() + within_s
    while agent.status()["open"] and asyncio.get_running_loop().time() < deadline and not running.done():
        await asyncio.wait({running}, timeout=_DRAIN_POLL_S)
    left = int(agent.status()["open"])
    agent.stop()
    await running
    return left
