"""Command `skerry sim live`: a scenario in real time with real agents, a real broker and a real hub, and its report."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from simulations.cli.terminal import make_progress_callback, print_report, show_progress
from simulations.live.run import LiveRunConfig, run_live_scenario
from simulations.report.expectations import judge_expectations
from simulations.report.files import exit_code_of, prepare_folder, save_report, set_replay_command
from simulations.report.outcome import Outcome
from simulations.scenario.schema import ScenarioError
from simulations.scenario.types import Scenario
from simulations.scenario_files import load_scenario
from wire.process.exit_codes import ExitCode, ExitError


def live(
    scenario: Annotated[str, typer.Argument(help="A shipped name or a TOML file, of one region and one hub.")] = "live",
    agents: Annotated[
        int | None, typer.Option("--agents", min=1, help="Number of agents instead of the scenario's.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0.1, help="Minutes of samples, in real time.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the report.")] = Path("reports"),
    state: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep databases and logs in this folder.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a scenario in real time: real agents (enrolled, mTLS, sealed) behind a proxy that adds latency and loss.

    Example: skerry sim live --agents 5 --minutes 1
    """
    wanted = _load_wanted(scenario, agents, minutes)
    prepare_folder(out)
    outcome = judge_expectations(_run_live(wanted, LiveRunConfig(folder=state)), wanted.expect)
    outcome = set_replay_command(outcome, f"skerry sim live {scenario} --agents {wanted.devices}")
    print_report(outcome, save_report(outcome, wanted, out), as_json=as_json)
    raise typer.Exit(exit_code_of(outcome))


def _load_wanted(scenario: str, agents: int | None, minutes: float | None) -> Scenario:
    """The scenario, with the number of agents and the minutes that the options ask for; later events are dropped."""
    try:
        wanted = load_scenario(scenario)
    except ScenarioError as error:
        raise ExitError(ExitCode.SCENARIO, str(error)) from None
    wanted = wanted if agents is None else replace(wanted, devices=agents)
    if minutes is None:
        return wanted
    events = tuple(event for event in wanted.events if event.at_s <= minutes * 60)
    return replace(wanted, duration_s=minutes * 60, events=events)


def _run_live(scenario: Scenario, wish: LiveRunConfig) -> Outcome:
    """Run a scenario live with a progress bar. ExitError(SCENARIO) if it cannot be run live."""
    try:
        with show_progress(f"{scenario.name}, live", scenario.ends_s) as ticker:
            return run_live_scenario(scenario, wish, make_progress_callback(ticker, scenario), ticker.print_line)
    except ScenarioError as error:
        raise ExitError(ExitCode.SCENARIO, f"{scenario.name}: {error}") from None
