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
from cloud_hub.cli.options import QUIET, AsJson, ConfigFile, State, file_of, load_config, seconds
from cloud_hub.rollout.types import PAUSED, TERMINAL, Entry, RolloutState
from cloud_hub.rollout.view import DeviceView, View
from cloud_hub.system.client import Address, ask, running_at
from models.bundle.bundle import open_bundle
from models.bundle.manifest import BundleError
from models.signing.request import RequestError, dump_request
from wire.process.exit_codes import Exit, ExitError
from wire.process.files import write_private

_LISTS = frozenset(("waves", "lab"))


def parameters(texts: Iterable[str]) -> dict[str, Any]:
    """Parse `--set` options: `soak_s=600`, `waves=1,25%,100%`, `gate.signals.p95=2` into names with their JSON values.

    ExitError(USAGE) otherwise.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        *groups, name = key.split(".")
        if not equals or not all((*groups, name)):
            raise ExitError(Exit.USAGE, f"--set {text!r}: write NAME=VALUE")
        place = found
        for group in groups:
            inner = place.setdefault(group, {})
            if not isinstance(inner, dict):
                raise ExitError(Exit.USAGE, f"--set {text!r}: {group} is a value already")
            place = inner
        place[name] = [part.strip() for part in value.split(",")] if key in _LISTS else _value(value)
    return found


def _value(text: str) -> Any:
    """Parse a value as JSON; a word that is none is a string, so that `true`, `2` and `"x"` keep their types."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def prepared(folder: Path, config: Path | None, state: Path | None, out: Path | None = None) -> str:
    """Publish a bundle if it is not yet, copy it to the models folder if the hub has one; return its MODEL@VERSION.

    ExitError(WAITING) if the family's key is not here; the request to sign then lies in `out`, or beside the bundle.
    """
    from cloud_hub.cli.publish import open_repository  # noqa: PLC0415
    from cloud_hub.repository.publish import publish_bundle  # noqa: PLC0415 - tuf, for who names a folder

    try:
        manifest = open_bundle(folder).manifest
        published = publish_bundle(open_repository(file_of(config)), folder, datetime.now(UTC))
    except BundleError as error:
        raise ExitError(Exit.MODEL, f"{error}; name a bundle folder, or a published MODEL@VERSION") from None
    except RequestError as error:
        raise ExitError(Exit.CHECK_FAILED, str(error)) from None
    if published.request is not None:
        file = (out or folder.resolve().parent) / f"{manifest.name}-{manifest.version}.request.json"
        _write_request(file, dump_request(published.request))
        there = f"skerry keys sign {file} where the keys are, skerry models publish --finish {file} here"
        raise ExitError(Exit.WAITING, f"{manifest.model} is not signed yet: {there}, then start again")
    _lay_out(folder, load_config(config, state).models_folder, manifest.model)
    return manifest.model


def _write_request(file: Path, request: bytes) -> None:
    """Write a request to be signed. ExitError(DISK) if it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, request)
    except OSError as error:
        raise ExitError(Exit.DISK, f"{file}: {error.strerror}; name another folder with --out") from None


def _lay_out(folder: Path, models: Path | None, model: str) -> None:
    """Copy a bundle to the models folder, where the hub looks; a partial copy does not bear the model's name yet."""
    if models is None or folder.resolve().parent == models.resolve() or (models / model).exists():
        return
    scratch = models / f".{model}.{os.getpid()}"
    try:
        shutil.copytree(folder, scratch)
        scratch.rename(models / model)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise ExitError(Exit.DISK, f"{models}: {error.strerror}") from None


PATH = "/v1/admin/rollouts"
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
class Clerk:
    """Client of the running hub's rollout API.

    `address`: URL, token file and CA file of the hub; its token decides in whose name something is done.
    """

    address: Address

    @classmethod
    def of(cls, config: Path | None, state: Path | None, token: Path | None) -> "Clerk":
        """Return a client of the configured hub. ExitError(HUB) if none runs.

        `token`: file with the caller's own key.
        """
        folder = load_config(config, state).state_dir()
        address = running_at(folder.running)
        if address is None:
            raise ExitError(Exit.HUB, f"no hub runs on {folder.root}: `skerry hub run` starts it")
        return cls(Address(address.url, str(token), address.ca) if token else address)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request below `/v1/admin/rollouts` and return the JSON of the answer."""
        return ask(self.address, method, PATH + path, body)

    def all(self) -> list[View]:
        """Return every rollout, newest first."""
        return [_view(each) for each in self.ask("GET", "")["rollouts"]]

    def find(self, name: str) -> View:
        """Return the rollout of this id, start of an id, or family; "" = the newest.

        ExitError(NOT_FOUND) if there is none, ExitError(USAGE) if several begin so.
        """
        found = self.all()
        exact = [view for view in found if name in ("", view.id)] or [view for view in found if name == view.family]
        meant = exact[:1] or [view for view in found if view.id.startswith(name)]
        if len(meant) > 1:
            raise ExitError(Exit.USAGE, f"{name!r} is ambiguous: {', '.join(view.id for view in meant)}")
        if not meant:
            raise ExitError(Exit.NOT_FOUND, f"no rollout {name!r}: `skerry rollout list`" if name else "no rollout yet")
        return meant[0]

    def one(self, rollout: str) -> View:
        """Return the rollout of this id."""
        return _view(self.ask("GET", f"/{rollout}"))

    def act(self, rollout: str, verb: str, body: dict[str, Any]) -> View:
        """Send a command (`verb`) for a rollout and return its new status."""
        return _view(self.ask("POST", f"/{rollout}/{verb}", body))


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
    rules = parameters(rule or ())
    clerk = Clerk.of(config, state, token_file)
    model = bundle if "@" in bundle else prepared(Path(bundle), config, state, out)
    view = _view(clerk.ask("POST", "", {"model": model, "to": to, "back": back, "rules": rules, "id": name}))
    sizes = ", ".join(str(wave.devices) for wave in view.waves)
    _say(view, f"rollout {view.id} started: {model} to {sizes} devices, wave by wave", as_json=as_json)
    if watch:
        _watch(clerk, view, as_json=as_json)
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
    clerk = Clerk.of(config, state, token_file)
    view = clerk.find(name)
    if watch:
        _watch(clerk, view, seconds(timeout, "--timeout") if timeout else None, as_json=as_json)
    if as_json:
        typer.echo(msgspec.json.encode(view))
    else:
        _lines(rollout_text.page(view))
    if show and not as_json:
        found = clerk.ask("GET", f"/{view.id}/devices")["devices"]
        _lines(["", *rollout_text.devices(msgspec.convert(found, list[DeviceView]))])
    raise typer.Exit(rollout_text.exit_of(view))


@app.command("list")
def list_all(
    *, token_file: Token = None, config: ConfigFile = None, state: State = None, as_json: AsJson = False
) -> None:
    """List every rollout, the newest first."""
    found = Clerk.of(config, state, token_file).all()
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        _lines(rollout_text.table(found))


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
    clerk = Clerk.of(config, state, token_file)
    found = clerk.ask("GET", f"/{clerk.find(name).id}/history")["history"]
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _lines(rollout_text.history(msgspec.convert(found, list[Entry])))


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
    clerk = Clerk.of(config, state, token_file)
    view = clerk.act(clerk.find(name).id, "pause", {"why": why})
    _say(view, f"rollout {view.id} paused", as_json=as_json)


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
    clerk = Clerk.of(config, state, token_file)
    view = clerk.act(clerk.find(name).id, "resume", {"why": why})
    _say(view, f"rollout {view.id} resumed", as_json=as_json)


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
    clerk = Clerk.of(config, state, token_file)
    view = clerk.act(clerk.find(name).id, "abort", {"why": why})
    ended = "aborted" if view.state is RolloutState.ABORTED else "is being aborted"
    _say(view, f"rollout {view.id} {ended}", as_json=as_json)


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
    clerk = Clerk.of(config, state, token_file)
    view = clerk.act(clerk.find(name).id, "approve", {"plan": plan})
    _say(view, f"rollout {view.id} approved by {len(view.approvals)} of {view.people} people", as_json=as_json)


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
    clerk = Clerk.of(config, state, token_file)
    view = clerk.act(clerk.find(name).id, "undo", {"why": why, "to_version": to_version})
    _say(view, f"rollout {view.id} takes devices back, see `skerry rollout status {view.id}`", as_json=as_json)


def _watch(clerk: Clerk, view: View, limit_s: float | None = None, *, as_json: bool) -> None:
    """Print each change, and end the command once the rollout has ended, waits for a person, or the time is over.

    The hub is asked once a second. `limit_s`: seconds, None = without end; ExitError(UNFINISHED) once it is over.
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    said = ""
    while True:
        now = rollout_text.line(view)
        if now != said:
            typer.echo(msgspec.json.encode(view) if as_json else now)
            said = now
        if view.state in TERMINAL | PAUSED | {RolloutState.WAITING_APPROVAL}:
            raise typer.Exit(rollout_text.exit_of(view))
        if deadline is not None and time.monotonic() >= deadline:
            raise ExitError(Exit.UNFINISHED, f"rollout {view.id} is {view.state} after {limit_s:g} s")
        time.sleep(POLL_S)
        view = clerk.one(view.id)


def _view(found: dict[str, Any]) -> View:
    """Decode a rollout's status from JSON."""
    return msgspec.convert(found, View)


def _say(view: View, words: str, *, as_json: bool) -> None:
    """Print the status as JSON, or a line of text."""
    typer.echo(msgspec.json.encode(view) if as_json else words)


def _lines(lines: Iterable[str]) -> None:
    for each in lines:
        typer.echo(each)
