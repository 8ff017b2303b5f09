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

from simulations.live.proxy import Command, Conditions
from simulations.processes import free_port
from simulations.scenario.arrivals import struck
from simulations.scenario.types import Event, EventKind, Scenario
from wire.process.exit_codes import Exit, ExitError

LINKS = (EventKind.PARTITION, EventKind.RESETS, EventKind.HALF_OPEN, EventKind.SLICES)
BROKERS = (EventKind.KILL_BROKER, EventKind.KILL_REGION)
_A_PROXY = 4000  # devices that one proxy process carries
_START_S = 20.0
_MINUTE_S = 60.0


class Plan(NamedTuple):
    """Assignment of devices to lanes.

    `lanes`: of each lane, which of the scenario's link events affect it; `lane_of`: of each device, its lane.
    """

    events: tuple[Event, ...]
    lanes: tuple[tuple[bool, ...], ...]
    lane_of: tuple[int, ...]


def plan(scenario: Scenario) -> Plan:
    """Sort the devices of a live run's one region into lanes."""
    devices = range(scenario.devices)
    events = tuple(event for event in scenario.events if event.kind in LINKS)
    hit = [set(struck(event, devices)) for event in events]
    of_device = [tuple(number in each for each in hit) for number in devices]
    lanes = tuple(dict.fromkeys(of_device))
    number_of = {lane: number for number, lane in enumerate(lanes)}
    return Plan(events, lanes, tuple(number_of[each] for each in of_device))


def conditions(scenario: Scenario, plan: Plan, at_s: float) -> tuple[Conditions, ...]:
    """Conditions of each lane, `at_s` seconds into the run."""
    usual = _weather(scenario, at_s)
    if any(event.kind in BROKERS and _on(event, at_s) for event in scenario.events):
        usual = msgspec.structs.replace(usual, refuse=True)
    return tuple(_struck(usual, _now(plan, lane, at_s)) for lane in plan.lanes)


def moments(scenario: Scenario) -> list[float]:
    """Times (s) when anything about links changes, in order."""
    kinds = (*LINKS, *BROKERS, EventKind.WEATHER)
    found = [(event.at_s, event.ends_s) for event in scenario.events if event.kind in kinds]
    return sorted({0.0, scenario.duration_s, *(moment for pair in found for moment in pair)})


def _weather(scenario: Scenario, at_s: float) -> Conditions:
    """Usual conditions at a time: the newest event's, else the region's; no loss after the last sample."""
    climate = scenario.regions[0].link.climate
    for event in scenario.events:
        if event.kind is EventKind.WEATHER and event.climate is not None and _on(event, at_s):
            climate = event.climate
    return Conditions(climate.latency_s, climate.loss if at_s < scenario.duration_s else 0.0)


def _now(plan: Plan, lane: tuple[bool, ...], at_s: float) -> list[Event]:
    return [event for event, hit in zip(plan.events, lane, strict=True) if hit and _on(event, at_s)]


def _on(event: Event, at_s: float) -> bool:
    return event.at_s <= at_s < event.ends_s


def _struck(found: Conditions, events: Iterable[Event]) -> Conditions:
    for event in events:
        found = msgspec.structs.replace(found, **_harm(event))
    return found


def _harm(event: Event) -> dict[str, bool | float | int]:
    match event.kind:
        case EventKind.PARTITION:
            return {"up": False, "down": False}
        case EventKind.HALF_OPEN:
            return {"down": False} if event.amount == 2 else {"up": False}
        case EventKind.RESETS:
            return {"resets_per_s": event.amount / _MINUTE_S}
        case _:
            return {"slice_bytes": max(1, int(event.amount))}


class Proxies:
    """Proxy processes of a run, each with every lane. `port_of(number)`: where that device finds its broker."""

    def __init__(self, plan: Plan, target: int) -> None:
        self._plan = plan
        self._target = target
        count = -(-len(plan.lane_of) // _A_PROXY)
        self._ports = [[free_port() for _ in plan.lanes] for _ in range(count)]
        self._children: list[asyncio.subprocess.Process] = []

    def port(self, number: int) -> int:
        """Port of the lane of this device."""
        return self._ports[number // _A_PROXY][self._plan.lane_of[number]]

    @property
    def pids(self) -> list[int]:
        """Process ids."""
        return [child.pid for child in self._children]

    async def start(self) -> None:
        """Start the processes. ExitError(INTERNAL) if one does not come up."""
        for ports in self._ports:
            words = ("-m", "simulations.live.proxy", str(self._target), *map(str, ports))
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self._children.append(child)
            async with asyncio.timeout(_START_S):
                await _line(child)

    async def use(self, lanes: tuple[Conditions, ...]) -> None:
        """Put these conditions into force, one for each lane."""
        for child in self._children:
            await _ask(child, Command(lanes))

    async def facts(self) -> dict[str, int]:
        """Counters summed over all processes."""
        told = [await _ask(child, Command(tell=True)) for child in self._children]
        return {name: sum(each[name] for each in told) for name in (told[0] if told else {})}

    async def stop(self) -> None:
        """Stop the processes by closing their standard input."""
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
            await child.wait()
        self._children.clear()


async def _ask(child: asyncio.subprocess.Process, command: Command) -> dict[str, int]:
    if child.stdin is not None:
        child.stdin.write(msgspec.json.encode(command) + b"\n")
        await child.stdin.drain()
    return await _line(child)


async def _line(child: asyncio.subprocess.Process) -> dict[str, int]:
    line = await child.stdout.readline() if child.stdout is not None else b""
    if not line:
        raise ExitError(Exit.INTERNAL, "a proxy of the live run has ended")
    facts: dict[str, int] = json.loads(line)
    return facts
