"""Program of one process of agents: enrols its devices, connects them, gives them their samples and kills them on time.

Rule: it takes commands from its parent alone, JSON lines on its standard input, answers with its states, and ends when
that closes. `python -m simulations.live.fleet.host SETTINGS_FILE`.
"""

import asyncio
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from cloud_hub.runtime.config import load_hub_config
from models.bundle.bundle import open_bundle
from models.runtime.onnx_runner import OnnxRunner
from policies.language.document import parse_policy
from simulations.live.fleet.agents import AT_ONCE, FleetSettings, LiveFleet
from simulations.live.fleet.enrollment import FleetConfig, FleetIdentity, enrol_fleet
from simulations.live.fleet.load import LoadDriver, SamplePools
from simulations.live.fleet.messages import HostCommand, HostRecords, HostSettings, HostState, HostStep
from simulations.live.limits import freeze_objects, ignore_closed_sockets, raise_descriptor_limit, relax_collector
from simulations.scenario.arrivals import select_devices
from simulations.scenario.types import EventKind, Scenario, ScenarioEvent

STATE_EVERY_S = 1.0


class AgentHost:
    """The agents of this process, their load and their kills."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._scenario = settings.scenario
        runner = OnnxRunner(open_bundle(Path(settings.bundle)))
        policy = parse_policy(self._scenario.policy_text).compile()
        common = FleetSettings(
            runner=runner,
            policy=policy,
            climate=self._scenario.regions[0].link.climate,
            seed=self._scenario.seed,
            pulse_s=settings.pulse_s,
            ask_s=settings.ask_s,
        )
        self._identities: dict[int, FleetIdentity] = {}
        self._fleet = LiveFleet(self._identities, common)
        pools = SamplePools.read(Path(settings.samples))
        self._driver = LoadDriver(self._scenario, pools, self._fleet, settings.index)
        self._acting: list[asyncio.Task[None]] = []
        self._finished = False

    def enrol_devices(self) -> None:
        """Enrol the devices of this process. ExitError(ENROLMENT) if one is refused."""
        told = self._settings
        hub = load_hub_config(Path(told.hub_config))
        config = FleetConfig(Path(told.folder), hub, told.url, told.ports.__getitem__)
        for number, identity in zip(told.numbers, enrol_fleet(config, told.numbers), strict=True):
            self._identities[number] = identity

    async def obey(self, command: HostCommand, group: asyncio.TaskGroup) -> None:
        """Obey a command. TimeoutError if an agent cannot connect."""
        if command.step is HostStep.CONNECT:
            await self._fleet.start_all()
            freeze_objects()
        elif command.step is HostStep.ACT:
            works = (self._driver.run(command.began_s), run_kills(self._scenario, self._fleet, command.began_s))
            self._acting = [group.create_task(work) for work in works]
        else:
            for task in self._acting:
                task.cancel()
        if command.step is HostStep.FINISH:
            await self._fleet.stop_all()
            self._settings.records_file.write_bytes(msgspec.json.encode(self._make_records()))
            self._finished = True

    def state(self) -> HostState:
        """What is said of this process now."""
        over = bool(self._acting) and all(task.done() for task in self._acting)
        fleet = self._fleet
        return HostState(
            enrolled=len(self._identities),
            connected=fleet.connected,
            online=fleet.online,
            offline=fleet.running - fleet.online,
            down=len(self._identities) - fleet.running,
            open=sum(agent.open_questions for agent in fleet.living) if over else 0,
            samples=self._driver.samples,
            late_s=self._driver.late_s,
            over=over,
            finished=self._finished,
        )

    def _make_records(self) -> HostRecords:
        counts: Counter[str] = Counter()
        for agent in self._fleet.living:
            counts.update(agent.counts)
        driver = self._driver
        return HostRecords(counts, driver.counts, driver.arrivals, driver.truth)


async def run_kills(scenario: Scenario, fleet: LiveFleet, began_s: float) -> None:
    """Kill the agents of this process that the scenario says, and start them again. `began_s`: monotonic seconds."""
    async with asyncio.TaskGroup() as group:
        for event in scenario.events:
            if event.kind is EventKind.KILL_AGENTS:
                group.create_task(_run_kill(event, scenario, fleet, began_s))


async def _run_kill(event: ScenarioEvent, scenario: Scenario, fleet: LiveFleet, began_s: float) -> None:
    await _sleep_until(began_s + event.at_s)
    numbers = [n for n in select_devices(event, range(scenario.devices)) if fleet.agents.get(n) is not None]
    for number in numbers:
        await fleet.kill_agent(number)
    await _sleep_until(began_s + event.ends_s)
    for number in numbers:
        await fleet.start_agent(number)


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


async def serve_agents(settings: HostSettings) -> None:
    """Obey the parent until it says `finish` or closes standard input."""
    loop = asyncio.get_running_loop()
    ignore_closed_sockets(loop)
    loop.set_default_executor(ThreadPoolExecutor(AT_ONCE, "connect"))  # a handshake blocks its thread
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    host = AgentHost(settings)
    async with asyncio.TaskGroup() as group:  # whatever fails ends the process
        telling = group.create_task(_tell_states(host))
        await asyncio.to_thread(host.enrol_devices)
        _tell(host.state())
        while line := await commands.readline():
            command = msgspec.json.decode(line, type=HostCommand)
            await host.obey(command, group)
            _tell(host.state())
            if command.step is HostStep.FINISH:
                break
        else:
            raise EOFError("the run is gone")
        telling.cancel()


async def _tell_states(host: AgentHost) -> None:
    while True:
        _tell(host.state())
        await asyncio.sleep(STATE_EVERY_S)


def _tell(state: HostState) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(state) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    raise_descriptor_limit()
    with relax_collector():
        asyncio.run(serve_agents(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=HostSettings)))
