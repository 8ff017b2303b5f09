"""`skerry models publish`, `skerry policy publish`, `skerry repository ...`: commands of the hub's update repository.

Rule: a command says what it did and what a person has to do next; what needs a signature from elsewhere is a file to
carry, and nothing is served before that signature is back.
"""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table

from cloud_hub.cli.options import AsJson, ConfigFile, find_config, load_config
from cloud_hub.cli.progress import QUIET_BYTES, byte_progress
from cloud_hub.repository.publish import (
    BundleOptions,
    PublishResult,
    publish_bundle,
    publish_policy,
    revoke_published,
    unlist_target,
)
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.runtime.config import HubConfig, load_hub_config
from models.bundle.bundle import open_bundle
from models.bundle.manifest import BundleError
from models.signing.keyring import read_key_file
from models.signing.request import (
    MAX_REQUEST_BYTES,
    RequestError,
    dump_request,
    dump_state,
    is_request,
    is_state,
    load_request,
)
from models.signing.review import describe_request
from models.signing.roles import KEYS, ONLINE, SIZE_FIELD, TOP_LEVEL, is_hub_path, parse_role
from policies.language.document import PolicyError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import check_result_place, write_private_file
from wire.process.terminal import TYPER_SETTINGS, open_console, require_path

MAX_POLICY_BYTES = 1 << 20
app = typer.Typer(**TYPER_SETTINGS, help="The update repository of this hub: what devices trust and fetch.")

Out = Annotated[Path | None, typer.Option("--request", help="Where a request goes that has to be signed elsewhere.")]
T = TypeVar("T")


def models_publish(
    bundle: Annotated[
        Path | None, typer.Argument(callback=require_path, help="A bundle folder.", show_default=False)
    ] = None,
    *,
    finish: Annotated[
        Path | None, typer.Option("--finish", callback=require_path, help="A signed request: install it.")
    ] = None,
    new_interface: Annotated[
        bool,
        typer.Option("--new-interface", help="Its input, kind or labels differ from the version before, on purpose."),
    ] = False,
    request: Out = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Publish a bundle in the update repository: at once if its key is at the hub, else as a request to sign.

    Example: skerry models publish digits
    """
    if (bundle is None) == (finish is None):
        raise ExitError(ExitCode.USAGE, "give a bundle folder, or --finish and the signed request")
    repository = open_repository(config)
    if finish is not None:
        _install_request(repository, finish, as_json=as_json)
    elif bundle is not None:
        with byte_progress("check hub part") as progress:
            options = BundleOptions(new_interface, progress, _list_language_models(config))
            published = map_publish_errors(lambda: publish_bundle(repository, bundle, utc_moment(), options))
        print_published(published, request, as_json=as_json)


def policy_publish(
    file: Annotated[Path, typer.Argument(callback=require_path, help="A policy document (TOML).", show_default=False)],
    *,
    request: Out = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Publish a policy in the update repository: at once if its key is at the hub, else as a request to sign.

    Example: skerry policy publish policy.toml
    """
    document = _read_document(file)
    published = map_publish_errors(lambda: publish_policy(open_repository(config), document, utc_moment()))
    print_published(published, request, as_json=as_json)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="Where it goes; carry it to the keys.", show_default=False)],
    *,
    hold: Annotated[
        list[str] | None, typer.Option("--hold", help="Also offer a key of this hub for this role: policy, a family.")
    ] = None,
    new: Annotated[list[str] | None, typer.Option("--new", help="Offer a fresh key for this role.")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Export what `skerry keys` needs of this hub: its public signing keys and all metadata. Nothing secret.

    Example: skerry repository export hub.json
    """
    check_result_place(file, is_state)
    repository = open_repository(config)
    with repository.write_lock():
        repository.online.ensure_keys(_online_role(word) for word in hold or [])
        for word in new or []:
            repository.online.add_key(_online_role(word))
        state = repository.read_state()
    write_private_file(file, dump_state(state))
    if as_json:
        typer.echo(json.dumps({"file": str(file), "keys": sorted(state.online), "first": not state.roots}))
        return
    typer.echo(f"wrote {file}: keys of this hub for {', '.join(sorted(state.online))}")
    verb = "skerry keys init FOLDER --hub" if not state.roots else "skerry keys ... --hub"
    typer.echo(f"next  where the keys are: {verb} {file.name}")


@app.command()
def install(
    file: Annotated[
        Path, typer.Argument(callback=require_path, help="A request signed by enough keys.", show_default=False)
    ],
    *,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Install signed changes in the repository: a first root, a rotation, a bundle, a policy.

    Example: skerry repository install ring/first.json
    """
    _install_request(open_repository(config), file, as_json=as_json)


@app.command("withdraw")
def withdraw_target(
    target: Annotated[str, typer.Argument(help="Its path: models/digits/digits-7.skb.", show_default=False)],
    *,
    request: Out = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw a target: devices do not install it any longer.

    Example: skerry repository withdraw models/digits/digits-7.skb
    """
    published = map_publish_errors(lambda: unlist_target(open_repository(config), target, utc_moment()))
    print_published(published, request, as_json=as_json, verb="withdrew")


@app.command("revoke")
def revoke_target(
    target: Annotated[str, typer.Argument(help="Its path: models/digits/digits-7.skb.", show_default=False)],
    *,
    request: Out = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a target: devices that run it go back to the one before.

    Example: skerry repository revoke models/digits/digits-7.skb
    """
    published = map_publish_errors(lambda: revoke_published(open_repository(config), target, utc_moment()))
    print_published(published, request, as_json=as_json, verb="revoked")


@app.command()
def status(*, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show every role: version, expiry, who signs it. Exit code 40 if one has expired.

    Example: skerry repository status
    """
    repository = open_repository(config)
    facts = status_fields(repository, utc_moment())
    if as_json:
        typer.echo(json.dumps(facts))
    elif not facts["roles"]:
        typer.echo("no root yet: `skerry repository export hub.json`, then `skerry keys init` where the keys shall be")
    else:
        table = Table("role", "version", "valid until", "signed", "")
        for row in facts["roles"]:
            table.add_row(*(str(value) for value in row.values()))
        open_console().print(table)
        hubs = f"; hub parts: {facts['hub_parts']} of {facts['hub_bytes']:,} bytes" if facts["hub_parts"] else ""
        typer.echo(f"root {facts['root_sha256']}, {facts['targets']} targets{hubs}")
    if any(row["state"] == "expired" for row in facts["roles"]):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def status_fields(repository: Repository, now: datetime) -> dict[str, Any]:
    """Return the repository's status: `roles`, `root_sha256`, `targets` and `hub_parts` (numbers), and `hub_bytes`.

    Each role has role, version, until, signed and state ("" | `sign soon` | `expired`).
    """
    standing = repository.current_metadata()
    waning = repository.expiring_roles(now)
    state = repository.read_state()
    at_hub = {*ONLINE, *(repository.hub_signed_roles(state.targets) if state.targets else ())}
    rows = [
        {
            "role": role,
            "version": metadata.signed.version,
            "until": f"{metadata.signed.expires:%Y-%m-%d %H:%M}",
            "signed": "at the hub" if role in at_hub else "offline",
            "state": "expired" if metadata.signed.is_expired(now) else "sign soon" if role in waning else "",
        }
        for role, metadata in standing.items()
    ]
    root = repository.read_root()
    targets = [info for metadata in state.base.values() for info in metadata.signed.targets.values()]
    sizes = [int(info.custom[SIZE_FIELD]) for info in targets if is_hub_path(info.path)]
    counts = {"targets": len(targets), "hub_parts": len(sizes), "hub_bytes": sum(sizes)}
    return {"root_sha256": sha256(root).hexdigest() if root else "", **counts, "roles": rows}


def open_repository(config: Path | None) -> Repository:
    """Open the repository of the configured hub; its state folder and first signing keys are created if missing."""
    settings: HubConfig = load_hub_config(find_config(config))
    state = settings.state_dir().prepare()
    online = OnlineKeys(state.online)
    online.ensure_keys()
    return Repository(state.repository, online)


def _list_language_models(config: Path | None) -> frozenset[str]:
    return frozenset(section.name for section in load_hub_config(find_config(config)).llm)


def _install_request(repository: Repository, file: Path, *, as_json: bool) -> None:
    """Install a signed request and print what changed. ExitError(CHECK_FAILED) if it may not be installed."""
    asked = map_publish_errors(lambda: load_request(read_key_file(file, MAX_REQUEST_BYTES)))
    map_publish_errors(lambda: repository.install_request(asked, utc_moment()))
    changes, root = list(describe_request(asked)), sha256(repository.read_root()).hexdigest()
    words = "\n".join([*changes, f"installed; root {root}"])
    typer.echo(json.dumps({"changes": changes, "root_sha256": root}) if as_json else words)


def prepare_bundle(folder: Path, config: Path | None, state: Path | None, out: Path | None = None) -> str:
    """Publish a bundle if it is not yet, copy it to the models folder if the hub has one; return its MODEL@VERSION.

    No device is given anything by that. ExitError(WAITING) if the family's key is not here; the request to sign then
    lies in `out`, or beside the bundle.
    """
    try:
        manifest = open_bundle(folder).manifest
        with byte_progress("check hub part") as progress:
            options = BundleOptions(progress=progress, language_models=_list_language_models(config))
            published = publish_bundle(open_repository(config), folder, utc_moment(), options)
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
    check_result_place(file, is_request)
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
        shutil.copytree(folder, scratch, copy_function=_link_or_copy)
        scratch.rename(models / model)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise ExitError(ExitCode.DISK, f"{models}: {error.strerror}") from None


def _link_or_copy(source: str, place: str) -> None:
    """Copy a file; a large one, which holds weights, is hard-linked where that is possible."""
    try:
        if Path(source).stat().st_size >= QUIET_BYTES:
            os.link(source, place)
            return
    except OSError:  # another disk, or one without links
        Path(place).unlink(missing_ok=True)
    shutil.copy2(source, place)


def print_published(published: PublishResult, out: Path | None, *, as_json: bool, verb: str = "published") -> None:
    """Print the outcome of a publication; a request is written to its file first.

    `out`: the request's file, by default ROLE-VERSION.json; `verb`: what was done, for people.
    """
    file = None
    if published.request is not None:
        ((role, changed),) = published.request.changes.items()
        file = out or Path(f"{role}-{changed.signed.version}.json")
        check_result_place(file, is_request)
        write_private_file(file, dump_request(published.request))
    hub = published.hub
    facts = {"path": published.path, "version": published.version, "sha256": published.sha256}
    facts |= {"hub_sha256": hub.sha256, "hub_size_bytes": hub.size_bytes} if hub else {}
    beside = f"\n  with its hub part, {hub.size_bytes:,} bytes for hubs alone  sha256 {hub.sha256}" if hub else ""
    if as_json:
        typer.echo(json.dumps({**facts, "done": file is None, "request": os.fspath(file or "")}))
    elif file is None:
        said = verb if published.new else "there already:"
        typer.echo(f"{said} {published.path}  sha256 {published.sha256}{beside}")
    else:
        typer.echo(f"wrote {file}: {published.path}  sha256 {published.sha256}{beside}")
        typer.echo(f"next  where the keys are: skerry keys sign {file.name}")
        typer.echo(f"then  here: skerry models publish --finish {file}")


def _read_document(file: Path) -> bytes:
    """Read a policy document. ExitError(POLICY) if it cannot be read."""
    try:
        return read_key_file(file, MAX_POLICY_BYTES)
    except ExitError as stop:
        raise ExitError(ExitCode.POLICY, str(stop)) from None


def _online_role(word: str) -> str:
    """Return a role the hub may sign. ExitError(USAGE) for root and targets."""
    try:
        role = parse_role(word)
    except ValueError as error:
        raise ExitError(ExitCode.USAGE, str(error)) from None
    if role in TOP_LEVEL and role not in (*ONLINE, KEYS):
        raise ExitError(ExitCode.USAGE, f"{role} is never signed at a hub")
    return role


def map_publish_errors(work: Callable[[], T]) -> T:
    """Run `work`; errors of publishing become one line and the exit code of their kind."""
    try:
        return work()
    except RequestError as error:
        raise ExitError(ExitCode.CHECK_FAILED, str(error)) from None
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None
    except (PolicyError, UnicodeDecodeError) as error:
        raise ExitError(ExitCode.POLICY, str(error)) from None


def utc_moment() -> datetime:
    """Return the present time, UTC."""
    return datetime.now(UTC)
