"""`skerry hub ...`: create and run a hub, invite devices, status. Its other commands stand in the table of `skerry.py`.

Text for people, `--json` for programs. Rule: what only one command needs is imported in it, so that help costs little.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cloud_hub.cli.options import (
    DEFAULT_FILE,
    AsJson,
    ConfigFile,
    NewState,
    State,
    find_config,
    format_time,
    full_device_id,
    load_config,
    open_hub,
    parse_span,
    print_record,
)
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import TYPER_SETTINGS, require_path

_NO_UPDATES = "note: no signing keys yet, so {device} gets no updates (docs/trust.md, the first keys)"
DAY_MS = 86_400_000

app = typer.Typer(**TYPER_SETTINGS, help="A hub: create it, run it, invite devices.")


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
    from cloud_hub.cli.join import fill_template, write_config  # noqa: PLC0415
    from cloud_hub.runtime.bootstrap import open_state  # noqa: PLC0415 - the hub's parts, for this command alone
    from cloud_hub.runtime.config import load_hub_config  # noqa: PLC0415
    from wire.http.access import load_token  # noqa: PLC0415
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
    state: NewState = None,
    model: Annotated[
        list[Path] | None,
        typer.Option("--model", callback=require_path, metavar="FOLDER", help="Serve this bundle; once for each."),
    ] = None,
    trace_file: Annotated[Path | None, typer.Option("--trace-file", help="Write spans here, as JSON lines.")] = None,
    begin_anew: Annotated[
        list[str] | None,
        typer.Option("--begin-anew", metavar="NAME", help="Go on without this lost database; once for each."),
    ] = None,
) -> None:
    """Serve until Ctrl-C. Becomes the lean process that a service manager starts too.

    Example: skerry hub run --config hub.toml
    """
    from cloud_hub.runtime.config import PREFIX  # noqa: PLC0415

    loaded = load_config(config, state)
    for name in begin_anew or ():
        _begin_anew(Path(loaded.state), name)
    file = find_config(config)
    words = [sys.executable, "-P", "-m", "cloud_hub", *(["--config", str(file)] if file else [])]
    environment = {**os.environ, **({f"{PREFIX}STATE": str(state)} if state else {})}
    if model:
        environment[f"{PREFIX}MODELS"] = json.dumps([str(each.absolute()) for each in model])
    if trace_file:
        environment[f"{PREFIX}TRACE__FILE"] = str(trace_file.absolute())
    _exec_process(words, environment)


def _begin_anew(folder: Path, name: str) -> None:
    """Let a lost database be begun anew, while no hub runs on the folder."""
    from cloud_hub.database.marks import forget_database  # noqa: PLC0415 - for this option alone
    from cloud_hub.database.parts import PARTS  # noqa: PLC0415

    files = [part.file for part in PARTS]
    if name not in files:
        raise ExitError(ExitCode.USAGE, f"--begin-anew {name}: a hub's databases are {', '.join(files)}")
    with FolderLock(folder):
        forget_database(folder / name)


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
    from cloud_hub.registry.registry import DeviceInvitation  # noqa: PLC0415

    welcome = DeviceInvitation(full_device_id(tenant, device), tuple(serial or ()), replace, device_class, region)
    made = open_hub(config, state).create_invite(welcome, parse_span(expires, "--expires"))
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
    print_record(open_hub(config, state).deny_all(device or tenant, why), as_json=as_json)


@app.command()
def aggregates(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Count verdicts by label, model and past day. Rare labels are left out.

    Example: skerry hub aggregates --json
    """
    found = open_hub(config, state).list_aggregates()
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
    found = open_hub(config, state).read_audit()
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
    found = open_hub(config, state).status()
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
