"""Runs an agent for its open questions alone: no samples, no API, until nothing is open or the time is over."""

import asyncio

from edge_agent.app.merging_agent_loop import Agent
from edge_agent.app.merging_process_serve import Parts
from edge_agent.identity.renewal import Renewer
from edge_agent.system.clock import HubClock
from edge_agent.system.merging_settings_settings import AgentSettings
from edge_agent.uplink.connection import dial
from wire.process.logging import Log

_LOOK_S = 0.1


async def drain(parts: Parts, settings: AgentSettings, within_s: float) -> int:
    """How many questions are still open at the end. The caller holds the folder's lock."""
    clock = HubClock(parts.identity.hub_time_ms)
    credentials = Renewer(parts.identity, clock, Log(least="error"))
    connect = dial(credentials, settings.connect_timeout_s)
    agent = Agent(settings, parts.identity, parts.runner, parts.standing.policy, connect, clock=clock)
    await agent.open()
    if parts.installed.hubs:
        agent.use_hubs(parts.installed.hubs)
    running = asyncio.create_task(agent.run(), name="agent")
    deadline = asyncio.get_running_loop().time() + within_s
    while agent.status()["open"] and asyncio.get_running_loop().time() < deadline and not running.done():
        await asyncio.wait({running}, timeout=_LOOK_S)
    left = int(agent.status()["open"])
    agent.stop()
    await running
    return left
