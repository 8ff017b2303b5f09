"""Commands `skerry hub doctor` and `skerry hub support`: a checkup of a hub, and an archive of it for whoever helps."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cloud_hub.cli.options import AsJson, ConfigFile, State, find_config, load_config
from wire.process.exit_codes import ExitError
from wire.process.findings import Finding, Severity, report_findings


def doctor(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Look for what is wrong with a hub, and say what to do.

    Looked at are disk, authority, databases, update repository, models, policies, broker, servers of models and ports.
    Nothing is changed, and a running hub is not disturbed. Exit code 40 if something is wrong; a warning is not.

    Example: skerry hub doctor --config hub.toml
    """
    if code := report_findings(_examine(config, state), as_json=as_json):
        raise typer.Exit(code)


def support(
    *,
    config: ConfigFile = None,
    state: State = None,
    out: Annotated[Path, typer.Option("--out", help="The archive, a new file.")] = Path("skerry-hub-support.tar.gz"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an archive of a hub for whoever helps: its checkup, versions, status, configuration, what is kept.

    Secrets are taken out, rows are counted and not read. What is in it is listed before it is written.

    Example: skerry hub support --config hub.toml --out hub.tar.gz
    """
    from cloud_hub.cli.hub_operations import HubOperations  # noqa: PLC0415 - as above
    from wire.process.support import collect_files, offer_archive  # noqa: PLC0415

    findings = _examine(config, state)
    loaded = load_config(config, state)
    try:
        status = HubOperations(loaded).status()
    except ExitError as error:
        status = {"error": str(error)}
    files = collect_files(findings, find_config(config), loaded.state_dir().root, status)
    for line in offer_archive(files, out, lambda line: yes or _confirm(line), datetime.now(UTC)):
        typer.echo(line, err=as_json)
    if as_json:
        typer.echo(json.dumps({"archive": str(out), "files": {file.name: len(file.data) for file in files}}))


def _confirm(question: str) -> bool:
    return sys.stdin.isatty() and typer.confirm(question)


def _examine(config: Path | None, state: Path | None) -> list[Finding]:
    """All findings; a configuration that cannot be used is one too, and then the last."""
    from cloud_hub.doctor.hub import HubCheckup  # noqa: PLC0415 - help needs none of it

    try:
        return list(HubCheckup(load_config(config, state)).run())
    except ExitError as error:
        return [Finding("configuration", Severity.PROBLEM, str(error))]
