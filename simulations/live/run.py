"""Live run: real agents, a real broker and a real hub act out a scenario in real time; the report is that of a run.

Rule: everything is the product's own but the proxy before the broker, and no agent syncs its commits. What the report
says was read from what they wrote; the history checker believes none of them.
"""

import asyncio
import contextlib
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cloud_hub.runtime.config import load
from edge_agent.app.agent import DATABASE_FILE
from models.bundle.bundle import open_bundle
from models.forge.pipeline.demo import cache_folder, cached_demo_bundle
from models.runtime.onnx_runner import OnnxRunner
from policies.language.document import parse
from simulations.live import events as live_events
from simulations.live.agents import AT_ONCE, Common, Crew
from simulations.live.enrollment import Fleet, FleetIdentity, device_folder, enrol_fleet
from simulations.live.limits import all_descriptors, many_objects, pass_over_closed, settled
from simulations.live.links import Proxies, conditions, plan
from simulations.live.load import Driver, Piles, piles
from simulations.live.monitor import Watch
from simulations.live.results import Reader, Where, series
from simulations.processes import HubHandle, Stage
from simulations.report.outcome import Mark, Outcome, Passed, Violation, Wall
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import Scenario
from wire.process.exit_codes import Exit, ExitError

SPARE_DESCRIPTORS = 500
DESCRIPTORS = 4  # of an agent: its socket, its database and that one's two side files
FLEET = "fleet"
_LOOK_S = 0.2

Progress = Callable[[Passed], bool]
Say = Callable[[str], None]


class Wish(msgspec.Struct, frozen=True):
    """Configuration of a live run.

    `folder`: keeps everything the run wrote (None: a temporary one, cleared away). `pulse_s`, `ask_s`: see
    `simulations.live.agents.Common`. `bundle`: the agents' model (None: the demo's digits).
    """

    folder: Path | None = None
    pulse_s: float = 1.0
    ask_s: float = 60.0
    bundle: Path | None = None


_PLAIN = Wish()


def live(
    scenario: Scenario, wish: Wish = _PLAIN, progress: Progress | None = None, say: Say = lambda _: None
) -> Outcome:
    """Run a scenario live and return its outcome; Ctrl-C ends it early.

    `progress` is called several times a second; False = stop. `say` gets a line for each step of the start.
    ScenarioError for what cannot be done live, ExitError if a process does not start.
    """
    live_events.check(scenario)
    most = (all_descriptors() - SPARE_DESCRIPTORS) // DESCRIPTORS
    if scenario.devices > most:
        raise ScenarioError(f"devices: {scenario.devices}, the open files of one process suffice for {most}")
    with _folder(wish) as folder, many_objects():
        return asyncio.run(_Run(scenario, wish, folder, progress, say).run())


class _Run:
    """One live run, from an empty folder to its outcome."""

    def __init__(self, scenario: Scenario, wish: Wish, folder: Path, progress: Progress | None, say: Say) -> None:
        self._scenario = scenario
        self._wish = wish
        self._folder = folder
        self._progress = progress
        self._say = say
        self._began = self._began_ms = 0.0
        self._stopped = False

    async def run(self) -> Outcome:
        """Enrol, start, act the scenario out, stop and read the result."""
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        pass_over_closed(loop)
        loop.set_default_executor(ThreadPoolExecutor(AT_ONCE, "connect"))  # a handshake blocks its thread
        bundle = open_bundle(self._wish.bundle) if self._wish.bundle else cached_demo_bundle(cache_folder())
        runner, policy = OnnxRunner(bundle), parse(self._scenario.policy_text).compile()
        found = _piles(runner, policy.base.threshold)
        async with Stage(self._folder) as stage, contextlib.AsyncExitStack() as stack:
            hub = await stage.lay_hub(bundle.path, self._hub_tables(), policies=[self._policy_file()])
            proxies = Proxies(plan(self._scenario), hub.broker_port)
            stack.push_async_callback(proxies.stop)
            identities = await asyncio.to_thread(self._enrol, hub, proxies)
            await stage.wake_hub()
            await proxies.start()
            await proxies.use(conditions(self._scenario, plan(self._scenario), -1.0))
            climate = self._scenario.regions[0].link.climate
            common = Common(
                runner=runner,
                policy=policy,
                climate=climate,
                seed=self._scenario.seed,
                pulse_s=self._wish.pulse_s,
                ask_s=self._wish.ask_s,
            )
            crew = Crew(identities, common)
            stack.push_async_callback(crew.rest)
            self._say(f"{len(crew)} agents connect")
            await crew.wake_all()
            settled()
            driver = Driver(self._scenario, found, crew)
            watch = Watch(self._scenario, stage, crew, proxies)
            until_s = await self._act(live_events.Events(self._scenario, stage, crew, proxies), driver, watch)
            facts = await watch.facts()
        return self._outcome(driver, watch, facts, until_s, time.monotonic() - began)

    def _enrol(self, hub: HubHandle, proxies: Proxies) -> list[FleetIdentity]:
        fleet = Fleet(self._folder / FLEET, load(hub.child.config), hub.url, proxies.port)
        self._say(f"{self._scenario.devices} devices enrol")
        return list(enrol_fleet(fleet, self._scenario.devices))

    def _hub_tables(self) -> dict[str, dict[str, Any]]:
        region = self._scenario.regions[0]
        told = msgspec.to_builtins(region.limits)
        named = {"name": region.hub_names[0], "region": region.name, "max_batch": region.max_batch}
        return {"hub": {**told, **named}, "broker": {"devices": max(1, self._scenario.devices)}}

    def _policy_file(self) -> Path:
        path = self._folder / "policy.toml"
        path.write_text(self._scenario.policy_text, encoding="utf-8")
        return path

    async def _act(self, events: live_events.Events, driver: Driver, watch: Watch) -> float:
        """Run events, load and monitor from now on; returns the seconds that passed."""
        self._say("the run begins")
        self._began, self._began_ms = time.monotonic(), time.time() * 1000
        acting = [
            asyncio.create_task(work, name=title)
            for title, work in (("events", events.run(self._began)), ("load", driver.run(self._began)))
        ]
        watching = asyncio.create_task(watch.run(self._began), name="watch")
        try:
            await self._until_quiet(acting, driver, watch)
        finally:
            for task in (*acting, watching):
                task.cancel()
            ended = await asyncio.gather(*acting, watching, return_exceptions=True)
        broken = [each for each in ended if isinstance(each, Exception)]
        if broken:
            raise broken[0]
        return time.monotonic() - self._began

    async def _until_quiet(self, acting: list["asyncio.Task[None]"], driver: Driver, watch: Watch) -> None:
        """Wait until load and events are over and nothing is open, `heal_s` have passed, or a stop is requested."""
        loop = asyncio.get_running_loop()
        if self._progress is None and threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGINT, self._stop)
        while not self._stopped:
            await asyncio.sleep(_LOOK_S)
            at_s = time.monotonic() - self._began
            if self._progress is not None and not self._progress(Passed(at_s, driver.samples, 0)):
                self._stop()
            done = all(task.done() for task in acting)
            if any(task.done() and task.exception() for task in acting) or at_s > self._scenario.ends_s:
                return
            if done and not watch.open_questions:
                return
        for task in acting:
            task.cancel()
        while watch.open_questions and time.monotonic() - self._began < self._scenario.ends_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _stop(self) -> None:
        self._stopped = True

    def _outcome(self, driver: Driver, watch: Watch, facts: dict[str, int], until_s: float, wall_s: float) -> Outcome:
        scenario = _seen(self._scenario, until_s)
        where = Where(
            tuple(device_folder(self._folder / FLEET, number) / DATABASE_FILE for number in range(scenario.devices)),
            self._folder / "hub" / "state" / "hub.db",
            int(self._began_ms),
        )
        records = Reader(where, scenario, driver.truth).read(until_s)
        counts = facts | records.hub_times | {f"load.{name}": count for name, count in driver.counts.items()}
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
            samples=driver.samples,
            events=records.history.events,
            arrivals=series(driver.arrivals, scenario),
            answers=records.answers,
            right=records.right,
            latency=records.latency,
            queues={scenario.regions[0].hub_names[0]: series(watch.queued, scenario)},
            bytes_by_rule=records.bytes_by_rule,
            states={state: series(found, scenario) for state, found in watch.states.items()},
            counts={**counts, "load.late_ms": round(driver.late_s * 1000)},
            history=records.history,
            marks=tuple(Mark(e.at_s, e.lasts_s, str(e.kind), str(e.kind)) for e in scenario.events),
            violations=_violations(records.history.stories, scenario.name),
            wall=Wall(wall_s, 1, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
        )


def _seen(scenario: Scenario, until_s: float) -> Scenario:
    """The part of the scenario that was acted out: a run ends when nothing is open, or when somebody stops it."""
    heal_s = max(0.0, until_s - max(scenario.duration_s, scenario.last_fault_ended_s))
    return replace(scenario, duration_s=min(scenario.duration_s, until_s), heal_s=heal_s)


def _violations(stories: tuple[str, ...], name: str) -> tuple[Violation, ...]:
    return tuple(Violation("history", story, f"skerry sim live {name}") for story in stories)


def _piles(runner: OnnxRunner, threshold: float) -> Piles:
    try:
        return piles(runner, threshold)
    except ValueError as error:
        raise ScenarioError(f"policy: {error}") from None


@contextlib.contextmanager
def _folder(wish: Wish) -> Iterator[Path]:
    if wish.folder is not None:
        if wish.folder.exists() and any(wish.folder.iterdir()):
            raise ExitError(Exit.USAGE, f"{wish.folder} is not empty: a run writes into a folder of its own")
        wish.folder.mkdir(parents=True, exist_ok=True)
        yield wish.folder
        return
    with tempfile.TemporaryDirectory(prefix="skerry-live-", ignore_cleanup_errors=True) as name:
        yield Path(name)
