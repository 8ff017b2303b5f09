"""Commands `skerry new` and `skerry up`: make a project that runs at once, and run it as a whole on this machine."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from models.zoo.sources import find_dataset
from simulations.processes import ProcessHarness
from simulations.projects.project_file import Project, read_project
from simulations.projects.stage import clear_state, is_made, make_missing, run_app, start_fleet
from simulations.projects.templates import ProjectKind, write_project
from wire.process.terminal import open_console, require_path

_CANCELLED = 130
_FOLDER = typer.Argument(
    callback=require_path, metavar="[FOLDER]", help="Folder of the project.", show_default="this one"
)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Folder to make, and name of the project.")],
    kind: Annotated[ProjectKind, typer.Option("--kind", help="What its samples are.")] = ProjectKind.TABLE,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a project that trains, forges, tests and runs at once: a model, its data, a policy, a program, a test.

    It begins with made-up data, so that everything works before your own takes its place.

    Example: skerry new line-7 --kind signal
    """
    folder = Path(name)
    files = write_project(folder, kind)
    if as_json:
        print(json.dumps({"folder": str(folder), "kind": kind.value, "files": files}))
        return
    console = open_console()
    console.print(f"{folder}: {', '.join(files)}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"next: cd {folder} && skerry up", markup=False, highlight=False, soft_wrap=True)


def up(
    folder: Annotated[Path, _FOLDER] = Path(),
    *,
    fresh: Annotated[bool, typer.Option("--fresh", help="Make the bundle again, though it is there.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Leave hub and devices running until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where hub and devices are as JSON.")] = False,
) -> None:
    """Run a project: make its bundle if it is missing, start its hub and devices, run its program, stop them all.

    Everything is on this machine; states and logs lie in FOLDER/.skerry until the next run. The exit code is the
    program's. Without a program it stays until Ctrl-C.

    Example: skerry up examples/clinic
    """
    project, home = read_project(folder), folder.absolute()
    for name in project.data:
        find_dataset(name)  # before anything is begun
    os.chdir(home)  # what the project's commands, and the hub's own children, name is in its folder
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    try:
        raise typer.Exit(asyncio.run(_end_by_signal(_run(project, home, _Options(fresh, stay, as_json)))))
    except KeyboardInterrupt:
        raise typer.Exit(_CANCELLED) from None


class _Options:
    """Flags of `up`."""

    def __init__(self, fresh: bool, stay: bool, as_json: bool) -> None:
        self.fresh, self.stay, self.as_json = fresh, stay, as_json


async def _run(project: Project, folder: Path, options: _Options) -> int:
    console = Console(stderr=True)

    def tell(line: str) -> None:
        console.print(f"{project.name}: {line}", markup=False, highlight=False, soft_wrap=True)

    if options.fresh or not is_made(project, folder):
        await make_missing(project, folder, tell)
    async with ProcessHarness(clear_state(folder)) as stage:
        await start_fleet(project, folder, stage, tell)
        assert stage.hub is not None
        facts = _describe(stage)
        tell(f"hub {facts['hub']}, devices {', '.join(facts['devices'])}")
        if options.as_json:
            print(json.dumps(facts), flush=True)
        code = await run_app(project, folder, stage.hub, stage.agents) if project.app else 0
        if options.stay or not project.app:
            tell("running until Ctrl-C")
            await asyncio.Event().wait()
        return code


def _describe(stage: ProcessHarness) -> dict[str, Any]:
    """Where hub and devices are."""
    assert stage.hub is not None
    devices = {agent.name: {"url": agent.url, "folder": str(agent.folder)} for agent in stage.agents}
    return {"hub": stage.hub.url, "hub_folder": str(stage.hub.folder), "devices": devices}


async def _end_by_signal(work: Any) -> int:
    """Run to the end; Ctrl-C, SIGTERM and SIGHUP end it through every `finally`."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return int(await task)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
