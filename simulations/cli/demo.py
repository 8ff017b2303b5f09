"""Command `skerry demo`: a hub, its broker and a few agents as real processes on loopback, removed afterwards."""

import asyncio
import contextlib
import json
import shutil
import signal
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from models.bundle.bundle import Bundle
from models.forge.pipeline.demo import load_demo_bundle, locate_cache_folder
from policies.language.document import parse_policy
from simulations.demo import screen
from simulations.demo.acts import AGENTS, POLICY, DemoPlay, collect_figures
from simulations.demo.casts import SCENES, DemoDevice, DemoScene, write_low_battery, write_scene_policy
from simulations.demo.leakage import measure_bundle
from simulations.demo.policy_tour import PolicyTour
from simulations.processes import ProcessHarness
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import check_result_place, write_result
from wire.process.terminal import TYPER_SETTINGS

app = typer.Typer(**{**TYPER_SETTINGS, "no_args_is_help": False})
_CANCELLED = 130
_QUICK_LINK = {"link": {"reconnect_cap_s": 1.0}}  # a demo is short: the default waits up to a minute between tries


@app.callback(invoke_without_command=True)
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to this file as JSON.")
    ] = None,
    *,
    template: Annotated[
        str, typer.Option("--template", metavar="NAME", help=f"Run under a shipped policy: {', '.join(SCENES)}.")
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the hub's console in a browser, and leave everything running.")
    ] = False,
) -> None:
    """Train and bundle a model (cached), start hub, broker and five agents, act out the five acts, sum up.

    With a template: three devices under that policy, then what left, what stayed and by which rule.

    Example: skerry demo --template clinic --keep
    """
    began = time.monotonic()
    console = Console()
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ExitError(ExitCode.USAGE, f"{json_file.absolute().parent} is no folder: --json writes a file into one")
    if json_file is not None:
        check_result_place(json_file, _is_figures)
    if template and template not in SCENES:
        raise ExitError(ExitCode.USAGE, f"{template[:40]!r} is no template of the demo; there are {', '.join(SCENES)}")
    bundle = _load_bundle(console)
    with _temporary_folder() as folder:
        try:
            stay = _DemoRun(console, folder, began, keep=keep or open_browser, open_browser=open_browser)
            play = _run_tour(stay, bundle, SCENES[template]) if template else _run_play(stay, bundle)
            result = asyncio.run(_run_with_signals(play))
        except KeyboardInterrupt:
            console.print("stopped; nothing is left behind")
            raise typer.Exit(_CANCELLED) from None
    if json_file is not None:
        write_result(json_file, f"{json.dumps(result, indent=2)}\n".encode(), _is_figures)


def _is_figures(data: bytes) -> bool:
    """Whether a file holds the figures of an earlier run."""
    try:
        found = json.loads(data)
    except ValueError:
        return False
    return isinstance(found, dict) and {"agents", "seconds"} <= found.keys()


def _load_bundle(console: Console) -> Bundle:
    """Load the demo's bundle, trained now or found in the cache, with a progress bar."""
    with screen.make_progress(console) as bar:
        task = bar.add_task("model", total=1.0)
        bundle = load_demo_bundle(
            locate_cache_folder(), lambda stage, share: bar.update(task, description=stage, completed=share)
        )
        bar.update(task, completed=1.0)
    return bundle


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Temporary folder for everything the run writes; it is removed with the run."""
    folder = Path(tempfile.mkdtemp(prefix="skerry-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run_with_signals(play: Any) -> Any:
    """Run to the end; SIGTERM and SIGHUP end it like Ctrl-C, through every `finally`."""
    task = asyncio.ensure_future(play)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@dataclass(frozen=True)
class _DemoRun:
    """Context of a demo run. `began`: monotonic seconds; `keep`: leave all running until Ctrl-C.

    `open_browser`: show the hub's console in a browser.
    """

    console: Console
    folder: Path
    began: float
    keep: bool
    open_browser: bool

    async def show_console(self, stage: ProcessHarness) -> None:
        """Print the address of the hub's console with a one-time code, and open it if that was asked for."""
        made = await stage.call_admin("POST", "/v1/session/code", {})
        address = f"{stage.hub.url if stage.hub else ''}{made['path']}"
        self.console.print(f"  console  {address}  (signs you in once, within a minute)", soft_wrap=True)
        if self.open_browser and not await asyncio.to_thread(webbrowser.open, address):
            self.console.print("  no browser is known here: open the address above yourself")

    async def wait_if_kept(self, stage: ProcessHarness) -> None:
        """Print the addresses and wait for Ctrl-C, if everything is to be kept running."""
        if self.keep:
            _print_addresses(self.console, stage)
            await asyncio.Event().wait()


@dataclass(frozen=True)
class _FleetSetup:
    """Configuration of a demo's processes: one policy for all, tables for the hub, and tables for each agent."""

    policy: Path
    hub: dict[str, Any]
    agents: dict[str, dict[str, dict[str, Any]]]


async def _run_play(stay: _DemoRun, bundle: Bundle) -> dict[str, Any]:
    """Run the five acts with the demo's policy and return their figures."""
    async with ProcessHarness(stay.folder) as stage:
        await _set_up_fleet(stay, stage, bundle, _FleetSetup(POLICY, {}, dict.fromkeys(AGENTS, _QUICK_LINK)))
        play = DemoPlay(stay.console, stage, bundle, stay.began)
        await play.run()
        result = collect_figures(play, stage)
        screen.show_summary(stay.console, result)
        await stay.wait_if_kept(stage)
        return result


async def _run_tour(stay: _DemoRun, bundle: Bundle, scene: DemoScene) -> dict[str, Any]:
    """Run a demo under a template: its hub, its devices, and the bundle measured for what it lets leave."""
    document = write_scene_policy(scene, stay.folder)
    policy = parse_policy(document.read_text(encoding="utf-8-sig")).compile()
    with screen.make_progress(stay.console) as bar:
        task = bar.add_task("attacking what would leave", total=1.0)
        bundle = measure_bundle(bundle, policy, scene, lambda _, share: bar.update(task, completed=share))
        bar.update(task, description="what leaves is measured", completed=1.0)
    agents = {cast.name: {**_QUICK_LINK, "device": _device_table(cast, stay.folder)} for cast in scene.cast}
    async with ProcessHarness(stay.folder) as stage:
        setting = _FleetSetup(document, {"hub": {"name": scene.hub, "region": scene.region}}, agents)
        await _set_up_fleet(stay, stage, bundle, setting)
        result = await PolicyTour(
            console=stay.console,
            stage=stage,
            bundle=bundle,
            scene=scene,
            policy=policy,
            began=stay.began,
            keep=stay.keep,
        ).run()
        await stay.wait_if_kept(stage)
        return result


def _device_table(cast: DemoDevice, folder: Path) -> dict[str, Any]:
    """Table `[device]` of an agent's configuration."""
    return {**cast.device, "power_supply": write_low_battery(folder)} if cast.low_battery else dict(cast.device)


async def _set_up_fleet(stay: _DemoRun, stage: ProcessHarness, bundle: Bundle, setting: _FleetSetup) -> None:
    """Start the hub, show its console, enrol and start the agents, with a progress bar."""
    console = stay.console
    name = setting.policy.stem if setting.policy != POLICY else "demo"
    with screen.make_progress(console) as bar:
        task = bar.add_task("hub and broker", total=1 + 2 * len(setting.agents))
        hub = await stage.start_hub(bundle.path, setting.hub, policies=[setting.policy])
        bar.advance(task)
        await stay.show_console(stage)
        for agent, tables in setting.agents.items():
            bar.update(task, description=f"enrol {agent}")
            await stage.add_agent(agent, f"tuf:{bundle.manifest.name}", f"tuf:{name}", tables)
            bar.advance(task)
        bar.update(task, description="agents")
        for starting in asyncio.as_completed([stage.start_agent(agent) for agent in stage.agents]):
            await starting
            bar.advance(task)
        bar.update(task, description=f"{len(setting.agents)} agents, hub {hub.url}")
    models = {(await stage.fetch_status(agent))["updates"]["model"] for agent in stage.agents}
    console.print(f"  model {', '.join(sorted(models))}, policy and hub keys received by TUF, verified")


def _print_addresses(console: Console, stage: ProcessHarness) -> None:
    """Print addresses and folders of the hub and of each agent."""
    console.print("\nEverything keeps running until Ctrl-C:")
    if stage.hub is not None:
        console.print(
            f"  hub      {stage.hub.url}   broker 127.0.0.1:{stage.hub.broker_port}   state {stage.hub.folder}"
        )
        console.print(
            f"  console  skerry hub console --open --config {stage.hub.child.config}   (each device has its own page)"
        )
    for agent in stage.agents:
        console.print(f"  {agent.name:<8} {agent.url}   folder {agent.folder}")
