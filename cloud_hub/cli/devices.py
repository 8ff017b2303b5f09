"""`skerry devices ...`: list devices and change their state; export the logged ledger heads of one."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cloud_hub.cli.options import AsJson, ConfigFile, State, format_time, open_hub, parse_span, print_record
from cloud_hub.registry.device_states import DeviceState
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_result
from wire.process.terminal import TYPER_SETTINGS, open_console

app = typer.Typer(**TYPER_SETTINGS, help="Devices of a hub: list, show, suspend, resume, retire, revoke.")
Device = Annotated[str, typer.Argument(help="Its id (tenant--name), or a name that is unique.", show_default=False)]


@app.command("list")
def list_devices(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """List every device that ever enrolled: whether it is connected, when it was last heard, its model and class.

    Example: skerry devices list
    """
    found = open_hub(config, state).list_devices()
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("device", "state", "online", "last seen", "model", "class", "region", "certificate until", box=None)
    for row in found:
        online = {True: "yes", False: "no"}.get(row["online"], "-")
        told = (row["state"], online, format_time(row["last_seen_ms"]), ", ".join(row["models"]) or "-")
        place = (row["device_class"] or "-", row["region"] or "-", format_time(row["certificate_ends_ms"]))
        table.add_row(row["device"], *told, *place)
    open_console().print(table if found else "no devices yet: `skerry hub invite NAME` creates an invite")


@app.command()
def show(device: Device, *, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show one device.

    Example: skerry devices show cam-7
    """
    print_record(open_hub(config, state).find_device(device), as_json=as_json)


@app.command()
def suspend(device: Device, *, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Suspend a device: it is not served until `resume`. Holds from its next message and renewal on.

    Example: skerry devices suspend cam-7
    """
    print_record(open_hub(config, state).set_state(device, DeviceState.SUSPENDED), as_json=as_json)


@app.command()
def resume(device: Device, *, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Serve a suspended or retiring device again.

    Example: skerry devices resume cam-7
    """
    print_record(open_hub(config, state).set_state(device, DeviceState.ACTIVE), as_json=as_json)


@app.command()
def retire(
    device: Device,
    *,
    drain: Annotated[
        str, typer.Option("--drain", help="How long open verdicts are still delivered: 0s, 30m, 1d.")
    ] = "1d",
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Retire a device: nothing new is accepted, open verdicts are delivered, then its keys are invalid.

    Where you can, type `skerry agent retire` on the device instead: that exports its ledger and wipes its keys too.

    Example: skerry devices retire cam-7 --drain 30m
    """
    office = open_hub(config, state)
    print_record(office.set_state(device, DeviceState.RETIRING, parse_span(drain, "--drain")), as_json=as_json)


@app.command()
def revoke(device: Device, *, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Revoke a device whose keys are lost or stolen: never serve this id again, and end its broker session.

    Example: skerry devices revoke demo--cam-7
    """
    print_record(open_hub(config, state).set_state(device, DeviceState.REVOKED), as_json=as_json)


def heads(
    device: Annotated[str, typer.Argument(help="Its id (tenant--name), or a name that is unique.", show_default=False)],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write; printed if not said.")] = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Export the logged ledger heads of a device, with proofs, for `skerry ledger verify --heads`.

    Example: skerry devices heads cam-7 --out heads.json
    """
    found = open_hub(config, state).export_heads(device)
    if not found["heads"]:
        raise ExitError(ExitCode.NOT_FOUND, f"no head of '{device}' is in the log")
    text = json.dumps(found, indent=1)
    if out is None:
        typer.echo(text)  # JSON with and without --json: it is a file to carry
        return
    write_result(out, f"{text}\n".encode(), _is_heads_file)
    if as_json:
        typer.echo(json.dumps({"file": str(out), "heads": len(found["heads"]), "key": found["key"]}))
        return
    typer.echo(f"wrote {out}: {len(found['heads'])} heads")
    typer.echo(f"hub key  {found['key']}")


def _is_heads_file(data: bytes) -> bool:
    """Whether a file is an earlier export of logged heads."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"heads", "key"} <= found.keys()
