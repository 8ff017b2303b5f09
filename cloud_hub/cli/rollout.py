"""`skerry rollout ...`: start, watch, pause, resume, abort, approve and undo rollouts; modelled on `kubectl rollout`.

Rule: a rollout is named by its id, the start of it, or its family (the newest of that); nothing = the newest of all.
What a command did is printed with what comes next.
Rule: `start` publishes a bundle and copies it to the models folder before it asks the hub; nothing is given to any
device by that, and what needs a signature from elsewhere ends the command with what to do.
"""

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cloud_hub.cli import rollout_text
from cloud_hub.cli.options import QUIET, AsJson, ConfigFile, State, find_config, load_config, parse_span
from cloud_hub.rollout.types import PAUSED, TERMINAL, HistoryEntry, RolloutState
from cloud_hub.rollout.view import RolloutDeviceView, RolloutView
from cloud_hub.system.client import ApiAddress, call_hub_api, read_running_address
from models.bundle.bundle import open_bundle
from models.bundle.manifest import BundleError
from models.signing.request import RequestError, dump_request
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file

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
    except ValueError:
        return text


def prepare_bundle(folder: Path, config: Path | None, state: Path | None, out: Path | None = None) -> str:
    """Publish a bundle if it is not yet, copy it to the models folder if the hub has one; return its MODEL@VERSION.

    ExitError(WAITING) if the family's key is not here; the request to sign then lies in `out`, or beside the bundle.
    """
    from cloud_hub.cli.publish import open_repository  # noqa: PLC0415
    from cloud_hub.repository.publish import publish_bundle  # noqa: PLC0415 - tuf, for who names a folder

    try:
        manifest = open_bundle(folder).manifest
        published = publish_bundle(open_repository(find_config(config)), folder, datetime.now(UTC))
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, f"{error}; name a bundle folder, or a published MODEL@VERSION") from None
    except RequestError as error:
        raise ExitError(ExitCode.CHECK_FAILED, str(error)) from None
    if published.request is not None:
        file = (out or folder.resolve().parent) / f"{manifest.name}-{manifest.version}.request.json"
        _write_request(file, dump_request(published.request))
        there = f"skerry keys sign {file} where the keys are, skerry models publish --finish {file} here"
        raise ExitError(ExitCode.WAITING, f"{manifest.model} is not signed yet: {there}, then start again")
    _copy_bundle(folder, load_config(config, state).models_folder, manifest.model)
    return manifest.model


def _write_request(file: Path, request: bytes) -> None:
    """Write a request to be signed. ExitError(DISK) if it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private_file(file, request)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{file}: {error.strerror}; name another folder with --out") from None


def _copy_bundle(folder: Path, models: Path | None, model: str) -> None:
    """Copy a bundle to the models folder, where the hub looks; a partial copy does not bear the model's name yet."""
    if models is None or folder.resolve().parent == models.resolve() or (models / model).exists():
        return
    scratch = models / f".{model}.{os.getpid()}"
    try:
        shutil.copytree(folder, scratch)
        scratch.rename(models / model)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise ExitError(ExitCode.DISK, f"{models}: {error.strerror}") from None


ROLLOUTS_PATH = "/v1/admin/rollouts"
POLL_S = 1.0
app = typer.Typer(**QUIET, help="Roll a model version out to a fleet in waves, and stop one that answers worse.")

Name = Annotated[str, typer.Argument(help="Its id, the start of it, or a family. Default: the newest.")]
Token = Annotated[
    Path | None,
    typer.Option(
        "--token-file", help="File with your own API key, which names you in the history. Default: the admin token."
    ),
]
Why = Annotated[str, typer.Option("--why", help="One line for the history.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Until it has ended, or waits for a person.")]


@dataclass(frozen=True)
class RolloutClient:
    """Client of the running hub's rollout API.

    `address`: URL, token file and CA file of the hub; its token decides in whose name something is done.
    """

    address: ApiAddress

    @classmethod
    def for_hub(cls, config: Path | None, state: Path | None, token: Path | None) -> "RolloutClient":
        """Return a client of the configured hub. ExitError(HUB) if none runs.

        `token`: file with the caller's own key.
        """
        folder = load_config(config, state).state_dir()
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


@app.command()
def start(
    bundle: Annotated[str, typer.Argument(help="A bundle folder, or a published MODEL@VERSION.", show_default=False)],
    *,
    to: Annotated[str, typer.Option("--to", help="class=camera,region=eu|us,tenant=..,device=.. or all.")] = "all",
    back: Annotated[
        str, typer.Option("--from", help="What they run now, MODEL@VERSION. Default: what most of them use.")
    ] = "",
    rule: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter, as in soak_first_s=600 or waves=1,25%,100%.")
    ] = None,
    name: Annotated[str, typer.Option("--id", help="Id of the rollout.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for a request to sign. Default: beside the bundle.")
    ] = None,
    watch: Watch = False,
    token_file: Token = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Start a rollout: publish a bundle if that is still to do, and assign it to devices in waves.

    Each wave is installed, watched and compared with its controls; then the next begins by itself, or all goes back.
    Every parameter: docs/rollout.md.
    """
    rules = parse_parameters(rule or ())
    clerk = RolloutClient.for_hub(config, state, token_file)
    model = bundle if "@" in bundle else prepare_bundle(Path(bundle), config, state, out)
    view = _decode_view(
        clerk.send_request("POST", "", {"model": model, "to": to, "back": back, "rules": rules, "id": name})
    )
    sizes = ", ".join(str(wave.devices) for wave in view.waves)
    _print_view(view, f"rollout {view.id} started: {model} to {sizes} devices, wave by wave", as_json=as_json)
    if watch:
        _watch_rollout(clerk, view, as_json=as_json)
    if not as_json:
        typer.echo(f"next  skerry rollout status {view.id} --watch")


@app.command()
def status(
    name: Name = "",
    *,
    watch: Watch = False,
    timeout: Annotated[str, typer.Option("--timeout", help="With --watch: 90s, 30m, 1h. Default: no end.")] = "",
    show: Annotated[bool, typer.Option("--devices", help="Every device, too.")] = False,
    token_file: Token = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show progress and gate result, with its uncertainty. With --watch a line for each change.

    Exit code 0 while it goes on or when it has succeeded; 46 if it was stopped; 47 if it waits for a person; 48 if it
    ended without some devices, or --timeout is over.
    """
    clerk = RolloutClient.for_hub(config, state, token_file)
    view = clerk.find_rollout(name)
    if watch:
        _watch_rollout(clerk, view, parse_span(timeout, "--timeout") if timeout else None, as_json=as_json)
    if as_json:
        typer.echo(msgspec.json.encode(view))
    else:
        _print_lines(rollout_text.format_page(view))
    if show and not as_json:
        found = clerk.send_request("GET", f"/{view.id}/devices")["devices"]
        _print_lines(["", *rollout_text.format_devices(msgspec.convert(found, list[RolloutDeviceView]))])
    raise typer.Exit(rollout_text.exit_code_for(view))


@app.command("list")
def list_all(
    *, token_file: Token = None, config: ConfigFile = None, state: State = None, as_json: AsJson = False
) -> None:
    """List every rollout, the newest first."""
    found = RolloutClient.for_hub(config, state, token_file).list_all()
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        _print_lines(rollout_text.format_rollouts(found))


@app.command()
def history(
    name: Name = "",
    *,
    token_file: Token = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show the history of a rollout: every change of its state and every approval, by whom and when."""
    clerk = RolloutClient.for_hub(config, state, token_file)
    found = clerk.send_request("GET", f"/{clerk.find_rollout(name).id}/history")["history"]
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _print_lines(rollout_text.format_history(msgspec.convert(found, list[HistoryEntry])))


@app.command()
def pause(
    name: Name = "",
    *,
    why: Why = "",
    token_file: Token = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Pause a rollout: no further device is assigned anything. Installs under way go on."""
    clerk = RolloutClient.for_hub(config, state, token_file)
    view = clerk.send_action(clerk.find_rollout(name).id, "pause", {"why": why})
    _print_view(view, f"rollout {view.id} paused", as_json=as_json)


@app.command()
def resume(
    name: Name = "",
    *,
    why: Why = "",
    token_file: Token = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Resume a paused rollout."""
    clerk = RolloutClient.for_hub(config, state, token_file)
    view = clerk.send_action(clerk.find_rollout(name).id, "resume", {"why": why})
    _print_view(view, f"rollout {view.id} resumed", as_json=as_json)


@app.command()
def abort(
    name: Name = "",
    *,
    why: Why = "",
    token_file: Token = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Abort a rollout: no further assignments, and devices that have not committed go back by themselves.

    What has committed stays: `skerry rollout undo` takes it back, under a permit.
    """
    clerk = RolloutClient.for_hub(config, state, token_file)
    view = clerk.send_action(clerk.find_rollout(name).id, "abort", {"why": why})
    ended = "aborted" if view.state is RolloutState.ABORTED else "is being aborted"
    _print_view(view, f"rollout {view.id} {ended}", as_json=as_json)


@app.command()
def approve(
    name: Name = "",
    *,
    plan: Annotated[str, typer.Option("--plan", help="The digest that its status shows: what you looked at.")],
    token_file: Token = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Approve a plan as the second person: with a key of your own, not the one it was started with."""
    clerk = RolloutClient.for_hub(config, state, token_file)
    view = clerk.send_action(clerk.find_rollout(name).id, "approve", {"plan": plan})
    _print_view(view, f"rollout {view.id} approved by {len(view.approvals)} of {view.people} people", as_json=as_json)


@app.command()
def undo(
    name: Name = "",
    *,
    why: Why = "",
    to_version: Annotated[int, typer.Option("--to-version", help="Default: the version before.", min=0)] = 0,
    token_file: Token = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Revert to the version before, also on devices that have committed. Needs a permit: `skerry models permit`."""
    clerk = RolloutClient.for_hub(config, state, token_file)
    view = clerk.send_action(clerk.find_rollout(name).id, "undo", {"why": why, "to_version": to_version})
    _print_view(view, f"rollout {view.id} takes devices back, see `skerry rollout status {view.id}`", as_json=as_json)


def _watch_rollout(clerk: RolloutClient, view: RolloutView, limit_s: float | None = None, *, as_json: bool) -> None:
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
        view = clerk.read_status(view.id)


def _decode_view(found: dict[str, Any]) -> RolloutView:
    """Decode a rollout's status from JSON."""
    return msgspec.convert(found, RolloutView)


def _print_view(view: RolloutView, words: str, *, as_json: bool) -> None:
    """Print the status as JSON, or a line of text."""
    typer.echo(msgspec.json.encode(view) if as_json else words)


def _print_lines(lines: Iterable[str]) -> None:
    for each in lines:
        typer.echo(each)
