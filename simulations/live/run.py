"""Live run: real agents, a real broker and a real hub act out a scenario in real time; the report is that of a run.

Rule: everything is the product's own but the proxy before the broker, and no agent syncs its commits. What the report
says was read from what they wrote; the history checker believes none of them.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cloud_hub.runtime.config import load_hub_config
from edge_agent.app.agent import DATABASE_FILE
from models.bundle.bundle import Bundle, open_bundle
from models.forge.pipeline.demo import load_demo_bundle, locate_cache_folder
from models.runtime.onnx_runner import OnnxRunner
from policies.language.document import parse_policy
from simulations.live import events as live_events
from simulations.live.fleet.enrollment import find_device_folder, prepare_hub
from simulations.live.fleet.messages import HostSettings
from simulations.live.hosts import AgentProcesses, check_descriptors, choose_processes, list_settings
from simulations.live.limits import raise_descriptor_limit
from simulations.live.links import ProxyProcesses, compute_conditions, has_link_conditions, plan_lanes
from simulations.live.monitor import RunMonitor
from simulations.live.results import RecordReader, RunFiles, build_series
from simulations.live.samples import load_sample_pools
from simulations.processes import HubHandle, ProcessHarness
from simulations.report.outcome import Outcome, RunCost, RunProgress, TimelineMark, Violation
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import Scenario
from wire.process.exit_codes import ExitCode, ExitError

FLEET = "fleet"
_SAMPLES = "samples.npz"
_LOOK_S = 0.2

Progress = Callable[[RunProgress], bool]
Say = Callable[[str], None]


class LiveRunConfig(msgspec.Struct, frozen=True):
    """Configuration of a live run.

    `folder`: keeps everything the run wrote (None: a temporary one, cleared away). `pulse_s`, `ask_s`: see
    `simulations.live.fleet.agents.FleetSettings`. `bundle`: the agents' model (None: the demo's digits). `processes`:
    that share the agents (None: one for every 500, but no more than there are cores).
    """

    folder: Path | None = None
    pulse_s: float = 1.0
    ask_s: float = 60.0
    bundle: Path | None = None
    processes: int | None = None


_PLAIN = LiveRunConfig()


def run_live_scenario(
    scenario: Scenario, wish: LiveRunConfig = _PLAIN, progress: Progress | None = None, say: Say = lambda _: None
) -> Outcome:
    """Run a scenario live and return its outcome; Ctrl-C ends it early.

    `progress` is called several times a second; False = stop. `say` gets a line for each step of the start.
    ScenarioError for what cannot be done live, ExitError if a process does not start.
    """
    live_events.check_live_events(scenario)
    processes = choose_processes(scenario.devices, wish.processes, os.cpu_count() or 1)
    check_descriptors(scenario.devices, processes, raise_descriptor_limit())
    wish = replace(wish, processes=processes)
    with _open_folder(wish) as folder:
        return asyncio.run(_LiveRun(scenario, wish, folder, progress, say).run())


class _LiveRun:
    """One live run, from an empty folder to its outcome."""

    def __init__(
        self, scenario: Scenario, wish: LiveRunConfig, folder: Path, progress: Progress | None, say: Say
    ) -> None:
        self._scenario = scenario
        self._wish = wish
        self._processes = wish.processes or 1
        self._folder = folder
        self._progress = progress
        self._say = say
        self._began = self._began_ms = 0.0
        self._stopped = False

    async def run(self) -> Outcome:
        """Enrol, start, act the scenario out, stop and read the result."""
        began = time.monotonic()
        bundle = open_bundle(self._wish.bundle) if self._wish.bundle else load_demo_bundle(locate_cache_folder())
        await asyncio.to_thread(_save_samples, bundle, self._scenario.policy_text, self._folder / _SAMPLES)
        plan = plan_lanes(self._scenario)
        async with ProcessHarness(self._folder) as stage, contextlib.AsyncExitStack() as stack:
            hub = await stage.configure_hub(bundle.path, self._hub_tables(), policies=[self._policy_file()])
            proxies = ProxyProcesses(plan, hub.broker_port, needed=has_link_conditions(self._scenario))
            stack.push_async_callback(proxies.stop)
            crew = AgentProcesses(list_settings(self._make_settings(hub, proxies, bundle.path)), self._say)
            stack.push_async_callback(crew.stop)
            await self._enrol(hub, crew)
            await stage.launch_hub()
            await proxies.start()
            await proxies.set_conditions(compute_conditions(self._scenario, plan, -1.0))
            self._say(f"{self._scenario.devices} agents connect")
            await crew.connect(self._scenario.devices)
            watch = RunMonitor(self._scenario, stage, crew, proxies)
            until_s = await self._run_tasks(live_events.LiveEvents(self._scenario, stage, proxies), crew, watch)
            facts = await watch.collect_counts()
            await crew.finish()
        return self._build_outcome(crew, watch, facts, until_s, time.monotonic() - began)

    def _make_settings(self, hub: HubHandle, proxies: ProxyProcesses, bundle: Path) -> HostSettings:
        return HostSettings(
            scenario=self._scenario,
            index=0,
            processes=self._processes,
            hub_config=str(hub.child.config),
            url=hub.url,
            ports=tuple(map(proxies.port_of, range(self._scenario.devices))),
            folder=str(self._folder / FLEET),
            bundle=str(bundle),
            samples=str(self._folder / _SAMPLES),
            pulse_s=self._wish.pulse_s,
            ask_s=self._wish.ask_s,
        )

    async def _enrol(self, hub: HubHandle, crew: AgentProcesses) -> None:
        where = f"in {self._processes} process{'es' if self._processes > 1 else ''}"
        self._say(f"{self._scenario.devices} devices enrol {where} of up to {raise_descriptor_limit()} open files")
        await asyncio.to_thread(prepare_hub, load_hub_config(hub.child.config))
        await crew.enrol(self._scenario.devices)

    def _hub_tables(self) -> dict[str, dict[str, Any]]:
        region = self._scenario.regions[0]
        told = msgspec.to_builtins(region.limits)
        named = {"name": region.hub_names[0], "region": region.name, "max_batch": region.max_batch}
        return {"hub": {**told, **named}, "broker": {"devices": max(1, self._scenario.devices)}}

    def _policy_file(self) -> Path:
        path = self._folder / "policy.toml"
        path.write_text(self._scenario.policy_text, encoding="utf-8")
        return path

    async def _run_tasks(self, events: live_events.LiveEvents, crew: AgentProcesses, watch: RunMonitor) -> float:
        """Run events, load and monitor from now on; returns the seconds that passed."""
        self._say("the run begins")
        self._began, self._began_ms = time.monotonic(), time.time() * 1000
        crew.begin(self._began)
        acting = asyncio.create_task(events.run(self._began), name="events")
        watching = asyncio.create_task(watch.run(self._began), name="watch")
        try:
            await self._until_quiet(acting, crew)
        finally:
            for task in (acting, watching):
                task.cancel()
            ended = await asyncio.gather(acting, watching, return_exceptions=True)
        broken = [each for each in ended if isinstance(each, Exception)]
        if broken:
            raise broken[0]
        return time.monotonic() - self._began

    async def _until_quiet(self, acting: "asyncio.Task[None]", crew: AgentProcesses) -> None:
        """Wait until load and events are over and nothing is open, `heal_s` have passed, or a stop is requested."""
        loop = asyncio.get_running_loop()
        if self._progress is None and threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGINT, self._request_stop)
        while not self._stopped:
            await asyncio.sleep(_LOOK_S)
            at_s = time.monotonic() - self._began
            if self._progress is not None and not self._progress(RunProgress(at_s, crew.samples, 0)):
                self._request_stop()
            if (acting.done() and (acting.exception() or crew.is_quiet)) or at_s > self._scenario.ends_s:
                return
        acting.cancel()
        crew.halt()
        while not crew.is_quiet and time.monotonic() - self._began < self._scenario.ends_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _request_stop(self) -> None:
        self._stopped = True

    def _build_outcome(
        self, crew: AgentProcesses, watch: RunMonitor, facts: dict[str, int], until_s: float, wall_s: float
    ) -> Outcome:
        scenario = _cut_scenario(self._scenario, until_s)
        where = RunFiles(
            tuple(
                find_device_folder(self._folder / FLEET, number) / DATABASE_FILE for number in range(scenario.devices)
            ),
            self._folder / "hub" / "state" / "hub.db",
            int(self._began_ms),
        )
        records = RecordReader(where, scenario, crew.truth).read_records(until_s)
        counts = facts | records.hub_times | crew.counts
        return Outcome(
            scenario=scenario.name,
            digest=self._scenario.digest,
            question=scenario.question,
            seed=scenario.seed,
            devices=scenario.devices,
            duration_s=self._scenario.duration_s,
            step_s=scenario.step_s,
            until_s=until_s,
            complete=not self._stopped,
            samples=crew.samples,
            events=records.history.events,
            arrivals=build_series(crew.arrivals, scenario),
            answers=records.answers,
            right=records.right,
            latency=records.latency,
            queues={scenario.regions[0].hub_names[0]: build_series(watch.queued, scenario)},
            bytes_by_rule=records.bytes_by_rule,
            states={state: build_series(found, scenario) for state, found in watch.states.items()},
            counts={**counts, "load.late_ms": round(crew.late_s * 1000)},
            history=records.history,
            marks=tuple(TimelineMark(e.at_s, e.lasts_s, str(e.kind), str(e.kind)) for e in scenario.events),
            violations=_list_violations(records.history.stories, scenario.name),
            wall=RunCost(wall_s, len(crew.records), watch.peak_bytes),
        )


def _cut_scenario(scenario: Scenario, until_s: float) -> Scenario:
    """The part of the scenario that was acted out: a run ends when nothing is open, or when somebody stops it."""
    heal_s = max(0.0, until_s - max(scenario.duration_s, scenario.last_fault_ended_s))
    return replace(scenario, duration_s=min(scenario.duration_s, until_s), heal_s=heal_s)


def _list_violations(stories: tuple[str, ...], name: str) -> tuple[Violation, ...]:
    return tuple(Violation("history", story, f"skerry sim live {name}") for story in stories)


def _save_samples(bundle: Bundle, policy_text: str, file: Path) -> None:
    """Write the samples of the run. ScenarioError if the policy's threshold leaves none on one side."""
    try:
        load_sample_pools(OnnxRunner(bundle), parse_policy(policy_text).compile().base.threshold).save(file)
    except ValueError as error:
        raise ScenarioError(f"policy: {error}") from None


@contextlib.contextmanager
def _open_folder(wish: LiveRunConfig) -> Iterator[Path]:
    if wish.folder is not None:
        if wish.folder.exists() and any(wish.folder.iterdir()):
            raise ExitError(ExitCode.USAGE, f"{wish.folder} is not empty: a run writes into a folder of its own")
        wish.folder.mkdir(parents=True, exist_ok=True)
        yield wish.folder
        return
    with tempfile.TemporaryDirectory(prefix="skerry-live-", ignore_cleanup_errors=True) as name:
        yield Path(name)
