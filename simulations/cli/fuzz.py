"""Command `skerry sim fuzz`: random fault schedules, each judged by its history; findings are shrunk and written."""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from simulations.cli.terminal import show_progress
from simulations.fault_fuzzing.fuzz import FuzzConfig, FuzzResult, SearchProgress, search_schedules
from simulations.report.files import INTERRUPTED
from wire.process.exit_codes import ExitCode


def fuzz(
    schedules: Annotated[int, typer.Option("--schedules", min=1, help="Number of schedules to try.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first schedule; the next ones follow.")] = 1,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Worker processes; findings are the same with any number.")
    ] = 1,
    members: Annotated[
        int, typer.Option("--members", min=0, max=16, help="Processes of each hub in every schedule; 0 = as drawn.")
    ] = 0,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for replay files.")] = Path("reports"),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search random schedules of faults for one that breaks a law; exit 40 and a file to run again if one does.

    Example: skerry sim fuzz --schedules 20
    """
    with show_progress("schedules", schedules) as tick:
        found = search_schedules(
            FuzzConfig(schedules, seed, processes, out, members=members),
            lambda progress: tick(progress.done, _describe_progress(progress)),
        )
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=1))
    else:
        _print_result(found)
    raise typer.Exit(_exit_code(found))


def _describe_progress(progress: SearchProgress) -> str:
    """Progress of the search as one line."""
    return f"{progress.events:,} events, {progress.findings} findings"


def _exit_code(found: FuzzResult) -> int:
    """Exit code: 40 if a rule was broken, 130 if the search was stopped early."""
    if not found.ok:
        return ExitCode.CHECK_FAILED
    return ExitCode.OK if found.complete else INTERRUPTED


def _print_result(found: FuzzResult) -> None:
    """Print the result of a search for a person."""
    console = Console(highlight=False, soft_wrap=True)
    verdict = "no law was broken" if found.ok else f"{len(found.findings)} broke a law"
    console.print(f"[bold {'green' if found.ok else 'red'}]{found.schedules:,} schedules: {verdict}[/]")
    struck = ", ".join(f"{count} {kind}" for kind, count in found.struck.items())
    console.print(f"faults acted out: {struck or 'none'}")
    console.print(
        f"{found.accepted:,} questions accepted, {found.effects:,} verdicts stored, {found.late:,} late answers; "
        f"{found.events:,} events in {found.wall_s:.1f} s"
    )
    for finding in found.findings:
        console.print(f"\n[bold red]seed {finding.seed}: {', '.join(finding.laws)}[/]")
        console.print(finding.story, markup=False)
        console.print(f"again: skerry sim run {finding.file}", markup=False)
