"""`skerry hub store copy`: move the state of a hub that is stopped to another database."""

import json
from typing import Annotated

import typer

from cloud_hub.cli.options import AsJson, ConfigFile, State, load_config
from cloud_hub.database.copying import copy_state
from cloud_hub.database.errors import describe_url
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.database.server import check_server
from cloud_hub.runtime.bootstrap import share_files
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import TYPER_SETTINGS

FILES = "files"

store_app = typer.Typer(**TYPER_SETTINGS)


@store_app.callback()
def store() -> None:
    """Keep `copy` a command of its own: one alone would be the group itself."""


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
        raise ExitError(ExitCode.CONFIG, f"no hub has its state in {root}: `skerry hub init` makes one")
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


def _report(table: str, rows: int) -> None:
    """Say on standard error how far a large table is."""
    if rows % 100_000 == 0:
        typer.echo(f"{table}: {rows:,} rows", err=True)
