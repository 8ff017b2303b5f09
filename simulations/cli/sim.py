"""Command `skerry sim`: run, list, show and compare scenarios; entry to `live` and `fuzz`.

Rule: a scenario is read whole before anything runs. Ctrl-C ends a run early and writes the report of what there is.
"""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.table import Table

from simulations.cli.terminal import make_progress_callback, print_report, print_summary, show_progress
from simulations.report.comparison import compare_figures, render_comparison
from simulations.report.expectations import FAMILIES, FIGURES, judge_expectations
from simulations.report.files import (
    exit_code_of,
    load_outcome,
    prepare_folder,
    require_plotly,
    save_report,
    set_replay_command,
    write_page,
)
from simulations.report.page import render_page
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import Scenario
from simulations.scenario_files import find_scenario, list_scenarios, load_scenario
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import TYPER_SETTINGS, open_console, require_path

app = typer.Typer(
    **TYPER_SETTINGS,
    help="Simulate a fleet in virtual time with the production cores: policies, rollouts, bad networks and faults.",
)
_LARGE = 1_000_000  # samples from which several processes are worth their start, and the bulk lane its spread
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Another seed than the scenario's.")]
Processes = Annotated[
    int, typer.Option("--processes", min=0, help="Worker processes, at most one per region; 0 = automatic.")
]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--bulk", show_default=False,
        help="Every sample through the cores, or ordinary ones in bulk; by default bulk from a million samples on.",
    ),
]  # fmt: skip
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for NAME.html and NAME.json.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(help="A shipped name (`skerry sim list`) or a TOML file.")],
    seed: Seed = None,
    processes: Processes = 0,
    out: Out = Path("reports"),
    *,
    exact: Exact = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario and write its report; exit 0 if all that it expects held, 45 if not, 40 if a law was broken.

    Example: skerry sim run steady
    """
    wanted = _load_or_exit(scenario)
    wanted = wanted if seed is None else replace(wanted, seed=seed)
    with show_progress(wanted.name, wanted.ends_s) as ticker:
        prepare_folder(out)
        from simulations.regions.run import run_scenario  # noqa: PLC0415 - the other commands need no cores

        exact = _count_samples(wanted) < _LARGE if exact is None else exact
        told = make_progress_callback(ticker, wanted)
        outcome = run_scenario(wanted, processes or _choose_processes(wanted), told, bulk=not exact)
    again = f"skerry sim run {scenario} {'--exact' if exact else '--bulk'}"
    outcome = set_replay_command(judge_expectations(outcome, wanted.expect), again)
    print_report(outcome, save_report(outcome, wanted, out), as_json=as_json)
    raise typer.Exit(exit_code_of(outcome))


@app.command("list")
def list_shipped(*, as_json: AsJson = False) -> None:
    """The shipped scenarios with their questions, and the figures that an expectation may name.

    Example: skerry sim list
    """
    found = {name: load_scenario(name) for name in list_scenarios()}
    if as_json:
        print(json.dumps({name: each.question for name, each in found.items()}, indent=2))
        return
    table = Table("scenario", "question", box=None, pad_edge=False, header_style="dim")
    for name, each in found.items():
        table.add_row(f"[bold]{name}[/]", each.question)
    console = open_console()
    console.print(table)
    families = ", ".join(f"{family}.NAME" for family in FAMILIES)
    console.print(f"\n[dim]figures[/]  {', '.join(FIGURES)}, {families}", highlight=False)


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="A scenario, whose file is printed, or the NAME.json of a run.")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the HTML report of that run.")
    ] = None,
) -> None:
    """Print a scenario's file after checking it, or the summary of a saved run.

    Example: skerry sim show steady
    """
    if not what.endswith(".json"):
        _load_or_exit(what)
        print(find_scenario(what).read_text(encoding="utf-8-sig"), end="")
        return
    outcome = load_outcome(Path(what))
    print_summary(open_console(), outcome)
    if html is not None:
        require_plotly()
        write_page(html, render_page(outcome))


@app.command()
def compare(
    first: Annotated[
        Path, typer.Argument(callback=require_path, metavar="A.json", help="Outcome file written by `run`.")
    ],
    second: Annotated[
        Path, typer.Argument(callback=require_path, metavar="B.json", help="Outcome file of another run.")
    ],
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="A page with both, side by side.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: every figure, and in the HTML page every plot.

    Example: skerry sim compare before.json after.json --html both.html
    """
    one, other = load_outcome(first), load_outcome(second)
    if html is not None:
        require_plotly()
        write_page(html, render_comparison(one, other))
    found = compare_figures(one, other)
    if as_json:
        print(json.dumps([row.to_plain() for row in found], indent=2))
        return
    table = Table("figure", first.stem, second.stem, "difference", box=None, pad_edge=False, header_style="dim")
    for row in found:
        table.add_row(row.name, *row.formatted, style="bold" if row.differs else "dim")
    open_console().print(table)


def _load_or_exit(wanted: str) -> Scenario:
    """Load a scenario; ExitError(SCENARIO) if it cannot be run."""
    try:
        return load_scenario(wanted)
    except ScenarioError as error:
        raise ExitError(ExitCode.SCENARIO, str(error)) from None


def _choose_processes(scenario: Scenario) -> int:
    """As many processes as there are regions and processors, where the run is long enough to be worth it."""
    return 1 if _count_samples(scenario) < _LARGE else min(len(scenario.regions), os.cpu_count() or 1)


def _count_samples(scenario: Scenario) -> float:
    """About how many samples the fleet takes."""
    return scenario.devices * scenario.load.samples_per_s * scenario.duration_s
