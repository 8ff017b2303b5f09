"""Commands `skerry keys ...`: signing keys of the update repository, on a machine that needs no network.

Rule: it says what a signature will do before it asks for a passphrase, and nothing is written until all of it is made.
It needs tuf, securesystemslib, cryptography, typer and rich, and of ours only files that need no more than these.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from securesystemslib.signer import CryptoSigner

from models.cli.flags import accepts_flags
from models.signing import ceremony, review
from models.signing.contents import file_fields, folder_fields, key_names, load_trusted_root
from models.signing.keyring import Keyring, PassphrasePrompt, ScryptCost, read_key_file
from models.signing.request import (
    MAX_REQUEST_BYTES,
    RepositoryState,
    RequestError,
    SigningRequest,
    add_signatures,
    dump_request,
    encode_metadata,
    is_request,
    load_request,
    load_state,
    missing_signatures,
)
from models.signing.roles import FLEET_THRESHOLDS, ROOT, SMALL_THRESHOLDS, parse_role
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import check_result_place, write_private_file
from wire.process.terminal import TYPER_SETTINGS, open_console, require_path

app = typer.Typer(**TYPER_SETTINGS, help="Signing keys, offline.")
_SMALL = "one person decides alone: whoever gets root-1 or targets-1 and its passphrase owns every device of the fleet"
_SPREAD = """\
then  take root-2.key, root-3.key and targets-2.key to other places, each with a copy of root.json; delete them here.
      No one place may hold two root keys or both targets keys; keep one copy of every key elsewhere."""

CURRENT_FOLDER = Path()
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Options of every command that signs: where passphrases come from, and how to print."""

    passphrase_file: Annotated[
        Path | None,
        typer.Option(
            "--passphrase-file", callback=require_path, help="One passphrase for every key, instead of asking."
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; what is signed is told on stderr.")] = False

    def tell(self, line: str) -> None:
        """Print a line for the person who signs; beside JSON it goes to stderr."""
        typer.echo(line, err=self.as_json)


@dataclass(frozen=True, kw_only=True)
class InitFlags(OutputFlags):
    """Options of `init`."""

    folder: Annotated[Path, typer.Argument(help="Folder for the new keys.", show_default=False)]
    hub: Annotated[
        Path,
        typer.Option("--hub", callback=require_path, help="What `skerry repository export` wrote.", show_default=False),
    ]
    family: Annotated[list[str] | None, typer.Option("--family", help="A model family; once for each.")] = None
    small: Annotated[bool, typer.Option("--small", help="One root key and one targets key, for one person.")] = False
    memory: Annotated[
        int, typer.Option("--memory", min=16, max=1024, help="MiB of memory for each passphrase guess (scrypt).")
    ] = 128


@dataclass(frozen=True, kw_only=True)
class FolderFlags(OutputFlags):
    """Options of a command that signs with the keys of a folder."""

    folder: Annotated[Path, typer.Option("--dir", callback=require_path, help="The folder of keys.")] = CURRENT_FOLDER
    again: Annotated[
        bool, typer.Option("--again", help="Allow other content under a number that was signed before.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class SignFlags(FolderFlags):
    """Options of `sign`."""

    request: Annotated[
        Path, typer.Argument(callback=require_path, help="A request file; it is signed in place.", show_default=False)
    ]
    check: Annotated[
        list[Path] | None,
        typer.Option("--check", callback=require_path, help="A file or bundle that the request must add, by its hash."),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False


@dataclass(frozen=True, kw_only=True)
class ChangeFlags(FolderFlags):
    """Options of a command that changes the hub's repository."""

    hub: Annotated[
        Path,
        typer.Option("--hub", callback=require_path, help="What `skerry repository export` wrote.", show_default=False),
    ]


@dataclass(frozen=True, kw_only=True)
class RotateFlags(ChangeFlags):
    """Options of `rotate`."""

    roles: Annotated[list[str], typer.Argument(help="root, targets, snapshot, timestamp, keys, policy, or a family.")]
    drop: Annotated[list[str] | None, typer.Option("--drop", help="Only this key, by name; once for each.")] = None


@dataclass(frozen=True, kw_only=True)
class AddFlags(ChangeFlags):
    """Options of `add`."""

    family: Annotated[str, typer.Argument(help="Name of the new model family.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class RenewFlags(ChangeFlags):
    """Options of `renew`."""

    roles: Annotated[list[str] | None, typer.Argument(help="Default: all that are signed offline.")] = None


@app.command()
@accepts_flags(InitFlags)
def init(flags: InitFlags) -> None:
    """Create the first keys of a repository: root 1 and what it delegates. Writes first.json, which the hub installs.

    Three root keys of which two must sign and two targets keys, or one of each with --small. Exit code 22 if the folder
    holds keys already.

    Example: skerry keys init ring --hub hub.json --family digits
    """
    state = _translate_errors(lambda: load_state(_read_request_file(flags.hub)))
    ring = Keyring.create(flags.folder, ScryptCost(n=1 << (flags.memory * 1024).bit_length() - 1))
    thresholds = SMALL_THRESHOLDS if flags.small else FLEET_THRESHOLDS
    plan = ceremony.RepositoryPlan(thresholds, tuple(flags.family or ()))
    request = _translate_errors(lambda: ceremony.begin_repository(state, plan, ring.draw_public_key, _current_time()))
    signers = ring.save_keys(lambda: _ask_new_passphrase(flags.passphrase_file))
    _claim_versions(ring, request, again=False)
    add_signatures(request, signers)
    ring.keep_root(encode_metadata(request.changes[ROOT]))
    _tell_changes(request, flags)
    if flags.small:
        Console(stderr=True).print(f"[bold red]small fleet:[/bold red] {_SMALL}", soft_wrap=True)
    _write_request(flags.folder / "first.json", request, flags)
    if not flags.small:
        flags.tell(_SPREAD)


@app.command("sign")
@accepts_flags(SignFlags)
def sign_request(flags: SignFlags) -> None:
    """Show what a request changes, and sign it with the keys of this folder.

    The request is reviewed first: exit code 40 if it must not be signed, if --check finds other content, or if other
    content was signed under the same number before (see --again).

    Example: skerry keys sign digits-2.request.json --dir ring
    """
    asked = _translate_errors(lambda: load_request(_read_request_file(flags.request)))
    ring = Keyring(flags.folder)
    _translate_errors(lambda: review.check_request(asked, load_trusted_root(ring), _current_time()))
    _tell_changes(asked, flags)
    for path in flags.check or []:
        flags.tell(_check_content(asked, path))
    if not flags.yes and not typer.confirm("Sign this?", err=flags.as_json):
        raise ExitError(ExitCode.CHECK_FAILED, "not signed")
    _sign_with_keys(ring, asked, flags)
    _write_request(flags.request, asked, flags)


@app.command()
@accepts_flags(RotateFlags)
def rotate(flags: RotateFlags) -> None:
    """Replace keys that are lost, stolen or old. Without --drop: every key of the role.

    Writes rotate-ROLES.json, signed as far as the keys of this folder can; the remaining holders sign it with `sign`.

    Example: skerry keys rotate root --drop root-3 --hub hub.json --dir ring
    """
    ring, state = _open_keyring(flags)
    rotation = ceremony.KeyRotation(tuple(_parse_role_word(word) for word in flags.roles), frozenset(flags.drop or ()))
    request = _translate_errors(lambda: ceremony.rotate_keys(state, rotation, ring.draw_public_key, _current_time()))
    _review_and_sign(ring, request, flags)
    _write_request(flags.folder / f"rotate-{'-'.join(rotation.roles)}.json", request, flags)


@app.command()
@accepts_flags(AddFlags)
def add(flags: AddFlags) -> None:
    """Delegate one more model family. Writes add-FAMILY.json, a request to be signed and installed.

    Example: skerry keys add vibration --hub hub.json --dir ring
    """
    ring, state = _open_keyring(flags)
    _parse_role_word(flags.family)
    request = _translate_errors(lambda: ceremony.add_family(state, flags.family, ring.draw_public_key, _current_time()))
    _review_and_sign(ring, request, flags)
    _write_request(flags.folder / f"add-{flags.family}.json", request, flags)


@app.command()
@accepts_flags(RenewFlags)
def renew(flags: RenewFlags) -> None:
    """Renew metadata before it expires: the same content with a new expiry. Once a quarter is often enough.

    Example: skerry keys renew --hub hub.json --dir ring
    """
    ring, state = _open_keyring(flags)
    chosen = tuple(_parse_role_word(word) for word in flags.roles or ceremony.list_offline_roles(state))
    request = _translate_errors(lambda: ceremony.renew_roles(state, chosen, _current_time()))
    _review_and_sign(ring, request, flags)
    _write_request(flags.folder / "renew.json", request, flags)


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(callback=require_path, help="A folder of keys, a request, or what a hub exported.")
    ] = CURRENT_FOLDER,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show the keys of a folder and their roles, or what a request or export file holds. No passphrase needed.

    Example: skerry keys show ring
    """
    if path.is_dir():
        facts = folder_fields(Keyring(path))
    else:
        facts = _translate_errors(lambda: file_fields(_read_request_file(path)))
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for line in facts.get("changes", []):
        typer.echo(line)
    table = Table(*(facts["rows"][0] if facts["rows"] else ["nothing"]))
    for row in facts["rows"]:
        table.add_row(*map(str, row.values()))
    open_console().print(table)


def _open_keyring(flags: ChangeFlags) -> tuple[Keyring, RepositoryState]:
    """Open the folder, and the hub's state once it is known to follow from the root this folder trusts."""
    ring = Keyring(flags.folder)
    ring.key_files()
    state = _translate_errors(lambda: load_state(_read_request_file(flags.hub)))
    trusted = _translate_errors(lambda: load_trusted_root(ring))
    if trusted is None:
        raise ExitError(ExitCode.CREDENTIALS, f"{flags.folder}/root.json is missing: copy it from another folder")
    _translate_errors(lambda: review.check_state(state, trusted))
    return ring, state


def _review_and_sign(ring: Keyring, request: SigningRequest, flags: FolderFlags) -> None:
    """Review our own request by the same rules as a foreign one, print it, seal the new keys, sign."""
    _translate_errors(lambda: review.check_request(request, load_trusted_root(ring), _current_time()))
    _tell_changes(request, flags)
    for role, changed in request.changes.items():
        ring.check_claim(role, changed.signed.version, changed.signed_bytes, again=flags.again)
    fresh = ring.save_keys(lambda: _ask_new_passphrase(flags.passphrase_file))
    _sign_with_keys(ring, request, flags, fresh)


def _sign_with_keys(
    ring: Keyring, request: SigningRequest, flags: FolderFlags, fresh: Sequence[CryptoSigner] = ()
) -> None:
    """Unlock, claim, sign: a mistyped passphrase has claimed nothing.

    `fresh` keys were sealed a moment ago and need no passphrase. Prints each signature that was added, and
    keeps the newest root of the request as the one this folder trusts.
    """
    useful = frozenset[str]().union(*(missing_signatures(request, role)[0] for role in request.changes))
    known = frozenset(signer.public_key.keyid for signer in fresh)
    signers = ring.unlock_keys(useful - known, _passphrase_prompt(flags.passphrase_file))
    _claim_versions(ring, request, again=flags.again)
    add_signatures(request, fresh)
    for role, keyid in add_signatures(request, signers):
        name = next(s.public_key for s in signers if s.public_key.keyid == keyid)
        flags.tell(f"signed {role} with {review.display_name(name)}")
    if request.state.roots:
        ring.keep_root(encode_metadata(request.state.roots[-1]))


def _claim_versions(ring: Keyring, request: SigningRequest, *, again: bool) -> None:
    """Record every version of the request as signed here."""
    for role, changed in request.changes.items():
        ring.claim_version(role, changed.signed.version, changed.signed_bytes, again=again)


def _tell_changes(request: SigningRequest, flags: OutputFlags) -> None:
    """Print what signing the request does."""
    for line in review.describe_request(request):
        flags.tell(line)


def _check_content(request: SigningRequest, path: Path) -> str:
    """Check that the request adds exactly this file or version; return a line that says so. ExitError(CHECK_FAILED).

    Of a version with a hub part both halves are compared, and its weights with what the hub part says of them.
    """
    files = [info for changed in request.changes.values() for info in getattr(changed.signed, "targets", {}).values()]
    added = {str(info.hashes.get("sha256")) for info in files}
    data, hub_part = _pack_folder(path) if path.is_dir() else (_read_request_file(path), "")
    digest = sha256(data).hexdigest()
    for each in filter(None, (digest, hub_part)):
        if each not in added:
            why = f"{path}: the request adds no such content (sha256 {each}); do not sign it"
            raise ExitError(ExitCode.CHECK_FAILED, why)
    return f"checked {path}: sha256 {digest}" + (f", hub part {hub_part}" if hub_part else "")


def _pack_folder(folder: Path) -> tuple[bytes, str]:
    """Return a version's bundle as the repository would have it, and the SHA-256 of its hub part ("" = it has none).

    ExitError(MODEL) if either is not sound; weights are read once in a stream.
    """
    from models.bundle.archive import pack_bundle  # noqa: PLC0415
    from models.bundle.bundle import open_bundle  # noqa: PLC0415
    from models.bundle.hub_part import open_hub_part  # noqa: PLC0415
    from models.bundle.manifest import BundleError  # noqa: PLC0415

    try:
        bundle = open_bundle(folder)
        if bundle.manifest.hub_part:
            part = open_hub_part(folder, bundle.manifest)
            part.read_file(part.manifest.graph)
            part.verify_weights()
        return pack_bundle(bundle), bundle.manifest.hub_part
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def _write_request(path: Path, request: SigningRequest, flags: OutputFlags) -> None:
    """Write the request file and print which signatures are missing and what to do next."""
    check_result_place(path, is_request)
    write_private_file(path, dump_request(request))
    wanting = {role: missing_signatures(request, role) for role in request.changes}
    if flags.as_json:
        missing = {
            role: {"needed": needed, "by": key_names(request, role, able)} for role, (able, needed) in wanting.items()
        }
        typer.echo(
            json.dumps({"request": str(path), "missing": {role: of for role, of in missing.items() if of["needed"]}})
        )
        return
    typer.echo(f"wrote {path}")
    for role, (able, needed) in wanting.items():
        if needed:
            typer.echo(f"{role} needs {needed} more of: {', '.join(key_names(request, role, able))}")
    unfinished = any(needed for _, needed in wanting.values())
    word = f"with another key: skerry keys sign {path.name}" if unfinished else f"skerry repository install {path.name}"
    typer.echo(f"next  {'take it to the next holder of a key and sign' if unfinished else 'at the hub:'} {word}")


def _parse_role_word(word: str) -> str:
    """Parse a role as typed. ExitError(USAGE) if it is none."""
    try:
        return parse_role(word)
    except ValueError as error:
        raise ExitError(ExitCode.USAGE, str(error)) from None


def _ask_new_passphrase(passphrase_file: Path | None) -> bytes:
    """Ask for the passphrase of new keys, twice, or read it from the file."""
    if passphrase_file:
        return _read_passphrase(passphrase_file)
    return str(typer.prompt("Passphrase for the new keys", hide_input=True, confirmation_prompt=True)).encode()


def _passphrase_prompt(passphrase_file: Path | None) -> PassphrasePrompt:
    """Return the function that gives the passphrase of a key: from the file, or from the terminal."""
    if passphrase_file:
        return lambda _name: _read_passphrase(passphrase_file)
    return lambda name: str(
        typer.prompt(f"Passphrase of {name} (empty: do not use it)", default="", hide_input=True, show_default=False)
    ).encode()


def _read_passphrase(path: Path) -> bytes:
    """Read a passphrase: the first line of the file."""
    return read_key_file(path, 4096).split(b"\n", 1)[0].rstrip(b"\r")


def _read_request_file(path: Path) -> bytes:
    return read_key_file(path, MAX_REQUEST_BYTES)


def _translate_errors(work: Callable[[], T]) -> T:
    """Turn a RequestError into exit code 40 with one line."""
    try:
        return work()
    except RequestError as error:
        raise ExitError(ExitCode.CHECK_FAILED, str(error)) from None


def _current_time() -> datetime:
    return datetime.now(UTC)
