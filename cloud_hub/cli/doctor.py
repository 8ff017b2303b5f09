"""Commands `skerry hub doctor` and `skerry hub support`: a checkup of a hub, and an archive of it for whoever helps."""

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
    from wire.process.support import collect_files, hand_over  # noqa: PLC0415

    findings = _examine(config, state)
    folder = None
    try:
        loaded = load_config(config, state)
        folder = loaded.state_dir().root
        status = HubOperations(loaded).status()
    except ExitError as error:
        status = {"error": str(error)}
    files = collect_files(findings, find_config(config), folder, status)
    hand_over(files, out, yes=yes, as_json=as_json)


def _examine(config: Path | None, state: Path | None) -> list[Finding]:
    """All findings; a configuration that cannot be used is one too, and then the last."""
    from cloud_hub.doctor.hub import HubCheckup  # noqa: PLC0415 - help needs none of it

    try:
        return list(HubCheckup(load_config(config, state)).run())
    except ExitError as error:
        return [Finding("configuration", Severity.PROBLEM, str(error))]
