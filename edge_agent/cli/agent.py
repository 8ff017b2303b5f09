"""Commands `skerry agent ...`, `skerry why` and `skerry erase`, for one device.

The running agent never imports this file.
"""

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from edge_agent.api import explanation as explain
from edge_agent.api.explanation import explain_answer
from edge_agent.cli.client import find_running_agent, request_json
from edge_agent.system.settings import PROXY_VARIABLES, ApiAddress
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_new_file
from wire.process.proxy import ForwardProxy, check_proxy
from wire.process.terminal import TYPER_SETTINGS, open_console, require_path

DATABASE_FILE = "agent.db"
REFRESH_S = 90.0
TEMPLATE_FILE = "agent.toml"
DEFAULT_FILE = Path("agent.toml")
_ANSWER_ID = re.compile(r"[0-9a-f]{32}")

app = typer.Typer(**TYPER_SETTINGS)
StateOption = Annotated[
    Path | None,
    typer.Option("--dir", "--state", callback=require_path, help="The device's state folder.", show_default=False),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", callback=require_path, help="TOML file; ./agent.toml if it is there.", show_default=False),
]
NewStateOption = Annotated[
    Path | None, typer.Option("--dir", "--state", help="The device's state folder.", show_default=False)
]
NewConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file; ./agent.toml if it is there.", show_default=False)
]
UrlOption = Annotated[str | None, typer.Option("--url", help="Address of a running agent.", show_default=False)]
_VARIABLES = "SKERRY_AGENT_"  # prefix of the environment variables that go over the file


def _key_option(name: str, told: str) -> Any:
    """An option that stands for one key of the configuration file."""
    return typer.Option(name, help=told, show_default=False)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def init(
    config: Annotated[Path, typer.Option("--config", help="TOML file to write.")] = DEFAULT_FILE,
    *,
    as_json: AsJson = False,
) -> None:
    """Write a configuration file in which every key is explained.

    Example: skerry agent init --config cam-7.toml
    """
    text = resources.files("edge_agent").joinpath(TEMPLATE_FILE).read_text(encoding="utf-8")
    write_new_file(config, text)
    told = f"wrote {config}; next: skerry agent enrol INVITE --dir device"
    typer.echo(json.dumps({"config": str(config)}) if as_json else told)


@app.command()
def enrol(
    invite: Annotated[str, typer.Argument(help="skerry1:..., as `skerry hub invite` printed it; - reads stdin.")],
    state: Annotated[Path, typer.Option("--dir", "--state", help="A new folder for keys and records.")],
    serial: Annotated[
        str, typer.Option("--serial", help="This machine's serial number, if the hub asks for it; auto reads it.")
    ] = "",
    *,
    proxy: Annotated[
        str, typer.Option("--proxy", help="HTTP proxy: http://HOST:PORT.", envvar=PROXY_VARIABLES[0])
    ] = "",
    proxy_credentials_file: Annotated[
        str, typer.Option("--proxy-credentials-file", help="Its USER:PASSWORD.", envvar=PROXY_VARIABLES[1])
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Enrol this machine as the device that the invite names.

    Its keys are drawn here, its certificate comes from the hub, through --proxy where one is named: then name it in
    [link] of the configuration too. If it is interrupted, the same command with the same
    invite goes on where it stopped.

    Example: skerry agent enrol skerry1:... --dir device
    """
    # The other commands need no cryptography.
    from edge_agent.identity.enrollment import enrol_device, read_machine_serial  # noqa: PLC0415

    hardware = read_machine_serial() if serial == "auto" else serial
    way = ForwardProxy(proxy, proxy_credentials_file)
    check_proxy(way, "--proxy")
    identity = enrol_device(sys.stdin.readline() if invite == "-" else invite, state, hardware, way)
    missing = bool(identity.explain_missing_updates())
    if missing:
        typer.echo("note: no updates come: its hub has no signing keys yet (docs/trust.md, the first keys)", err=True)
    broker = f"{identity.broker_host}:{identity.broker_port}"
    if as_json:
        hubs = [{"name": hub.name, "region": hub.region} for hub in identity.hubs]
        facts = {"device": identity.device, "state": str(state), "broker": broker, "hubs": hubs}
        typer.echo(json.dumps({**facts, "updates": not missing}))
        return
    typer.echo(f"enrolled {identity.device} in {state}")
    typer.echo(f"broker {broker}, hubs {', '.join(f'{hub.name} ({hub.region})' for hub in identity.hubs)}")


@app.command()
def run(
    config: ConfigOption = None,
    state: StateOption = None,
    *,
    bundle: Annotated[str, _key_option("--bundle", "The model: a folder, or tuf:NAME.")] = "",
    policy: Annotated[str, _key_option("--policy", "What may leave: a file, or tuf:NAME.")] = "",
    data_class: Annotated[str, _key_option("--data-class", "Class of samples that name none.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Check everything that start would need, then end.")] = False,
    stdin_lines: Annotated[bool, typer.Option("--lines", help="Answer JSON lines from stdin, then end.")] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="S", min=0, max=86_400, show_default="10",
            help="With --lines: seconds to wait for the link before the first line, for corrections after the last.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Run the agent: this process is replaced by the lean one, `python -P -m edge_agent`.

    What is named here goes over the file; with --dir, --bundle and --policy no file is needed.

    With --lines it ends after the last line, with exit code 49 if every line failed.

    Example: skerry agent run --config cam-7.toml
    """
    config = find_config(config)
    given = ["--config", str(config)] if config else []
    flags = [flag for flag, wanted in (("--check", check), ("--lines", stdin_lines)) if wanted]
    flags += [] if wait is None else ["--wait", str(wait)]
    sys.stdout.flush()
    named = {"STATE": str(state or ""), "BUNDLE": bundle, "POLICY": policy, "DATA_CLASS": data_class}
    environment = {**os.environ, **{f"{_VARIABLES}{key}": value for key, value in named.items() if value}}
    words = [sys.executable, "-P", "-m", "edge_agent", *given, *flags]
    os.execve(words[0], words, environment)  # noqa: S606 - no shell, our own module


@app.command()
def renew(state: StateOption = None, config: ConfigOption = None, *, as_json: AsJson = False) -> None:
    """Renew the certificate of a stopped agent now; a running one does it by itself at two thirds of its lifetime.

    Example: skerry agent renew --dir device
    """
    from edge_agent.identity.identity import load_identity  # noqa: PLC0415
    from edge_agent.identity.renewal_worker import renew_certificate as renew_now  # noqa: PLC0415
    from wire.process.daemon import FolderLock  # noqa: PLC0415

    folder = find_state_folder(state, config)
    with FolderLock(folder):
        identity = load_identity(folder)
        made = renew_now(identity, find_proxy(config))
    if as_json:
        typer.echo(json.dumps({"device": made.device, "certificate_ends_ms": made.certificate_ms[1]}))
        return
    until = datetime.fromtimestamp(made.certificate_ms[1] / 1000, UTC)
    typer.echo(f"renewed {made.device}: good until {until:%Y-%m-%d %H:%M} UTC")


@app.command()
def retire(
    ledger: Annotated[Path, typer.Option("--ledger", help="Where the egress ledger is exported to, a new file.")],
    state: StateOption = None,
    config: ConfigOption = None,
    *,
    drain: Annotated[int, typer.Option("--drain", help="Seconds to wait for open questions; needs --config.")] = 30,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not contact the hub: retire it there by hand.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Retire this device for good: close open questions, export its ledger, tell the hub, wipe its keys and records.

    Example: skerry agent retire --config cam-7.toml --ledger cam-7.jsonl
    """
    from edge_agent.cli.retirement import retire_device  # noqa: PLC0415
    from wire.process.daemon import FolderLock  # noqa: PLC0415

    folder = find_state_folder(state, config)
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"wipe the keys and records in {folder} for good?")):
        raise ExitError(ExitCode.USAGE, "nothing was done: add --yes to wipe the keys and records for good")
    with FolderLock(folder):
        file = find_config(config)
        if file and drain > 0 and (folder / DATABASE_FILE).exists():
            typer.echo(f"open questions left: {_drain_questions(file, drain)}", err=as_json)
        done = retire_device(folder, ledger, offline=offline, proxy=find_proxy(config))
    if as_json:
        exported = {"path": str(done.ledger.path), "sha256": done.ledger.sha256} if done.ledger else None
        typer.echo(json.dumps({"ledger": exported, "expired": done.expired, "left": done.left, "offline": offline}))
        return
    if done.ledger:
        typer.echo(f"ledger   {done.ledger.path}: {done.ledger.entries} entries, {done.ledger.outcomes} outcomes")
        typer.echo(f"sha256   {done.ledger.sha256}")
    typer.echo(f"expired  {done.expired}\nwiped    {folder}" + (f"; left: {', '.join(done.left)}" if done.left else ""))
    if offline:
        typer.echo("now type at the hub: skerry devices retire DEVICE --drain 0s")


@app.command()
def trace(
    trace_id: Annotated[str, typer.Argument(help="Trace id: 32 hexadecimal characters, `trace_id` of a response.")],
    state: StateOption = None,
    config: ConfigOption = None,
) -> None:
    """Print this device's spans of a trace as JSON lines, in the form of the hub's.

    Example: skerry agent trace 0af7651916cd43dd8448eb211c80319c
    """
    from edge_agent.app.status import SERVICE, read_spans  # noqa: PLC0415 - for this command alone

    for span in read_spans(find_state_folder(state, config) / DATABASE_FILE, trace_id):
        sys.stdout.write(span.encode_line(SERVICE).decode())


def _drain_questions(config: Path, within_s: int) -> int:
    """Run the agent for its open questions alone, for so many seconds. How many are still open."""
    import asyncio  # noqa: PLC0415

    from edge_agent.app.config import load_config  # noqa: PLC0415
    from edge_agent.app.draining import drain_questions  # noqa: PLC0415
    from edge_agent.app.process import prepare_startup  # noqa: PLC0415

    loaded = load_config(config)
    return asyncio.run(drain_questions(prepare_startup(loaded), loaded.agent_settings(), within_s))


@app.command()
def status(
    state: StateOption = None, config: ConfigOption = None, url: UrlOption = None, *, as_json: AsJson = False
) -> None:
    """Show the status of a running agent: link, model, policy, what waits, what it did, what came by updates.

    Exit code 41 if no agent runs there, 21 if it does not answer.

    Example: skerry agent status --config cam-7.toml
    """
    address = _find_running(state, config, url)
    facts = request_json(address, "/v1/status")
    if as_json:
        print(json.dumps({"url": address.url, **facts}, indent=2))
        return
    told = explain.take_status_parts(facts)
    _print_rows(
        [*((key, explain.format_value(value)) for key, value in {"address": address.url, **facts}.items()), *told]
    )


@app.command()
def refresh(
    state: StateOption = None, config: ConfigOption = None, url: UrlOption = None, *, as_json: AsJson = False
) -> None:
    """Make a running agent look for a newer model, policy and hub keys now, and show the result.

    Waits up to 90 seconds for the poll to end. Exit code 40 if it met a failure.

    Example: skerry agent refresh --url http://127.0.0.1:8090
    """
    address = _find_running(state, config, url)
    before = request_json(address, "/v1/status").get("updates", {})
    request_json(address, "/v1/refresh", "POST")
    deadline = time.monotonic() + REFRESH_S
    while (found := request_json(address, "/v1/status")["updates"])["polls"] == before.get("polls"):
        if time.monotonic() > deadline:
            raise ExitError(ExitCode.HUB, f"no update poll ended within {REFRESH_S:g} s; see `skerry agent status`")
        time.sleep(0.2)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _print_rows(explain.explain_updates(found))
    if found["failures"]:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _find_running(state: Path | None, config: Path | None, url: str | None) -> ApiAddress:
    """The address of the agent that the options name. ExitError(NOT_FOUND) if none runs there."""
    address = ApiAddress(url) if url else find_running_agent(find_state_folder(state, config))
    if address is None:
        raise ExitError(
            ExitCode.NOT_FOUND, f"no agent runs on {find_state_folder(state, config)}; `skerry agent run` starts one"
        )
    return address


def why(
    answer: Annotated[str, typer.Argument(help="Answer id: 32 hexadecimal characters.")],
    state: StateOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Explain one past answer: where it was made, why, by which model and policy, and what left the device for it.

    Works on a running agent (--url, --dir, --config) and on the folder of a stopped one (--dir, --config).

    Example: skerry why 5f2b0c9d7a1e4386b0d2f4a6c8e01357 --config cam-7.toml
    """
    if not _ANSWER_ID.fullmatch(answer):
        raise ExitError(
            ExitCode.USAGE, f"{answer[:40]!r} is no answer id: 32 hexadecimal characters, `answer_id` of a response"
        )
    facts = _fetch_facts(answer, state, config, url)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    try:
        told = explain_answer(facts)
    except (KeyError, TypeError, ValueError):
        raise ExitError(ExitCode.HUB, "the agent's reply has an unknown form: is it of another version?") from None
    _print_rows([("id", answer), *told])


app.command("why")(why)


def erase(
    subject: Annotated[str, typer.Argument(help="The data subject, as callers named it; - reads stdin.")],
    state: StateOption = None,
    config: ConfigOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Forget a data subject: on this device, then at each of its hubs, which sign that they did.

    A hub that cannot be reached is named (exit code 21), and so is a file of this device in which the rows are still
    readable (50); the same command, typed again, tries again. Backups made before still hold them.

    Example: skerry erase patient-4711 --config cam-7.toml
    """
    from edge_agent.cli.erasure import erase_subject  # noqa: PLC0415 - the other commands need no cryptography

    name = sys.stdin.readline().removeprefix("\ufeff").rstrip("\r\n") if subject == "-" else subject
    done = erase_subject(find_state_folder(state, config), name, _further_folders(config), find_proxy(config))
    facts = {"answers": done.answers, "questions": done.questions, "hubs": done.rows, "found": done.found}
    if as_json:
        print(json.dumps({**facts, "left": done.unreached, "readable": done.readable}))
    else:
        told = ", ".join(f"{found} at {hub}" for hub, found in done.found.items())
        print(f"erased {done.answers} answers here; of {done.questions} questions named: {told or 'none'}")
    if done.unreached:
        named = "; ".join((*done.unreached, *done.readable))
        raise ExitError(ExitCode.HUB, f"not erased at {named}; type it again")
    if done.readable:
        raise ExitError(ExitCode.NOT_ERASED, f"{'; '.join(done.readable)}; then type it again")


app.command("erase")(erase)


def _further_folders(config: Path | None) -> list[Path]:
    """Folders of the enrolments with further hubs."""
    from edge_agent.app.config import load_config  # noqa: PLC0415 - for this command alone

    file = config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    return [Path(hub.state) for hub in load_config(file).hub if hub.state] if file else []


def _fetch_facts(answer: str, state: Path | None, config: Path | None, url: str | None) -> dict[str, Any]:
    """What is kept of an answer: from the running agent if there is one, else from its database.

    The running agent also knows what is not committed yet.
    """
    folder = None if url else find_state_folder(state, config)
    address = ApiAddress(url) if url else find_running_agent(folder) if folder else None
    if address is not None:
        return request_json(address, f"/v1/answers/{quote(answer)}/why")
    from edge_agent.storage.answers import explain_from_file  # noqa: PLC0415 - not for a help text

    facts = explain_from_file((folder or Path()) / DATABASE_FILE, answer)
    if not facts:
        raise ExitError(ExitCode.NOT_FOUND, f"no answer {answer} is recorded in {folder}")
    return facts


def find_state_folder(state: Path | None, config: Path | None) -> Path:
    """The state folder that the options name. ExitError(USAGE) if they name none, (MISSING) if it is not there."""
    folder = name_state_folder(state, config)
    if not folder.is_dir():
        raise ExitError(ExitCode.MISSING, f"{folder}: no such folder; `skerry agent enrol` makes a device's")
    return folder


def name_state_folder(state: Path | None, config: Path | None) -> Path:
    """The state folder that the options name, which may be still to make. ExitError(USAGE) if they name none."""
    if state:
        return state
    config = find_config(config)
    if config is None:
        raise ExitError(ExitCode.USAGE, "name the agent: --dir FOLDER, --config FILE or --url ADDRESS")
    from edge_agent.app.config import load_config  # noqa: PLC0415 - slow to import, and often not needed

    return Path(load_config(config).state)


def find_proxy(config: Path | None) -> ForwardProxy:
    """The proxy on the way to the hub: of the configuration, else of the environment."""
    from edge_agent.app.config import load_proxy  # noqa: PLC0415 - as above

    return load_proxy(find_config(config))


def find_config(config: Path | None) -> Path | None:
    return config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)


def _print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Print two columns: what a row is about, and its text."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for about, text in rows:
        table.add_row(about, Text(text))
    open_console().print(table)
