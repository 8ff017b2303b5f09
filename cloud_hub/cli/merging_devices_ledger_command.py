"""`skerry devices heads`: what the hub has logged of a device's egress ledger, as a file for whoever checks it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cloud_hub.cli.operations import Office
from cloud_hub.cli.options import ConfigFile, State, load_config
from wire.process.exit_codes import Exit, ExitError


def heads(
    device: Annotated[str, typer.Argument(help="Whole id: tenant--name.", show_default=False)],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write; printed if not said.")] = None,
    config: ConfigFile = None,
    state: State = None,
) -> None:
    """The ledger heads that the hub has logged of a device, with proofs: for `skerry ledger verify --heads`."""
    found = Office(load_config(config, state)).heads(device)
    if not found["heads"]:
        raise ExitError(Exit.NOT_FOUND, f"no head of '{device}' is in the log")
    text = json.dumps(found, indent=1)
    if out is None:
        print(text)
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ExitError(Exit.DISK, f"{out}: {error.strerror}") from None
    typer.echo(f"wrote {out}: {len(found['heads'])} heads")
    typer.echo(f"hub key  {found['key']}")
