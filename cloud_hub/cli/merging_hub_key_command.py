"""`skerry hub key ...`: API keys of tenants. Words for people, `--json` for programs."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from cloud_hub.cli.operations import Office
from cloud_hub.cli.options import QUIET, AsJson, ConfigFile, State, load_config, minute, say, seconds
from cloud_hub.registry.access import Scope, Wanted

key_app = typer.Typer(**QUIET)


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
    """Print a new key. It is shown this once: the hub keeps only its SHA-256."""
    wanted = Wanted(name, tuple(scope or (Scope.INFER,)), tenant, seconds(expires, "--expires"))
    made = Office(load_config(config, state)).create_key(wanted)
    typer.echo(json.dumps(made) if as_json else made["token"])


@key_app.command("list")
def list_keys(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Every key that was ever made, without its token."""
    found = Office(load_config(config, state)).keys()
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table(Column("key", no_wrap=True), "name", "tenant", "scopes", "state", "made", "until")
    for row in found:
        times = (minute(row["made_ms"]), minute(row["ends_ms"]))
        table.add_row(
            row["key"], row["name"], row["tenant"] or "whole hub", " ".join(row["scopes"]), row["state"], *times
        )
    Console().print(table if found else "no keys yet: `skerry hub key create NAME --tenant TENANT` makes one")


@key_app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Id of the key, as `list` shows it.", show_default=False)],
    *,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """From now on this key opens nothing."""
    say(Office(load_config(config, state)).revoke_key(key), as_json=as_json)
