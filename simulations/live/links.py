"""Proxy lanes of a live run: which lane each device uses, and the conditions of each lane at a time.

Rule: devices that the same events affect share a lane; what a lane is like at a moment follows from the scenario alone.
A proxy process carries two sockets a device, so there are as many processes as descriptors ask for.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from simulations.live.proxy import LaneConditions, ProxyCommand
from simulations.processes import find_free_port
from simulations.scenario.arrivals import select_devices
from simulations.scenario.types import EventKind, Scenario, ScenarioEvent
from wire.process.exit_codes import ExitCode, ExitError

LINKS = (EventKind.PARTITION, EventKind.RESETS, EventKind.HALF_OPEN, EventKind.SLICES)
BROKERS = (EventKind.KILL_BROKER, EventKind.KILL_REGION)
_A_PROXY = 4000  # devices that one proxy process carries
_START_S = 20.0
_MINUTE_S = 60.0


class LanePlan(NamedTuple):
    """Assignment of devices to lanes.

    `lanes`: of each lane, which of the scenario's link events affect it; `lane_of`: of each device, its lane.
    """

    events: tuple[ScenarioEvent, ...]
    lanes: tuple[tuple[bool, ...], ...]
    lane_of: tuple[int, ...]


def plan_lanes(scenario: Scenario) -> LanePlan:
    """Sort the devices of a live run's one region into lanes."""
    devices = range(scenario.devices)
    events = tuple(event for event in scenario.events if event.kind in LINKS)
    hit = [set(select_devices(event, devices)) for event in events]
    of_device = [tuple(number in each for each in hit) for number in devices]
    lanes = tuple(dict.fromkeys(of_device))
    number_of = {lane: number for number, lane in enumerate(lanes)}
    return LanePlan(events, lanes, tuple(number_of[each] for each in of_device))


def compute_conditions(scenario: Scenario, plan: LanePlan, at_s: float) -> tuple[LaneConditions, ...]:
    """Conditions of each lane, `at_s` seconds into the run."""
    usual = _usual_conditions(scenario, at_s)
    if any(event.kind in BROKERS and _is_on(event, at_s) for event in scenario.events):
        usual = msgspec.structs.replace(usual, refuse=True)
    return tuple(_apply_events(usual, _current_events(plan, lane, at_s)) for lane in plan.lanes)


def list_change_times(scenario: Scenario) -> list[float]:
    """Times (s) when anything about links changes, in order."""
    kinds = (*LINKS, *BROKERS, EventKind.WEATHER)
    found = [(event.at_s, event.ends_s) for event in scenario.events if event.kind in kinds]
    return sorted({0.0, scenario.duration_s, *(moment for pair in found for moment in pair)})


def _usual_conditions(scenario: Scenario, at_s: float) -> LaneConditions:
    """Usual conditions at a time: the newest event's, else the region's; no loss after the last sample."""
    climate = scenario.regions[0].link.climate
    for event in scenario.events:
        if event.kind is EventKind.WEATHER and event.climate is not None and _is_on(event, at_s):
            climate = event.climate
    return LaneConditions(climate.latency_s, climate.loss if at_s < scenario.duration_s else 0.0)


def _current_events(plan: LanePlan, lane: tuple[bool, ...], at_s: float) -> list[ScenarioEvent]:
    return [event for event, hit in zip(plan.events, lane, strict=True) if hit and _is_on(event, at_s)]


def _is_on(event: ScenarioEvent, at_s: float) -> bool:
    return event.at_s <= at_s < event.ends_s


def _apply_events(found: LaneConditions, events: Iterable[ScenarioEvent]) -> LaneConditions:
    for event in events:
        found = msgspec.structs.replace(found, **_event_changes(event))
    return found


def _event_changes(event: ScenarioEvent) -> dict[str, bool | float | int]:
    match event.kind:
        case EventKind.PARTITION:
            return {"up": False, "down": False}
        case EventKind.HALF_OPEN:
            return {"down": False} if event.amount == 2 else {"up": False}
        case EventKind.RESETS:
            return {"resets_per_s": event.amount / _MINUTE_S}
        case _:
            return {"slice_bytes": max(1, int(event.amount))}


def has_link_conditions(scenario: Scenario) -> bool:
    """Whether anything ever happens on the links of a scenario; else its devices need no proxy."""
    plan = plan_lanes(scenario)
    moments = (compute_conditions(scenario, plan, at_s) for at_s in list_change_times(scenario))
    return any(lane != LaneConditions() for lanes in moments for lane in lanes)


class ProxyProcesses:
    """Proxy processes of a run, each with every lane. `port_of(number)`: where that device finds its broker.

    `needed` False: there are none, and devices go to the broker itself.
    """

    def __init__(self, plan: LanePlan, target: int, *, needed: bool = True) -> None:
        self._plan = plan
        self._target = target
        count = -(-len(plan.lane_of) // _A_PROXY) if needed else 0
        self._ports = [[find_free_port() for _ in plan.lanes] for _ in range(count)]
        self._children: list[asyncio.subprocess.Process] = []

    def port_of(self, number: int) -> int:
        """Port of the lane of this device."""
        return self._ports[number // _A_PROXY][self._plan.lane_of[number]] if self._ports else self._target

    @property
    def pids(self) -> list[int]:
        """Process ids."""
        return [child.pid for child in self._children]

    async def start(self) -> None:
        """Start the processes. ExitError(INTERNAL) if one does not come up."""
        for ports in self._ports:
            words = ("-P", "-m", "simulations.live.proxy", str(self._target), *map(str, ports))
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self._children.append(child)
            async with asyncio.timeout(_START_S):
                await _read_line(child)

    async def set_conditions(self, lanes: tuple[LaneConditions, ...]) -> None:
        """Put these conditions into force, one for each lane."""
        for child in self._children:
            await _send_command(child, ProxyCommand(lanes))

    async def read_counts(self) -> dict[str, int]:
        """Counters summed over all processes."""
        told = [await _send_command(child, ProxyCommand(tell=True)) for child in self._children]
        return {name: sum(each[name] for each in told) for name in (told[0] if told else {})}

    async def stop(self) -> None:
        """Stop the processes by closing their standard input."""
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
            await child.wait()
        self._children.clear()


async def _send_command(child: asyncio.subprocess.Process, command: ProxyCommand) -> dict[str, int]:
    if child.stdin is not None:
        child.stdin.write(msgspec.json.encode(command) + b"\n")
        await child.stdin.drain()
    return await _read_line(child)


async def _read_line(child: asyncio.subprocess.Process) -> dict[str, int]:
    line = await child.stdout.readline() if child.stdout is not None else b""
    if not line:
        raise ExitError(ExitCode.INTERNAL, "a proxy of the live run has ended")
    facts: dict[str, int] = json.loads(line)
    return facts
