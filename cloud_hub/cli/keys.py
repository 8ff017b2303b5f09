"""`skerry hub key ...`: API keys of tenants."""

import json
from typing import Annotated

import typer
from rich.table import Column, Table

from cloud_hub.cli.options import AsJson, ConfigFile, State, format_time, open_hub, parse_span, print_record
from cloud_hub.registry.access import KeyRequest, Scope
from wire.process.terminal import TYPER_SETTINGS, open_console

key_app = typer.Typer(**TYPER_SETTINGS)


@key_app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for, as people call it.", show_default=False)],
    *,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose key it is; without, the whole hub's.")] = "",
    scope: Annotated[
        list[Scope] | None, typer.Option("--scope", help="infer, read or operate; once for each. Without: infer.")
    ] = None,
    expires: Annotated[str, typer.Option("--expires", help="How long it is good: 30m, 12h, 90d.")] = "365d",
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print a new key. It is shown this once: the hub keeps only its SHA-256.

    Example: skerry hub key create ward-7 --tenant clinic --scope infer
    """
    wanted = KeyRequest(name, tuple(scope or (Scope.INFER,)), tenant, parse_span(expires, "--expires"))
    made = open_hub(config, state).create_key(wanted)
    typer.echo(json.dumps(made) if as_json else made["token"])


@key_app.command("list")
def list_keys(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """List every key that was ever made, without its token.

    Example: skerry hub key list
    """
    found = open_hub(config, state).list_keys()
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table(Column("key", no_wrap=True), "name", "tenant", "scopes", "state", "made", "until")
    for row in found:
        times = (format_time(row["made_ms"]), format_time(row["ends_ms"]))
        table.add_row(
            row["key"], row["name"], row["tenant"] or "whole hub", " ".join(row["scopes"]), row["state"], *times
        )
    open_console().print(table if found else "no keys yet: `skerry hub key create NAME --tenant TENANT` makes one")


@key_app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Id of the key, as `list` shows it.", show_default=False)],
    *,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: requests with it are refused from now on.

    Example: skerry hub key revoke 3f9a2c
    """
    print_record(open_hub(config, state).revoke_key(key), as_json=as_json)
