"""Process faults of a live run: broker and hub are killed by SIGKILL and restarted afterwards.

Rule: a kill is a kill. Links are the proxy's business, load and the agents' kills that of their own processes.
"""

import asyncio
import contextlib
import os
import signal

from simulations.live.links import LINKS, ProxyProcesses, compute_conditions, list_change_times, plan_lanes
from simulations.processes import ProcessHarness
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import EventKind, Scenario, ScenarioEvent

_PROCESSES = (EventKind.KILL_BROKER, EventKind.KILL_HUB, EventKind.KILL_REGION)
KINDS = (*LINKS, *_PROCESSES, EventKind.KILL_AGENTS, EventKind.WEATHER, EventKind.SURGE, EventKind.STORM)


def check_live_events(scenario: Scenario) -> None:
    """Check that a scenario can be run live.

    ScenarioError, one line, for what cannot be done to real processes on one machine.
    """
    if len(scenario.regions) != 1 or scenario.regions[0].hubs != 1 or scenario.regions[0].members != 1:
        raise ScenarioError(
            "region: a live run has one region with one hub of one process; `skerry sim run` has as many as you like"
        )
    for event in scenario.events:
        if event.kind not in KINDS:
            known = ", ".join(sorted(KINDS))
            raise ScenarioError(f"event.kind: {event.kind} cannot be done to real processes; live runs know {known}")


class LiveEvents:
    """Acts out the scenario's events on hub, broker and proxies."""

    def __init__(self, scenario: Scenario, stage: ProcessHarness, proxies: ProxyProcesses) -> None:
        self._scenario = scenario
        self._stage = stage
        self._proxies = proxies
        self._plan = plan_lanes(scenario)
        self._hub_restart = asyncio.Lock()

    async def run(self, began: float) -> None:
        """Run until the last event is over. `began`: monotonic seconds."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._change_conditions(began), name="weather")
            for event in self._scenario.events:
                if event.kind in _PROCESSES:
                    group.create_task(self._run_event(event, began), name=f"event-{event.kind}")

    async def _change_conditions(self, began: float) -> None:
        for at_s in list_change_times(self._scenario):
            await _sleep_until(began + at_s)
            await self._proxies.set_conditions(compute_conditions(self._scenario, self._plan, at_s))

    async def _run_event(self, event: ScenarioEvent, began: float) -> None:
        await _sleep_until(began + event.at_s)
        if event.kind is EventKind.KILL_BROKER:
            self._kill_broker()  # its hub starts another; until the end the proxies let nobody through
        else:
            await self._kill_hub(began + event.ends_s)

    def _kill_broker(self) -> None:
        pid = self._stage.broker_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _kill_hub(self, back_at: float) -> None:
        """Kill the hub, its broker with it; restart it at `back_at`, or later on a machine too busy to be in time.

        A kill that comes due while the hub still starts waits until it serves: each of N kills hits a serving hub.
        """
        async with self._hub_restart:
            if self._stage.hub is not None and self._stage.hub.child.running:
                await self._stage.hub.child.kill()
                await _sleep_until(back_at)
                await self._stage.launch_hub()


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))
