"""`skerry hub ca ...`: rotation of the hub's CA. docs/trust.md tells when, and in which order."""

from typing import Annotated

import typer

from cloud_hub.api.admin import CaStep
from cloud_hub.cli.options import AsJson, ConfigFile, State, open_hub, print_record
from wire.process.terminal import TYPER_SETTINGS

ca_app = typer.Typer(**TYPER_SETTINGS)


@ca_app.command()
def show(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show the CA, its successor during a rotation, and the devices that have not renewed since.

    Example: skerry hub ca show
    """
    print_record(open_hub(config, state).ca_status(), as_json=as_json)


@ca_app.command()
def rotate(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Begin a rotation: make a new CA and trust both; devices learn it when they renew. Disconnects no device.

    Example: skerry hub ca rotate
    """
    print_record(open_hub(config, state).step_ca(CaStep.ROTATE), as_json=as_json)


@ca_app.command()
def finish(
    *,
    force: Annotated[bool, typer.Option("--force", help="Even though devices will be cut off.")] = False,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """End a rotation: destroy the old CA's key; its certificates and open invites expire. Restarts the broker once.

    Example: skerry hub ca finish
    """
    print_record(open_hub(config, state).step_ca(CaStep.FINISH, force=force), as_json=as_json)
