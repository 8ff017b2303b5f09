"""A project at work: its bundle is made if it is missing, hub and devices start, its program runs beside them.

Rule: everything runs on loopback, below `.skerry` in the project's folder, which each run begins anew; the bundle and
what else the project makes is kept.
"""

import asyncio
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from simulations.processes import AgentHandle, HubHandle, ProcessHarness
from simulations.projects.project_file import Project
from wire.process.exit_codes import ExitCode, ExitError

STATE_FOLDER = ".skerry"
MODEL_START_S = 900.0  # a large language model is read for minutes
_TELL_EVERY_S = 10.0
_POLL_S = 0.2
Tell = Callable[[str], None]


def is_made(project: Project, folder: Path) -> bool:
    """Whether everything is there that the project makes before it runs."""
    return all((folder / name).exists() for name in project.makes)


async def make_missing(project: Project, folder: Path, tell: Tell) -> None:
    """Run the commands that make the bundle. ExitError(MODEL) if one fails, or something is still missing then."""
    for command in project.prepare:
        tell(command)
        code = await _run_command(command, folder, {})
        if code:
            raise ExitError(ExitCode.MODEL, f"`{command}` ended with {code}: see above")
    missing = [name for name in project.makes if not (folder / name).exists()]
    if missing:
        raise ExitError(ExitCode.MODEL, f"{', '.join(missing)}: not there after all commands of `prepare`")


async def start_fleet(project: Project, folder: Path, stage: ProcessHarness, tell: Tell) -> None:
    """Start the hub, then the devices, enrolled anew; language models are ready then. ExitError if one is not."""
    bundles = list(dict.fromkeys(folder / device.bundle for device in project.device))
    tell("hub and broker")
    await stage.start_hub(bundles, project.hub.tables, llm=project.hub.llm)
    for device in project.device:
        tell(f"device {device.name}")
        tables = {**device.agent, "data_class": device.data_class}
        handle = await stage.add_agent(device.name, folder / device.bundle, folder / device.policy, tables)
        await stage.start_agent(handle)
    if project.hub.llm:
        await await_language_models(stage, tell)


async def await_language_models(stage: ProcessHarness, tell: Tell) -> None:
    """Wait until every language model of the hub answers. ExitError(HUB) with what is wrong if one does not.

    Without it the first questions of the program meet an engine that still loads, and are refused.
    """
    clock = asyncio.get_running_loop().time
    began, told = clock(), 0.0
    while late := await _list_late_models(stage):
        if clock() - began > MODEL_START_S:
            raise ExitError(ExitCode.HUB, f"not ready after {MODEL_START_S:g} s: {'; '.join(late)}")
        if clock() - began >= told:
            tell(f"waits for {'; '.join(late)}")
            told += _TELL_EVERY_S
        await asyncio.sleep(_POLL_S)


async def _list_late_models(stage: ProcessHarness) -> list[str]:
    """Language models of the hub that do not answer yet, and why."""
    found = await stage.call_admin("GET", "/v1/admin/language-models")
    late = [model for model in found["models"] if not model["ready"]]
    return [
        f"{model['model']} ({', '.join(each['why'] for each in model['replicas']) or 'starting'})" for model in late
    ]


async def run_app(project: Project, folder: Path, hub: HubHandle, agents: Sequence[AgentHandle]) -> int:
    """Run the project's program, and return its exit code. Its environment says where hub and devices are.

    `SKERRY_AGENT`: state folder of the first device; `SKERRY_FLEET`: the folder with those of all, by name;
    `SKERRY_HUB`: URL of the hub; `SKERRY_KEY`: file with its admin token.
    """
    where = {
        "SKERRY_AGENT": str(agents[0].folder),
        "SKERRY_FLEET": str(agents[0].folder.parent),
        "SKERRY_HUB": hub.url,
        "SKERRY_KEY": str(hub.folder / "admin.token"),
    }
    return await _run_command(project.app, folder, where)


def clear_state(folder: Path) -> Path:
    """Remove what the run before left, and return the folder for this one."""
    state = folder / STATE_FOLDER
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    return state


async def _run_command(command: str, folder: Path, more: dict[str, str]) -> int:
    """Run a command in the project's folder, and return its exit code."""
    words = shlex.split(command)
    environment = {**os.environ, **more}
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise ExitError(ExitCode.CONFIG, f"`{command}`: no such program")
    process = await asyncio.create_subprocess_exec(program, *words[1:], cwd=folder, env=environment)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
