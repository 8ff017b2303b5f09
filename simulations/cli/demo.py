"""Command `skerry demo`: a hub, its broker and a few agents as real processes on loopback, removed afterwards."""

import asyncio
import contextlib
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from models.bundle.bundle import Bundle
from models.forge.pipeline.demo import cache_folder, cached_demo_bundle
from policies.language.document import parse
from simulations.demo import screen
from simulations.demo.acts import AGENTS, POLICY, Play, figures
from simulations.demo.casts import SCENES, Cast, Scene, low_battery, written
from simulations.demo.leakage import measured
from simulations.demo.policy_tour import Tour
from simulations.processes import Stage
from wire.process.exit_codes import Exit, ExitError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run a small fleet on this machine: a hub, its broker and five agents.",
)
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
) -> None:
    """Train and bundle a model (cached), start hub, broker and five agents, act out the five acts, sum up.

    With a template: three devices under that policy, then what left, what stayed and by which rule.
    """
    began = time.monotonic()
    console = Console()
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ExitError(Exit.USAGE, f"{json_file.absolute().parent} is no folder: --json writes a file into one")
    if template and template not in SCENES:
        raise ExitError(Exit.USAGE, f"{template[:40]!r} is no template of the demo; there are {', '.join(SCENES)}")
    bundle = _bundle(console)
    with _folder() as folder:
        try:
            stay = _Stay(console, folder, began, keep=keep)
            play = _tour(stay, bundle, SCENES[template]) if template else _play(stay, bundle)
            result = asyncio.run(_with_signals(play))
        except KeyboardInterrupt:
            console.print("stopped; nothing is left behind")
            raise typer.Exit(_CANCELLED) from None
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _bundle(console: Console) -> Bundle:
    """Load the demo's bundle, trained now or found in the cache, with a progress bar."""
    with screen.progress(console) as bar:
        task = bar.add_task("model", total=1.0)
        bundle = cached_demo_bundle(
            cache_folder(), lambda stage, share: bar.update(task, description=stage, completed=share)
        )
        bar.update(task, completed=1.0)
    return bundle


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Temporary folder for everything the run writes; it is removed with the run."""
    folder = Path(tempfile.mkdtemp(prefix="skerry-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _with_signals(play: Any) -> Any:
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
class _Stay:
    """Context of a demo run. `began`: monotonic seconds; `keep`: leave all running until Ctrl-C."""

    console: Console
    folder: Path
    began: float
    keep: bool

    async def out(self, stage: Stage) -> None:
        """Print the addresses and wait for Ctrl-C, if everything is to be kept running."""
        if self.keep:
            _addresses(self.console, stage)
            await asyncio.Event().wait()


@dataclass(frozen=True)
class _Setting:
    """Configuration of a demo's processes: one policy for all, tables for the hub, and tables for each agent."""

    policy: Path
    hub: dict[str, Any]
    agents: dict[str, dict[str, dict[str, Any]]]


async def _play(stay: _Stay, bundle: Bundle) -> dict[str, Any]:
    """Run the five acts with the demo's policy and return their figures."""
    async with Stage(stay.folder) as stage:
        await _set_up(stay.console, stage, bundle, _Setting(POLICY, {}, dict.fromkeys(AGENTS, _QUICK_LINK)))
        play = Play(stay.console, stage, bundle, stay.began)
        await play.run()
        result = figures(play, stage)
        screen.summary(stay.console, result)
        await stay.out(stage)
        return result


async def _tour(stay: _Stay, bundle: Bundle, scene: Scene) -> dict[str, Any]:
    """Run a demo under a template: its hub, its devices, and the bundle measured for what it lets leave."""
    document = written(scene, stay.folder)
    policy = parse(document.read_text(encoding="utf-8")).compile()
    with screen.progress(stay.console) as bar:
        task = bar.add_task("attacking what would leave", total=1.0)
        bundle = measured(bundle, policy, scene, lambda _, share: bar.update(task, completed=share))
        bar.update(task, description="what leaves is measured", completed=1.0)
    agents = {cast.name: {**_QUICK_LINK, "device": _device(cast, stay.folder)} for cast in scene.cast}
    async with Stage(stay.folder) as stage:
        setting = _Setting(document, {"hub": {"name": scene.hub, "region": scene.region}}, agents)
        await _set_up(stay.console, stage, bundle, setting)
        result = await Tour(
            console=stay.console,
            stage=stage,
            bundle=bundle,
            scene=scene,
            policy=policy,
            began=stay.began,
            keep=stay.keep,
        ).run()
        await stay.out(stage)
        return result


def _device(cast: Cast, folder: Path) -> dict[str, Any]:
    """Table `[device]` of an agent's configuration."""
    return {**cast.device, "power_supply": low_battery(folder)} if cast.low_battery else dict(cast.device)


async def _set_up(console: Console, stage: Stage, bundle: Bundle, setting: _Setting) -> None:
    """Start the hub, enrol and start the agents, with a progress bar."""
    name = setting.policy.stem if setting.policy != POLICY else "demo"
    with screen.progress(console) as bar:
        task = bar.add_task("hub and broker", total=1 + 2 * len(setting.agents))
        hub = await stage.start_hub(bundle.path, setting.hub, policies=[setting.policy])
        bar.advance(task)
        for agent, tables in setting.agents.items():
            bar.update(task, description=f"enrol {agent}")
            await stage.add_agent(agent, f"tuf:{bundle.manifest.name}", f"tuf:{name}", tables)
            bar.advance(task)
        bar.update(task, description="agents")
        for starting in asyncio.as_completed([stage.start_agent(agent) for agent in stage.agents]):
            await starting
            bar.advance(task)
        bar.update(task, description=f"{len(setting.agents)} agents, hub {hub.url}")
    models = {(await stage.status(agent))["updates"]["model"] for agent in stage.agents}
    console.print(f"  model {', '.join(sorted(models))}, policy and hub keys received by TUF, verified")


def _addresses(console: Console, stage: Stage) -> None:
    """Print addresses and folders of the hub and of each agent."""
    console.print("\nEverything keeps running until Ctrl-C:")
    if stage.hub is not None:
        console.print(
            f"  hub      {stage.hub.url}   broker 127.0.0.1:{stage.hub.broker_port}   state {stage.hub.folder}"
        )
    for agent in stage.agents:
        console.print(f"  {agent.name:<8} {agent.url}   folder {agent.folder}")
