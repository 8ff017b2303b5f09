"""`skerry hub ...`: create and run a hub, invite devices, API keys (`hub key`), CA rotation (`hub ca`), status.

Text for people, `--json` for programs. docs/trust.md tells when and in which order to rotate the CA.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Column, Table

from cloud_hub.api.admin import CaStep
from cloud_hub.cli.broker import broker
from cloud_hub.cli.console import console
from cloud_hub.cli.costs import costs
from cloud_hub.cli.engines import models
from cloud_hub.cli.fetch import fetch
from cloud_hub.cli.hub_operations import HubOperations
from cloud_hub.cli.jobs import jobs_app
from cloud_hub.cli.join import fill_template, join, write_config
from cloud_hub.cli.language_models import llm
from cloud_hub.cli.options import (
    DEFAULT_FILE,
    AsJson,
    ConfigFile,
    State,
    find_config,
    format_time,
    full_device_id,
    load_config,
    parse_span,
    print_record,
)
from cloud_hub.cli.plan import plan
from cloud_hub.cli.store import store_app
from cloud_hub.registry.access import KeyRequest, Scope
from cloud_hub.registry.registry import DeviceInvitation
from cloud_hub.runtime.config import PREFIX, load_hub_config
from wire.process.exit_codes import ExitCode, ExitError
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
    made = HubOperations(load_config(config, state)).create_key(wanted)
    typer.echo(json.dumps(made) if as_json else made["token"])


@key_app.command("list")
def list_keys(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """List every key that was ever made, without its token.

    Example: skerry hub key list
    """
    found = HubOperations(load_config(config, state)).list_keys()
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
    print_record(HubOperations(load_config(config, state)).revoke_key(key), as_json=as_json)


ca_app = typer.Typer(**TYPER_SETTINGS)


@ca_app.command()
def show(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show the CA, its successor during a rotation, and the devices that have not renewed since.

    Example: skerry hub ca show
    """
    print_record(HubOperations(load_config(config, state)).ca_status(), as_json=as_json)


@ca_app.command()
def rotate(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Begin a rotation: make a new CA and trust both; devices learn it when they renew. Disconnects no device.

    Example: skerry hub ca rotate
    """
    print_record(HubOperations(load_config(config, state)).step_ca(CaStep.ROTATE), as_json=as_json)


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
    print_record(HubOperations(load_config(config, state)).step_ca(CaStep.FINISH, force=force), as_json=as_json)


_NO_UPDATES = (
    "note: this hub has no signing keys yet, so {device} gets no updates; make them first (docs/trust.md, the first"
    " keys), or enrol it again later with `skerry hub invite --replace`"
)
DAY_MS = 86_400_000

app = typer.Typer(**TYPER_SETTINGS, help="A hub: create it, run it, invite devices.")
app.add_typer(key_app, name="key", help="API keys of tenants: create, list, revoke.")
app.command("console")(console)
app.command("plan")(plan)
app.command("models")(models)
app.command("llm")(llm)
app.command("costs")(costs)
app.command("fetch")(fetch)
app.command("join")(join)
app.command("broker")(broker)
app.add_typer(jobs_app, name="jobs", help="Work that outlives its request: list, show, cancel, queue again.")
app.add_typer(store_app, name="store", help="The hub's database: copy it to another, see how far it is upgraded.")
app.add_typer(ca_app, name="ca", help="The hub's CA: show, rotate, finish.")


@app.command()
def init(
    *,
    config: Annotated[Path, typer.Option("--config", help="TOML file to write.")] = DEFAULT_FILE,
    state: Annotated[Path, typer.Option("--state", help="State folder.")] = Path("hub"),
    model: Annotated[list[Path] | None, typer.Option("--model", help="Bundle folder; once for each model.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a configuration in which every key is explained, and make the state folder: authority, keys, admin token.

    A configuration file that is there already is read, not written.

    Example: skerry hub init --model digits
    """
    from cloud_hub.runtime.bootstrap import open_state  # noqa: PLC0415 - the hub's parts, for this command alone
    from wire.http.guards import load_token  # noqa: PLC0415
    from wire.process.daemon import FolderLock  # noqa: PLC0415

    if not config.exists():
        write_config(config, fill_template(state, model or []))
    settings = load_hub_config(config)
    with FolderLock(settings.state_dir().prepare().root):
        ground = open_state(settings)
        load_token(settings.server_access())
    if as_json:
        facts = {"config": str(config), "state": str(ground.state.root), "authority": ground.authorities.sha256}
        typer.echo(json.dumps({**facts, "keys": bool(ground.anchor.root_sha256())}))
        return
    typer.echo(
        f"configuration  {config}\nstate          {ground.state.root}\nauthority      {ground.authorities.sha256}"
    )
    if not ground.anchor.root_sha256():
        typer.echo("keys           none yet: make them before the first device enrols (docs/trust.md, the first keys)")
    named = settings.models or settings.models_folder
    typer.echo(
        f"next           {'' if named else 'name a bundle in models = [...], then '}skerry hub run --config {config}"
    )


@app.command()
def run(
    *,
    config: ConfigFile = None,
    state: State = None,
    model: Annotated[
        list[Path] | None, typer.Option("--model", metavar="FOLDER", help="Serve this bundle; once for each.")
    ] = None,
    trace_file: Annotated[Path | None, typer.Option("--trace-file", help="Write spans here, as JSON lines.")] = None,
) -> None:
    """Serve until Ctrl-C. Becomes the lean process that a service manager starts too.

    Example: skerry hub run --config hub.toml
    """
    load_config(config, state)
    file = find_config(config)
    words = [sys.executable, "-P", "-m", "cloud_hub", *(["--config", str(file)] if file else [])]
    environment = {**os.environ, **({f"{PREFIX}STATE": str(state)} if state else {})}
    if model:
        environment[f"{PREFIX}MODELS"] = json.dumps([str(each.absolute()) for each in model])
    if trace_file:
        environment[f"{PREFIX}TRACE__FILE"] = str(trace_file.absolute())
    _exec_process(words, environment)


@app.command()
def invite(
    device: Annotated[str, typer.Argument(help="Name of the new device, or a whole id.", show_default=False)],
    *,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose device it is.")] = "demo",
    expires: Annotated[str, typer.Option("--expires", help="How long it may be used: 90s, 30m, 1h, 7d.")] = "1h",
    serial: Annotated[
        list[str] | None, typer.Option("--serial", help="Only a machine with this serial number; once for each.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="The device is suspended: it may enrol anew, with new keys.")
    ] = False,
    device_class: Annotated[str, typer.Option("--class", help="What it is, for the rules of policies: camera.")] = "",
    region: Annotated[str, typer.Option("--region", help="Where it stands, for the rules of policies: eu-de.")] = "",
    qr: Annotated[bool, typer.Option("--qr", help="Draw a QR code, for a device with a camera.")] = False,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print a one-time invite for a device: `skerry agent enrol INVITE` takes it.

    Example: skerry hub invite cam-7 --class camera --region eu-de
    """
    welcome = DeviceInvitation(full_device_id(tenant, device), tuple(serial or ()), replace, device_class, region)
    made = HubOperations(load_config(config, state)).create_invite(welcome, parse_span(expires, "--expires"))
    if not made.get("updates", True):
        typer.echo(_NO_UPDATES.format(device=made["device"]), err=True)
    if qr:
        import segno  # noqa: PLC0415 - for this option alone

        segno.make(made["invite"], error="l").terminal(compact=True)
    typer.echo(json.dumps(made) if as_json else made["invite"])


@app.command("deny-all")
def deny_all(
    *,
    why: Annotated[str, typer.Option("--why", help="One line for whoever reads it on a device.", show_default=False)],
    device: Annotated[str, typer.Option("--device", help="Only this device, tenant--name.")] = "",
    tenant: Annotated[str, typer.Option("--tenant", help="Only the devices of this tenant.")] = "",
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Stop all egress of devices from now on, until a policy is published whose clears_notice is the counter shown.

    Connected devices get it at once, the others with their next hello; this hub refuses at once.

    Example: skerry hub deny-all --tenant clinic --why "policy under review"
    """
    if device and tenant:
        raise ExitError(ExitCode.USAGE, "--device and --tenant exclude each other: a device's id names its tenant")
    print_record(HubOperations(load_config(config, state)).deny_all(device or tenant, why), as_json=as_json)


@app.command()
def aggregates(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Count verdicts by label, model and past day. Rare labels are left out.

    Example: skerry hub aggregates --json
    """
    found = HubOperations(load_config(config, state)).list_aggregates()
    if as_json:
        typer.echo(json.dumps(found))
        return
    for row in found:
        day = format_time(row["day"] * DAY_MS)[:10]
        typer.echo(f"{day}  {row['model']:<24} {row['label']:>6} {row['count']:>10}")
    if not found:
        typer.echo("no aggregates yet: a day is counted once it is over, a label from 10 verdicts on")


@app.command()
def audit(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show the audit log: changes and refusals over the web API, the last 200, oldest first.

    Example: skerry hub audit
    """
    found = HubOperations(load_config(config, state)).read_audit()
    if as_json:
        typer.echo(json.dumps(found))
        return
    for entry in found:
        facts = (entry["status"], entry["method"], entry["route"], entry["subject"] or "-")
        typer.echo(" ".join(map(str, (format_time(entry["at_ms"]), entry["caller"], entry["tenant"] or "-", *facts))))


@app.command()
def status(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show the status of the running hub.

    Example: skerry hub status
    """
    found = HubOperations(load_config(config, state)).status()
    if as_json:
        typer.echo(json.dumps(found))
        return
    hubs = found.pop("hubs")
    for key, value in found.items():
        typer.echo(f"{key:<16} {json.dumps(value) if isinstance(value, dict | list) else value}")

    _print_hubs(hubs)


def _print_hubs(hubs: list[dict[str, Any]]) -> None:
    """Print a line for each hub of the region."""
    rows = [("hub", "state", "since", "seen", "late_ms", "shards", "tasks", "release")]
    for hub in hubs:
        times = (format_time(hub["since_ms"]), format_time(hub["seen_ms"]))
        tasks = ",".join(each["task"] for each in hub["tasks"]) or "-"
        facts = (str(hub["late_ms"]), str(hub["shards"]), tasks, hub["release"] or "-")
        rows.append((hub["member"], hub["state"], *times, *facts))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())


def _exec_process(words: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process by another program, so that signals and exit code are that program's."""
    sys.stdout.flush()
    os.execve(words[0], words, environment)  # noqa: S606 - our own interpreter and module
