"""`skerry hub ca ...`: replace the CA while devices are connected. docs/trust.md tells when and in which order."""

from typing import Annotated

import typer

from cloud_hub.api.admin import Step
from cloud_hub.cli.operations import Office
from cloud_hub.cli.options import QUIET, AsJson, ConfigFile, State, load_config, say

ca_app = typer.Typer(**QUIET)


@ca_app.command()
def show(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """The CA, its successor while a rotation is under way, and the devices that have not renewed since."""
    say(Office(load_config(config, state)).ca(), as_json=as_json)


@ca_app.command()
def rotate(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Begin: make a new CA and trust both; devices get to know it when they renew. Disconnects nobody."""
    say(Office(load_config(config, state)).turn_ca(Step.ROTATE), as_json=as_json)


@ca_app.command()
def finish(
    *,
    force: Annotated[bool, typer.Option("--force", help="Even though devices will be cut off.")] = False,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """End: destroy the old CA's key; its certificates and open invites count no more. Restarts the broker once."""
    say(Office(load_config(config, state)).turn_ca(Step.FINISH, force=force), as_json=as_json)
