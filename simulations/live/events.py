"""Process faults of a live run: agents, broker and hub are killed by SIGKILL and restarted afterwards.

Rule: a kill is a kill: no clean shutdown for agents either. Links are the proxy's business, load is the driver's.
"""

import asyncio
import contextlib
import os
import signal

from simulations.live.agents import Crew
from simulations.live.links import LINKS, Proxies, conditions, moments, plan
from simulations.processes import Stage
from simulations.scenario.arrivals import struck
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import Event, EventKind, Scenario

_PROCESSES = (EventKind.KILL_AGENTS, EventKind.KILL_BROKER, EventKind.KILL_HUB, EventKind.KILL_REGION)
KINDS = (*LINKS, *_PROCESSES, EventKind.WEATHER, EventKind.SURGE, EventKind.STORM)


def check(scenario: Scenario) -> None:
    """Check that a scenario can be run live.

    ScenarioError, one line, for what cannot be done to real processes on one machine.
    """
    if len(scenario.regions) != 1 or scenario.regions[0].hubs != 1:
        raise ScenarioError("region: a live run has one region with one hub; `skerry sim run` has as many as you like")
    for event in scenario.events:
        if event.kind not in KINDS:
            known = ", ".join(sorted(KINDS))
            raise ScenarioError(f"event.kind: {event.kind} cannot be done to real processes; live runs know {known}")


class Events:
    """Acts out the scenario's events on processes, agents and proxies."""

    def __init__(self, scenario: Scenario, stage: Stage, crew: Crew, proxies: Proxies) -> None:
        self._scenario = scenario
        self._stage = stage
        self._crew = crew
        self._proxies = proxies
        self._plan = plan(scenario)

    async def run(self, began: float) -> None:
        """Run until the last event is over. `began`: monotonic seconds."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._weather(began), name="weather")
            for event in self._scenario.events:
                if event.kind in _PROCESSES:
                    group.create_task(self._act(event, began), name=f"event-{event.kind}")

    async def _weather(self, began: float) -> None:
        for at_s in moments(self._scenario):
            await _until(began + at_s)
            await self._proxies.use(conditions(self._scenario, self._plan, at_s))

    async def _act(self, event: Event, began: float) -> None:
        await _until(began + event.at_s)
        if event.kind is EventKind.KILL_AGENTS:
            await self._kill_agents(event, began)
        elif event.kind is EventKind.KILL_BROKER:
            self._kill_broker()  # its hub starts another; until the end the proxies let nobody through
        else:
            await self._kill_hub(began + event.ends_s)

    async def _kill_agents(self, event: Event, began: float) -> None:
        numbers = [n for n in struck(event, range(len(self._crew))) if self._crew.agents[n] is not None]
        for number in numbers:
            await self._crew.kill(number)
        await _until(began + event.ends_s)
        for number in numbers:
            await self._crew.wake(number)

    def _kill_broker(self) -> None:
        pid = self._stage.broker_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _kill_hub(self, back_at: float) -> None:
        """Kill the hub, its broker with it; restart it at `back_at`."""
        if self._stage.hub is not None and self._stage.hub.child.running:
            await self._stage.hub.child.kill()
            await _until(back_at)
            await self._stage.wake_hub()


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))
