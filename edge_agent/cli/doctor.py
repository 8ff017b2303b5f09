"""Commands `skerry doctor` and `skerry support`: a checkup of a device, and an archive of it for whoever helps."""

from pathlib import Path
from typing import Annotated

import typer

from edge_agent.cli.agent import AsJson, ConfigOption, StateOption
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.findings import Finding, Severity, report_findings

DEFAULT_FILE = Path("agent.toml")


def doctor(
    config: ConfigOption = None,
    state: StateOption = None,
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no other machine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong with a device, and say what to do.

    Looked at are disk, keys, certificate, records, model, policy, address, clock, broker, hub and update repository.
    Nothing is changed, and a running agent is not disturbed. Exit code 40 if something is wrong; a warning is not.

    Example: skerry doctor --config cam-7.toml
    """
    found = _examine(state, _find_config(config, state), online=not offline)
    if code := report_findings(found, as_json=as_json):
        raise typer.Exit(code)


def support(
    config: ConfigOption = None,
    state: StateOption = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="The archive, a new file.")] = Path("skerry-support.tar.gz"),
    offline: Annotated[bool, typer.Option("--offline", help="Ask no other machine.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an archive of a device for whoever helps: its checkup, versions, status, configuration, what is kept.

    Secrets are taken out, rows are counted and not read. What is in it is listed before it is written.

    Example: skerry support --config cam-7.toml --out cam-7.tar.gz
    """
    from edge_agent.cli.agent import find_state_folder  # noqa: PLC0415 - as above
    from edge_agent.cli.client import find_running_agent, request_json  # noqa: PLC0415
    from wire.process.support import collect_files, hand_over  # noqa: PLC0415

    config = _find_config(config, state)
    findings = _examine(state, config, online=not offline)
    folder, status = None, None
    try:
        folder = find_state_folder(state, config)
        address = find_running_agent(folder)
        status = request_json(address, "/v1/status") if address else None
    except ExitError as error:
        status = {"error": str(error)}
    files = collect_files(findings, config, folder, status)
    hand_over(files, out, yes=yes, as_json=as_json)


def _find_config(config: Path | None, state: Path | None) -> Path | None:
    """The configuration to look at. ExitError(USAGE) if the options name no device."""
    config = config or (DEFAULT_FILE if DEFAULT_FILE.exists() and not state else None)
    if config is None and state is None:
        raise ExitError(ExitCode.USAGE, "name the device: --dir FOLDER or --config FILE")
    return config


def _examine(state: Path | None, config: Path | None, *, online: bool) -> list[Finding]:
    """All findings; a configuration that cannot be used is one too, and then the last."""
    from edge_agent.doctor.device import open_checkup  # noqa: PLC0415 - help needs none of it

    try:
        return list(open_checkup(state, config, online=online).run())
    except ExitError as error:
        return [Finding("configuration", Severity.PROBLEM, str(error))]
