"""`skerry hub console`: the address of the running hub's pages, with a one-time code that signs a browser in."""

import json
import webbrowser
from typing import Annotated, Any

import typer

from cloud_hub.cli.options import AsJson, ConfigFile, State, open_hub
from wire.process.exit_codes import ExitCode, ExitError


def console(
    *,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print an address that opens the console, signed in with the admin token: once, within a minute.

    Whoever has no access to the hub's machine signs in with a key: `skerry hub key create NAME --scope read`.

    Example: skerry hub console --open
    """
    made = open_hub(config, state).make_console_code()
    address = console_address(made)
    if as_json:
        typer.echo(json.dumps({"address": address, "seconds": made["seconds"]}))
    else:
        typer.echo(address)
    if open_browser and not webbrowser.open(address):
        raise ExitError(ExitCode.NOT_FOUND, "no browser is known here: open the address above within a minute")


def console_address(made: dict[str, Any]) -> str:
    """Return the address of a one-time code. ExitError(CONFIG) of a hub that no browser can reach."""
    if made["url"].startswith("unix:"):
        raise ExitError(
            ExitCode.CONFIG, "this hub listens on a Unix socket, which no browser opens: give it [api] host and port"
        )
    return f"{made['url']}{made['path']}"
