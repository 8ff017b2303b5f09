"""`skerry rollout ...`: start, watch, pause, resume, abort, approve and undo rollouts; modelled on `kubectl rollout`.

Rule: a rollout is named by its id, the start of it, or its family (the newest of that); nothing = the newest of all.
What a command did is printed with what comes next.
Rule: `start` publishes a bundle (`cloud_hub.cli.publish`) before it asks the hub.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cloud_hub.cli import rollout_text
from cloud_hub.cli.options import AsJson, ConfigFile, State, load_config, parse_span
from cloud_hub.rollout.types import PAUSED, TERMINAL, HistoryEntry, RolloutState
from cloud_hub.rollout.view import RolloutDeviceView, RolloutView
from cloud_hub.system.client import ApiAddress, call_hub_api, read_running_address
from models.cli.flags import accepts_flags
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import TYPER_SETTINGS, require_path

_LISTS = frozenset(("waves", "lab"))


def parse_parameters(texts: Iterable[str]) -> dict[str, Any]:
    """Parse `--set` options into names with their JSON values.

    As typed: `soak_s=600`, `waves=1,25%,100%`, `gate.signals.p95=2`. ExitError(USAGE) otherwise.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        *groups, name = key.split(".")
        if not equals or not all((*groups, name)):
            raise ExitError(ExitCode.USAGE, f"--set {text!r}: write NAME=VALUE")
        place = found
        for group in groups:
            inner = place.setdefault(group, {})
            if not isinstance(inner, dict):
                raise ExitError(ExitCode.USAGE, f"--set {text!r}: {group} is a value already")
            place = inner
        place[name] = [part.strip() for part in value.split(",")] if key in _LISTS else _parse_value(value)
    return found


def _parse_value(text: str) -> Any:
    """Parse a value as JSON; a word that is none is a string, so that `true`, `2` and `"x"` keep their types."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


ROLLOUTS_PATH = "/v1/admin/rollouts"
POLL_S = 1.0
app = typer.Typer(**TYPER_SETTINGS, help="Roll a model version out in waves, and stop one that answers worse.")
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Until it has ended, or waits for a person.")]


@dataclass(frozen=True)
class RolloutClient:
    """Client of the running hub's rollout API.

    `address`: URL, token file and CA file of the hub; its token decides in whose name something is done.
    """

    address: ApiAddress

    @classmethod
    def for_hub(cls, config: Path | None, state: Path | None, token: Path | None) -> "RolloutClient":
        """Return a client of the configured hub. ExitError(HUB) if none runs, (MISSING) without its folder.

        `token`: file with the caller's own key.
        """
        folder = load_config(config, state).state_dir()
        if not folder.root.is_dir():
            raise ExitError(ExitCode.MISSING, f"{folder.root}: no such folder; `skerry hub init` makes a hub's")
        address = read_running_address(folder.running)
        if address is None:
            raise ExitError(ExitCode.HUB, f"no hub runs on {folder.root}: `skerry hub run` starts it")
        return cls(ApiAddress(address.url, str(token), address.ca) if token else address)

    def send_request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request below `/v1/admin/rollouts` and return the JSON of the answer."""
        return call_hub_api(self.address, method, ROLLOUTS_PATH + path, body)

    def list_all(self) -> list[RolloutView]:
        """Return every rollout, newest first."""
        return [_decode_view(each) for each in self.send_request("GET", "")["rollouts"]]

    def find_rollout(self, name: str) -> RolloutView:
        """Return the rollout of this id, start of an id, or family; "" = the newest.

        ExitError(NOT_FOUND) if there is none, ExitError(USAGE) if several begin so.
        """
        found = self.list_all()
        exact = [view for view in found if name in ("", view.id)] or [view for view in found if name == view.family]
        meant = exact[:1] or [view for view in found if view.id.startswith(name)]
        if len(meant) > 1:
            raise ExitError(ExitCode.USAGE, f"{name!r} is ambiguous: {', '.join(view.id for view in meant)}")
        if not meant:
            raise ExitError(
                ExitCode.NOT_FOUND, f"no rollout {name!r}: `skerry rollout list`" if name else "no rollout yet"
            )
        return meant[0]

    def read_status(self, rollout: str) -> RolloutView:
        """Return the rollout of this id."""
        return _decode_view(self.send_request("GET", f"/{rollout}"))

    def send_action(self, rollout: str, verb: str, body: dict[str, Any]) -> RolloutView:
        """Send a command (`verb`) for a rollout and return its new status."""
        return _decode_view(self.send_request("POST", f"/{rollout}/{verb}", body))


@dataclass(frozen=True, kw_only=True)
class HubFlags:
    """Options of every command: which hub, in whose name, and how to print."""

    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            callback=require_path,
            help="File with your own API key, which names you in the history. Default: the admin token.",
        ),
    ] = None
    config: ConfigFile = None
    state: State = None
    as_json: AsJson = False

    def open_client(self) -> RolloutClient:
        """Return a client of the hub. ExitError(HUB) if none runs."""
        return RolloutClient.for_hub(self.config, self.state, self.token_file)


@dataclass(frozen=True, kw_only=True)
class RolloutFlags(HubFlags):
    """Options of a command about one rollout."""

    name: Annotated[str, typer.Argument(help="Its id, the start of it, or a family. Default: the newest.")] = ""


@dataclass(frozen=True, kw_only=True)
class ActionFlags(RolloutFlags):
    """Options of a command that changes one rollout."""

    why: Annotated[str, typer.Option("--why", help="One line for the history.")] = ""

    def act(self, verb: str, **values: Any) -> RolloutView:
        """Send the command `verb` for the rollout, with the reason and further `values`; return its new status."""
        return _send_action(self, verb, {"why": self.why, **values})


@dataclass(frozen=True, kw_only=True)
class StartFlags(HubFlags):
    """Options of `start`."""

    bundle: Annotated[str, typer.Argument(help="A bundle folder, or a published MODEL@VERSION.", show_default=False)]
    to: Annotated[str, typer.Option("--to", help="class=camera,region=eu|us,tenant=..,device=.. or all.")] = "all"
    back: Annotated[
        str, typer.Option("--from", help="What they run now, MODEL@VERSION. Default: what most of them use.")
    ] = ""
    rule: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter, as in soak_first_s=600 or waves=1,25%,100%.")
    ] = None
    id: Annotated[str, typer.Option("--id", help="Id of the rollout.")] = ""
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for a request to sign. Default: beside the bundle.")
    ] = None
    watch: Watch = False


@dataclass(frozen=True, kw_only=True)
class StatusFlags(RolloutFlags):
    """Options of `status`."""

    watch: Watch = False
    timeout: Annotated[str, typer.Option("--timeout", help="With --watch: 90s, 30m, 1h. Default: no end.")] = ""
    devices: Annotated[bool, typer.Option("--devices", help="Every device, too.")] = False


@dataclass(frozen=True, kw_only=True)
class ApproveFlags(RolloutFlags):
    """Options of `approve`."""

    plan: Annotated[str, typer.Option("--plan", help="The digest that its status shows: what you looked at.")]


@dataclass(frozen=True, kw_only=True)
class ResumeFlags(ActionFlags):
    """Options of `resume`."""

    accept: Annotated[
        bool, typer.Option("--accept", help="Let the wave pass without evidence; you answer for it. Not against harm.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class UndoFlags(ActionFlags):
    """Options of `undo`."""

    to_version: Annotated[int, typer.Option("--to-version", help="Default: the version before.", min=0)] = 0


@app.command()
@accepts_flags(StartFlags)
def start(flags: StartFlags) -> None:
    """Start a rollout: publish a bundle if that is still to do, and assign it to devices in waves.

    Each wave is installed, watched and compared with its controls; then the next begins by itself, or all goes back.
    Every parameter: docs/rollout.md.

    Example: skerry rollout start digits-2 --to class=camera --watch
    """
    rules = parse_parameters(flags.rule or ())
    require_path(None if "@" in flags.bundle else flags.bundle)
    client = flags.open_client()
    model = flags.bundle if "@" in flags.bundle else _publish_bundle(flags)
    body = {"model": model, "to": flags.to, "back": flags.back, "rules": rules, "id": flags.id}
    view = _decode_view(client.send_request("POST", "", body))
    sizes = ", ".join(str(wave.devices) for wave in view.waves)
    _print_view(view, f"rollout {view.id} started: {model} to {sizes} devices, wave by wave", as_json=flags.as_json)
    if flags.watch:
        _watch_rollout(client, view, as_json=flags.as_json)
    if not flags.as_json:
        typer.echo(f"next  skerry rollout status {view.id} --watch")


@app.command()
@accepts_flags(StatusFlags)
def status(flags: StatusFlags) -> None:
    """Show progress and gate result, with its uncertainty. With --watch a line for each change.

    Exit code 0 while it goes on or when it has succeeded; 46 if it was stopped; 47 if it waits for a person; 48 if it
    ended without some devices, or --timeout is over.

    Example: skerry rollout status --watch --timeout 30m
    """
    client = flags.open_client()
    view = client.find_rollout(flags.name)
    if flags.watch:
        limit_s = parse_span(flags.timeout, "--timeout") if flags.timeout else None
        _watch_rollout(client, view, limit_s, as_json=flags.as_json)
    if flags.as_json:
        typer.echo(msgspec.json.encode(view))
    else:
        _print_lines(rollout_text.format_page(view))
    if flags.devices and not flags.as_json:
        found = client.send_request("GET", f"/{view.id}/devices")["devices"]
        _print_lines(["", *rollout_text.format_devices(msgspec.convert(found, list[RolloutDeviceView]))])
    raise typer.Exit(rollout_text.exit_code_for(view))


@app.command("list")
@accepts_flags(HubFlags)
def list_all(flags: HubFlags) -> None:
    """List every rollout, the newest first.

    Example: skerry rollout list
    """
    found = flags.open_client().list_all()
    if flags.as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        _print_lines(rollout_text.format_rollouts(found))


@app.command()
@accepts_flags(RolloutFlags)
def history(flags: RolloutFlags) -> None:
    """Show the history of a rollout: every change of its state and every approval, by whom and when.

    Example: skerry rollout history digits
    """
    client = flags.open_client()
    found = client.send_request("GET", f"/{client.find_rollout(flags.name).id}/history")["history"]
    if flags.as_json:
        typer.echo(json.dumps(found))
    else:
        _print_lines(rollout_text.format_history(msgspec.convert(found, list[HistoryEntry])))


@app.command()
@accepts_flags(ActionFlags)
def pause(flags: ActionFlags) -> None:
    """Pause a rollout: no further device is assigned anything. Installs under way go on.

    Example: skerry rollout pause digits --why "answers look odd"
    """
    view = flags.act("pause")
    _print_view(view, f"rollout {view.id} paused", as_json=flags.as_json)


@app.command()
@accepts_flags(ResumeFlags)
def resume(flags: ResumeFlags) -> None:
    """Resume a paused rollout. The failures seen so far are excused; a wave without evidence is judged once more.

    Example: skerry rollout resume digits --why "looked at, fine"
    """
    view = flags.act("resume", accept=flags.accept)
    _print_view(view, f"rollout {view.id} resumed", as_json=flags.as_json)


@app.command()
@accepts_flags(ActionFlags)
def abort(flags: ActionFlags) -> None:
    """Abort a rollout: no further assignments, and devices that have not committed go back by themselves.

    What has committed stays: `skerry rollout undo` takes it back, under a permit.

    Example: skerry rollout abort digits --why "wrong bundle"
    """
    view = flags.act("abort")
    ended = "aborted" if view.state is RolloutState.ABORTED else "is being aborted"
    _print_view(view, f"rollout {view.id} {ended}", as_json=flags.as_json)


@app.command()
@accepts_flags(ApproveFlags)
def approve(flags: ApproveFlags) -> None:
    """Approve a plan as the second person: with a key of your own, not the one it was started with.

    Example: skerry rollout approve digits --plan 4f1c9a --token-file my.key
    """
    view = _send_action(flags, "approve", {"plan": flags.plan})
    words = f"rollout {view.id} approved by {len(view.approvals)} of {view.people} people"
    _print_view(view, words, as_json=flags.as_json)


@app.command()
@accepts_flags(UndoFlags)
def undo(flags: UndoFlags) -> None:
    """Revert to the version before, also on devices that have committed. Needs a permit: `skerry models permit`.

    Example: skerry rollout undo digits --to-version 1
    """
    view = flags.act("undo", to_version=flags.to_version)
    words = f"rollout {view.id} takes devices back, see `skerry rollout status {view.id}`"
    _print_view(view, words, as_json=flags.as_json)


def _publish_bundle(flags: StartFlags) -> str:
    """Publish the bundle folder that `start` names; return its MODEL@VERSION."""
    from cloud_hub.cli.publish import prepare_bundle  # noqa: PLC0415 - tuf, for who names a folder

    return prepare_bundle(Path(flags.bundle), flags.config, flags.state, flags.out)


def _send_action(flags: RolloutFlags, verb: str, body: dict[str, Any]) -> RolloutView:
    """Send the command `verb` for the rollout that the flags name; return its new status."""
    client = flags.open_client()
    return client.send_action(client.find_rollout(flags.name).id, verb, body)


def _watch_rollout(client: RolloutClient, view: RolloutView, limit_s: float | None = None, *, as_json: bool) -> None:
    """Print each change, and end the command once the rollout has ended, waits for a person, or the time is over.

    The hub is asked once a second. `limit_s`: seconds, None = without end; ExitError(UNFINISHED) once it is over.
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    said = ""
    while True:
        now = rollout_text.format_line(view)
        if now != said:
            typer.echo(msgspec.json.encode(view) if as_json else now)
            said = now
        if view.state in TERMINAL | PAUSED | {RolloutState.WAITING_APPROVAL}:
            raise typer.Exit(rollout_text.exit_code_for(view))
        if deadline is not None and time.monotonic() >= deadline:
            raise ExitError(ExitCode.UNFINISHED, f"rollout {view.id} is {view.state} after {limit_s:g} s")
        time.sleep(POLL_S)
        view = client.read_status(view.id)


def _decode_view(found: dict[str, Any]) -> RolloutView:
    """Decode a rollout's status from JSON."""
    return msgspec.convert(found, RolloutView)


def _print_view(view: RolloutView, words: str, *, as_json: bool) -> None:
    """Print the status as JSON, or a line of text."""
    typer.echo(msgspec.json.encode(view) if as_json else words)


def _print_lines(lines: Iterable[str]) -> None:
    for each in lines:
        typer.echo(each)
