"""Command `skerry hub doctor`: a checkup of a hub, one line a finding."""

import typer

from cloud_hub.cli.options import AsJson, ConfigFile, State, load_config
from wire.process.exit_codes import ExitError
from wire.process.findings import Finding, Severity, report_findings


def doctor(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Look for what is wrong with a hub, and say what to do.

    Looked at are disk, authority, databases, update repository, models, policies, broker, servers of models and ports.
    Nothing is changed, and a running hub is not disturbed. Exit code 40 if something is wrong; a warning is not.

    Example: skerry hub doctor --config hub.toml
    """
    from cloud_hub.doctor.hub import HubCheckup  # noqa: PLC0415 - help needs none of it

    try:
        found = list(HubCheckup(load_config(config, state)).run())
    except ExitError as error:  # a configuration that cannot be used is a finding too, and the last one
        found = [Finding("configuration", Severity.PROBLEM, str(error))]
    if code := report_findings(found, as_json=as_json):
        raise typer.Exit(code)
