"""`skerry hub jobs ...`: list and show jobs of the running hub, cancel them, queue dead ones again."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape
from rich.table import Table

from cloud_hub.cli.options import AsJson, ConfigFile, State, format_time, open_hub, print_record
from cloud_hub.jobs.states import JobState
from wire.process.terminal import TYPER_SETTINGS, open_console

jobs_app = typer.Typer(**TYPER_SETTINGS)
JobId = Annotated[str, typer.Argument(help="Its id, as `skerry hub jobs list` shows it.", show_default=False)]


@jobs_app.command("list")
def list_jobs(
    *,
    state_of_job: Annotated[list[JobState] | None, typer.Option("--in", help="A state; once for each.")] = None,
    after: Annotated[str, typer.Option("--after", help="The last id of the page before.")] = "",
    limit: Annotated[int, typer.Option("--limit", help="How many at most.", min=1, max=1000)] = 100,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List jobs of all tenants, the oldest first, with the reason why they are where they are.

    Example: skerry hub jobs list --in dead
    """
    named = "".join(f"&state={each.value}" for each in state_of_job or ())
    found = open_hub(config, state).ask_jobs("GET", f"?limit={limit}&after={quote(after)}{named}")
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found["jobs"]:
        typer.echo("no such jobs")
        return
    table = Table("job", "tenant", "model", "state", "made", "tries", "why", box=None)
    for job in found["jobs"]:
        table.add_row(*_describe_job(job))
    open_console().print(table)
    if found["next"]:
        typer.echo(f"more: --after {found['next']}")


@jobs_app.command()
def show(job: JobId, *, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show one job, and its answer if there is one.

    Example: skerry hub jobs show 01a20db6b2d9409c7d9980a5109d69c3
    """
    found = open_hub(config, state).ask_jobs("GET", f"/{quote(job, safe='')}")
    _print_job(found, as_json=as_json)


@jobs_app.command()
def cancel(job: JobId, *, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Cancel a job that has not ended.

    Example: skerry hub jobs cancel 01a20db6b2d9409c7d9980a5109d69c3
    """
    found = open_hub(config, state).ask_jobs("DELETE", f"/{quote(job, safe='')}")
    _print_job(found, as_json=as_json)


@jobs_app.command()
def requeue(job: JobId, *, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Queue a dead job again, with new tries and its own time from now on.

    Example: skerry hub jobs requeue 01a20db6b2d9409c7d9980a5109d69c3
    """
    found = open_hub(config, state).ask_jobs("POST", f"/{quote(job, safe='')}/requeue")
    _print_job(found, as_json=as_json)


def _print_job(found: dict[str, Any], *, as_json: bool) -> None:
    shown = {key: "" if value is None else value for key, value in found.items()}
    if not as_json and "answer" in shown:
        shown["answer"] = json.dumps(shown["answer"])
    if not as_json and not shown["ended_ms"]:
        shown["ended_ms"] = 0
    print_record(found if as_json else shown, as_json=as_json)


def _describe_job(job: dict[str, Any]) -> list[str]:
    named = [escape(job[name]) for name in ("id", "tenant", "model", "state")]
    return [*named, format_time(job["made_ms"]), str(job["tries"]), escape(job["why"])]
