"""Agents of a live run: the product's own, thousands in one event loop, each with certificate, keys and connection.

Rule: core, executor, sealing, statements of the database, connection and TLS are those of a device. What a process has
once for all its agents: the model's session, which keeps no state, the writer of their databases and the timer of their
watchdogs.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from edge_agent.app.agent import Agent
from edge_agent.identity.identity import Identity
from edge_agent.question.questions import HOME
from edge_agent.system.clock import HubClock, read_boot_clock, read_wall_ms
from edge_agent.system.energy import EnergySettings
from edge_agent.system.environment import DeviceAttributes
from edge_agent.system.settings import AgentSettings, OutboxLimits
from edge_agent.uplink.connection import make_connector
from models.runtime.runner import Runner
from policies.model.policy import Policy
from simulations.live.fleet.database import InlineWriter, LiveDatabase
from simulations.live.fleet.enrollment import FleetIdentity
from simulations.live.fleet.watchdogs import WatchdogWheel
from simulations.scenario.conditions import IDEAL_CONDITIONS, EnvironmentConditions

AT_ONCE = 24  # agents that connect side by side at the start
UP_TIMEOUT_S = 120.0
_NEVER = 10**15  # rows: half a history proves nothing, so nothing is pruned


class FleetSettings(msgspec.Struct, frozen=True):
    """Settings that all agents of a run share.

    `pulse_s`: how often each runs its watchdog (a device: 1 s); `ask_s`: how often it asks a hub what it is owed.
    """

    runner: Runner
    policy: Policy
    climate: EnvironmentConditions = IDEAL_CONDITIONS
    seed: int = 1
    pulse_s: float = 1.0
    ask_s: float = OutboxLimits().ask_interval_s


class SharedParts(NamedTuple):
    """What all agents of a process share. `online`: numbers of those whose connection is up."""

    writer: InlineWriter
    watchdogs: WatchdogWheel
    online: set[int]


class _FixedCredentials:
    """Credentials that nothing renews: a run is shorter than their lifetime."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def on_link_refused(self, error: str) -> None:
        """The broker says no; the link tries again and counts it."""


class LiveAgent(Agent):
    """One agent of a live run. `number`: in the whole fleet."""

    def __init__(self, number: int, identity: FleetIdentity, common: FleetSettings, shared: SharedParts) -> None:
        self.number = number
        self._database = partial(LiveDatabase, writer=shared.writer)
        self._shared = shared
        settings = make_agent_settings(identity.folder or Path(), common)
        connect = make_connector(_FixedCredentials(identity), settings)
        clock = make_device_clock(identity.hub_time_ms, common.climate, Random(f"{common.seed} {number}"))  # noqa: S311
        super().__init__(settings, identity, common.runner, common.policy, connect, clock=clock)

    async def _supervise(self, check: Callable[[], None]) -> None:
        check()
        with self._shared.watchdogs.attach(self.number, check):
            await self._stopping.wait()

    def on_up(self, line: str = HOME) -> None:
        """Its connection to the hub's broker is up."""
        self._shared.online.add(self.number)
        super().on_up(line)

    def on_down(self, line: str = HOME) -> None:
        """Its connection is lost, or was closed."""
        self._shared.online.discard(self.number)
        super().on_down(line)

    @property
    def open_questions(self) -> int:
        """Number of questions without an outcome."""
        return len(self._core.open_questions)

    def mark_dead(self) -> None:
        """Stop timers and writes at once, as a killed process does."""
        self._executor.cancel_alarm()
        if isinstance(self._db, LiveDatabase):
            self._db.mark_dead()

    async def release_files(self) -> None:
        """Close the files of a killed agent, as the operating system does."""
        await self._db.close()


class LiveFleet:
    """Agents of one process by number, None for one that is down, and the task that each runs in."""

    def __init__(self, identities: Mapping[int, FleetIdentity], common: FleetSettings) -> None:
        self._identities = identities
        self._common = common
        self._shared = SharedParts(InlineWriter(), WatchdogWheel(common.pulse_s), set())
        self.agents: dict[int, LiveAgent | None] = {}
        self.connected = 0  # by `start_all`, so far
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._identities)

    @property
    def running(self) -> int:
        """Number of agents that are running."""
        return len(self._tasks)

    @property
    def online(self) -> int:
        """Number of agents whose connection is up."""
        return len(self._shared.online)

    @property
    def living(self) -> Iterator[LiveAgent]:
        """The agents that are running."""
        return (agent for agent in self.agents.values() if agent is not None)

    async def start_agent(self, number: int) -> LiveAgent:
        """Start an agent: for the first time, or over what its database holds of a life before."""
        agent = LiveAgent(number, self._identities[number], self._common, self._shared)
        await agent.open()
        self.agents[number] = agent
        self._tasks[number] = asyncio.create_task(agent.run(), name=f"agent-{number}")
        return agent

    async def kill_agent(self, number: int) -> None:
        """Kill an agent: what its writer has not taken yet may be lost; its socket is closed under it."""
        task, agent = self._tasks.pop(number, None), self.agents[number]
        self.agents[number] = None
        if task is not None and agent is not None:
            agent.mark_dead()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await agent.release_files()

    async def start_all(self) -> None:
        """Start every agent, `AT_ONCE` at a time, each until its link is up. TimeoutError if one cannot connect."""
        waiting = iter(self._identities)

        async def usher() -> None:
            for number in waiting:
                agent = await self.start_agent(number)
                async with asyncio.timeout(UP_TIMEOUT_S):
                    while agent.number not in self._shared.online:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                self.connected += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(self))):
                group.create_task(usher())

    async def stop_all(self) -> None:
        """Stop all agents at once, cleanly."""
        for agent in self.living:
            agent.stop()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def make_device_clock(floor_ms: int, climate: EnvironmentConditions, rng: Random) -> HubClock:
    """Make a device's clocks: monotonic, a little off in rate and far off in origin, and a wrong wall clock."""
    skew_s, rate = rng.uniform(0.0, climate.skew_s), 1.0 + rng.uniform(-climate.drift, climate.drift)
    wrong_ms = int(rng.uniform(-1.0, 1.0) * climate.wall_error_s * 1000)
    begun_s = read_boot_clock()
    return HubClock(
        floor_ms, lambda: skew_s + begun_s + rate * (read_boot_clock() - begun_s), lambda: read_wall_ms() + wrong_ms
    )


def make_agent_settings(folder: Path, common: FleetSettings) -> AgentSettings:
    """Make an agent's settings: longer intervals where thousands share a core, no pruning where records count."""
    return AgentSettings(
        state_dir=folder,
        attributes=DeviceAttributes(power_supply=""),  # on mains: this machine's battery is not theirs
        energy=EnergySettings(meters=()),  # nor are its meters, which thousands would read every few seconds
        connect_timeout_s=60.0,
        outbox=OutboxLimits(ask_interval_s=common.ask_s),
        watchdog_s=common.pulse_s,
        upkeep_s=60.0 * max(1.0, common.pulse_s),
        recent_records=64,
        frames_cache_bytes=256 * 1024,
        answers_max_rows=_NEVER,
        outcomes_max_rows=_NEVER,
        ledger_max_rows=_NEVER,
    )
