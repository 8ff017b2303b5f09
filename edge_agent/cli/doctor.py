"""Command `skerry doctor`: a checkup of a device, one line a finding."""

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
    from edge_agent.doctor.device import open_checkup  # noqa: PLC0415 - help needs none of it

    config = config or (DEFAULT_FILE if DEFAULT_FILE.exists() and not state else None)
    if config is None and state is None:
        raise ExitError(ExitCode.USAGE, "name the device: --dir FOLDER or --config FILE")
    try:
        checkup = open_checkup(state, config, online=not offline)
        found = list(checkup.run())
    except ExitError as error:  # a configuration that cannot be used is a finding too, and the last one
        found = [Finding("configuration", Severity.PROBLEM, str(error))]
    if code := report_findings(found, as_json=as_json):
        raise typer.Exit(code)
