"""Command `skerry hub reload`: have a running hub read its configuration again."""

import json

import typer

from cloud_hub.cli.options import AsJson, ConfigFile, State, load_config
from wire.process.reload import describe_reload, request_reload


def reload(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Have a running hub read its configuration, policies and certificate files again, as SIGHUP does.

    What changed is named, and what only a restart can change. A file with anything wrong in it changes nothing: exit
    code 10. Exit code 41 if no hub runs there.

    Example: skerry hub reload --config hub.toml
    """
    from cloud_hub.cli.hub_operations import HubOperations  # noqa: PLC0415 - help needs none of it

    settings = load_config(config, state)
    found = request_reload(settings.state_dir().root, HubOperations(settings).status)
    if as_json:
        typer.echo(json.dumps(found))
    for line in describe_reload(found):
        if not as_json:
            typer.echo(line)
