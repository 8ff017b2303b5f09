"""`skerry hub store`: move the state of a stopped hub to another database; how far a region's database is upgraded."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from msgspec import to_builtins

from cloud_hub.cli.options import AsJson, ConfigFile, State, load_config
from cloud_hub.database.contraction import SchemaState
from cloud_hub.database.copying import copy_state
from cloud_hub.database.errors import describe_url
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.database.server import check_server
from cloud_hub.region.schema_upgrade import read_upgrade
from cloud_hub.runtime.bootstrap import share_files
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import TYPER_SETTINGS

FILES = "files"

store_app = typer.Typer(**TYPER_SETTINGS)


@store_app.command()
def copy(
    *,
    to: Annotated[
        str,
        typer.Option("--to", help="An empty database, postgresql+psycopg://USER@HOST/DATABASE; or `files`: SQLite."),
    ],
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Copy the state of a stopped hub into an empty database, all of it or nothing. What it was copied from stays.

    Example: skerry hub store copy --to postgresql+psycopg://db/skerry
    """
    settings = load_config(config, state)
    root = settings.state_dir().root
    if not root.is_dir():
        raise ExitError(ExitCode.MISSING, f"{root}: no such folder; `skerry hub init` makes a hub's")
    source, target = settings.database_urls(), DatabaseUrls(root, "" if to == FILES else to)
    if source == target:
        raise ExitError(ExitCode.USAGE, "--to names the database that the hub uses already")
    with FolderLock(settings.state_dir().prepare().root):
        settings.check_database()
        if target.server:
            check_server(target.server, allow_fsync_off=settings.store.allow_fsync_off)
        if source.server:
            share_files(settings, source.server)  # what the region's other hubs changed is in the folder after it
        counts = copy_state(source, target, _report)
        if target.server:
            share_files(settings, target.server)
    if as_json:
        typer.echo(json.dumps({"rows": counts}))
        return
    for name, count in counts.items():
        typer.echo(f"{name:<24} {count:>12,}")
    where = f'url = "{describe_url(target.server)}" (with its password)' if target.server else 'url = ""'
    typer.echo(f"next                     set {where} in [store], then skerry hub run")


@store_app.command()
def status(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show the hubs of a region with their releases, and how far their database is upgraded. No hub has to run.

    Example: skerry hub store status --config hub.toml
    """
    settings = load_config(config, state)
    settings.check_database()
    url = settings.database_urls().server
    if not url:
        raise ExitError(ExitCode.USAGE, "the hub keeps its state in files: its start upgrades them")
    hubs, parts = read_upgrade(url)
    if as_json:
        typer.echo(json.dumps({"hubs": to_builtins(hubs), "parts": [asdict(part) for part in parts]}))
        return
    for hub in hubs:
        typer.echo(f"{hub.hub:<10} {f'release {hub.release}' if hub.release else 'an earlier release'}")
    for part in parts:
        typer.echo(f"{part.part:<10} {_describe_schema(part)}")


def _describe_schema(part: SchemaState) -> str:
    if part.schema >= part.expanded:
        return f"schema {part.schema}"
    waits = f"waits for {', '.join(part.waits_for)}" if part.waits_for else "a hub that runs contracts it"
    return f"schema {part.schema} (expanded to {part.expanded}): {waits}"


def _report(table: str, rows: int) -> None:
    """Say on standard error how far a large table is."""
    if rows % 100_000 == 0:
        typer.echo(f"{table}: {rows:,} rows", err=True)
