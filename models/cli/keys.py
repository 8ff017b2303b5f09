"""Commands `skerry keys ...`: signing keys of the update repository, on a machine that needs no network.

Rule: it says what a signature will do before it asks for a passphrase, and nothing is written until all of it is made.
It needs tuf, securesystemslib, cryptography, typer and rich, and of ours only files that need no more than these.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from securesystemslib.signer import CryptoSigner, Key
from tuf.api.metadata import Metadata, Root

from models.signing import ceremony, review
from models.signing.keyring import Keyring, PassphrasePrompt, ScryptCost, read_key_file
from models.signing.request import (
    MAX_REQUEST_BYTES,
    RepositoryState,
    RequestError,
    SigningRequest,
    add_signatures,
    decode_metadata,
    dump_request,
    encode_metadata,
    load_request,
    load_state,
    missing_signatures,
)
from models.signing.roles import FLEET_THRESHOLDS, ROOT, SMALL_THRESHOLDS, parse_role
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file


def load_trusted_root(ring: Keyring) -> Metadata[Root] | None:
    """Load the newest root the folder trusts. RequestError if the file is no root."""
    data = ring.read_root()
    return decode_metadata(data, Root) if data else None


def folder_fields(ring: Keyring) -> dict[str, Any]:
    """Return what a folder of keys holds, as plain values. Reads public halves only.

    `root`: version trusted here, 0 for none. `rows`: one for each key; keys of model families are not listed in root.
    """
    trusted = load_trusted_root(ring)
    known = trusted.signed.keys if trusted else {}
    rows = [
        {"key": key.name, "for": key.role, "id": key.keyid[:8], "in root": "yes" if key.keyid in known else "-"}
        for key in ring.key_files()
    ]
    return {"root": trusted.signed.version if trusted else 0, "rows": rows}


def file_fields(data: bytes) -> dict[str, Any]:
    """Return what a file holds, as plain values. RequestError if it is neither a request nor an export.

    Of a request: what it changes and who has yet to sign. Of a hub's export: its roles.
    """
    try:
        request = load_request(data)
    except RequestError:
        state = load_state(data)
        return {"rows": [_describe_role(role, found, state) for role, found in _current_metadata(state).items()]}
    rows = []
    for role in request.changes:
        able, needed = missing_signatures(request, role)
        names = ", ".join(key_names(request, role, able))
        rows.append({"role": role, "signatures missing": needed, "by any of": names})
    return {"changes": review.describe_request(request), "rows": rows}


def key_names(request: SigningRequest, role: str, keyids: frozenset[str]) -> list[str]:
    """Return the display names of these keys of a role, sorted; what no delegator of the role lists is left out."""
    keys: dict[str, Key] = {}
    for over in request.delegators(role):
        keys |= over.keys if isinstance(over, Root) else over.delegations.keys if over.delegations else {}
    return sorted(review.display_name(keys[keyid]) for keyid in keyids if keyid in keys)


def _current_metadata(state: RepositoryState) -> dict[str, Metadata[Any]]:
    """Return the metadata of a state by role, root first."""
    return {**({ROOT: state.roots[-1]} if state.roots else {}), **state.base}


def _describe_role(role: str, metadata: Metadata[Any], state: RepositoryState) -> dict[str, Any]:
    """Describe one role of a hub's export as a row."""
    at_hub = set(metadata.signatures) <= {key.keyid for key in state.online.values()}
    return {
        "role": role,
        "version": metadata.signed.version,
        "until": f"{metadata.signed.expires:%Y-%m-%d}",
        "signed": "at the hub" if at_hub else "offline",
    }


app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help="Signing keys, offline."
)
_SMALL = "one person decides alone: whoever gets root-1 or targets-1 and its passphrase owns every device of the fleet"
_SPREAD = """\
then  take root-2.key, root-3.key and targets-2.key to other places, each with a copy of root.json; delete them here.
      No one place may hold two root keys or both targets keys; keep one copy of every key elsewhere."""

Folder = Annotated[Path, typer.Option("--dir", help="The folder of keys.")]
Hub = Annotated[Path, typer.Option("--hub", help="What `skerry repository export` wrote.", show_default=False)]
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="One passphrase for every key, instead of asking.")
]
Again = Annotated[bool, typer.Option("--again", help="Allow other content under a number that was signed before.")]
CURRENT_FOLDER = Path()
T = TypeVar("T")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the new keys.", show_default=False)],
    *,
    hub: Hub,
    family: Annotated[list[str] | None, typer.Option("--family", help="A model family; once for each.")] = None,
    small: Annotated[bool, typer.Option("--small", help="One root key and one targets key, for one person.")] = False,
    memory: Annotated[
        int, typer.Option("--memory", min=16, max=1024, help="MiB of memory for each passphrase guess (scrypt).")
    ] = 128,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Create the first keys of a repository: root 1 and what it delegates. Writes first.json, which the hub installs.

    Three root keys of which two must sign and two targets keys, or one of each with --small. Exit code 22 if the folder
    holds keys already.
    """
    state = _translate_errors(lambda: load_state(_read_request_file(hub)))
    ring = Keyring.create(folder, ScryptCost(n=1 << (memory * 1024).bit_length() - 1))
    plan = ceremony.RepositoryPlan(SMALL_THRESHOLDS if small else FLEET_THRESHOLDS, tuple(family or ()))
    request = _translate_errors(lambda: ceremony.begin_repository(state, plan, ring.draw_public_key, _current_time()))
    signers = ring.save_keys(lambda: _ask_new_passphrase(passphrase_file))
    _claim_versions(ring, request, again=False)
    add_signatures(request, signers)
    ring.keep_root(encode_metadata(request.changes[ROOT]))
    _print_changes(request)
    if small:
        Console(stderr=True).print(f"[bold red]small fleet:[/bold red] {_SMALL}", soft_wrap=True)
    _write_request(folder / "first.json", request)
    if not small:
        typer.echo(_SPREAD)


@app.command("sign")
def sign_request(
    request: Annotated[Path, typer.Argument(help="A request file; it is signed in place.", show_default=False)],
    *,
    folder: Folder = CURRENT_FOLDER,
    check: Annotated[
        list[Path] | None, typer.Option("--check", help="A file or bundle that the request must add, by its hash.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False,
    again: Again = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Show what a request changes, and sign it with the keys of this folder.

    The request is reviewed first: exit code 40 if it must not be signed, if --check finds other content, or if other
    content was signed under the same number before (see --again).
    """
    asked = _translate_errors(lambda: load_request(_read_request_file(request)))
    ring = Keyring(folder)
    _translate_errors(lambda: review.check_request(asked, load_trusted_root(ring), _current_time()))
    _print_changes(asked)
    for path in check or []:
        _check_content(asked, path)
    if not yes and not typer.confirm("Sign this?"):
        raise ExitError(ExitCode.CHECK_FAILED, "not signed")
    _sign_with_keys(ring, asked, passphrase_file, again=again)
    _write_request(request, asked)


@app.command()
def rotate(
    roles: Annotated[list[str], typer.Argument(help="root, targets, snapshot, timestamp, keys, policy, or a family.")],
    *,
    hub: Hub,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="Only this key, by name; once for each.")] = None,
    folder: Folder = CURRENT_FOLDER,
    again: Again = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Replace keys that are lost, stolen or old. Without --drop: every key of the role.

    Writes rotate-ROLES.json, signed as far as the keys of this folder can; the remaining holders sign it with `sign`.
    """
    ring, state = _open_keyring(folder, hub)
    rotation = ceremony.KeyRotation(tuple(_parse_role_word(word) for word in roles), frozenset(drop or ()))
    request = _translate_errors(lambda: ceremony.rotate_keys(state, rotation, ring.draw_public_key, _current_time()))
    _review_and_sign(ring, request, passphrase_file, again=again)
    _write_request(folder / f"rotate-{'-'.join(rotation.roles)}.json", request)


@app.command()
def add(
    family: Annotated[str, typer.Argument(help="Name of the new model family.", show_default=False)],
    *,
    hub: Hub,
    folder: Folder = CURRENT_FOLDER,
    again: Again = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Delegate one more model family. Writes add-FAMILY.json, a request to be signed and installed."""
    ring, state = _open_keyring(folder, hub)
    _parse_role_word(family)
    request = _translate_errors(lambda: ceremony.add_family(state, family, ring.draw_public_key, _current_time()))
    _review_and_sign(ring, request, passphrase_file, again=again)
    _write_request(folder / f"add-{family}.json", request)


@app.command()
def renew(
    roles: Annotated[
        list[str] | None, typer.Argument(help="Roles to renew. Default: all that are signed offline.")
    ] = None,
    *,
    hub: Hub,
    folder: Folder = CURRENT_FOLDER,
    again: Again = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Renew metadata before it expires: the same content with a new expiry. Once a quarter is often enough."""
    ring, state = _open_keyring(folder, hub)
    chosen = tuple(_parse_role_word(word) for word in roles or ceremony.list_offline_roles(state))
    request = _translate_errors(lambda: ceremony.renew_roles(state, chosen, _current_time()))
    _review_and_sign(ring, request, passphrase_file, again=again)
    _write_request(folder / "renew.json", request)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A folder of keys, a request, or what a hub exported.")] = CURRENT_FOLDER,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show the keys of a folder and their roles, or what a request or export file holds. No passphrase needed."""
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
    Console().print(table)


def _open_keyring(folder: Path, hub: Path) -> tuple[Keyring, RepositoryState]:
    """Open the folder, and the hub's state once it is known to follow from the root this folder trusts."""
    ring = Keyring(folder)
    ring.key_files()
    state = _translate_errors(lambda: load_state(_read_request_file(hub)))
    trusted = _translate_errors(lambda: load_trusted_root(ring))
    if trusted is None:
        raise ExitError(ExitCode.CREDENTIALS, f"{folder}/root.json is missing: copy it from another folder of keys")
    _translate_errors(lambda: review.check_state(state, trusted))
    return ring, state


def _review_and_sign(ring: Keyring, request: SigningRequest, passphrase_file: Path | None, *, again: bool) -> None:
    """Review our own request by the same rules as a foreign one, print it, seal the new keys, sign."""
    _translate_errors(lambda: review.check_request(request, load_trusted_root(ring), _current_time()))
    _print_changes(request)
    for role, changed in request.changes.items():
        ring.check_claim(role, changed.signed.version, changed.signed_bytes, again=again)
    fresh = ring.save_keys(lambda: _ask_new_passphrase(passphrase_file))
    _sign_with_keys(ring, request, passphrase_file, again=again, fresh=fresh)


def _sign_with_keys(
    ring: Keyring,
    request: SigningRequest,
    passphrase_file: Path | None,
    *,
    again: bool,
    fresh: Sequence[CryptoSigner] = (),
) -> None:
    """Unlock, claim, sign: a mistyped passphrase has claimed nothing.

    `fresh` keys were sealed a moment ago and need no passphrase. Prints each signature that was added, and
    keeps the newest root of the request as the one this folder trusts.
    """
    useful = frozenset[str]().union(*(missing_signatures(request, role)[0] for role in request.changes))
    known = frozenset(signer.public_key.keyid for signer in fresh)
    signers = ring.unlock_keys(useful - known, _passphrase_prompt(passphrase_file))
    _claim_versions(ring, request, again=again)
    add_signatures(request, fresh)
    for role, keyid in add_signatures(request, signers):
        name = next(s.public_key for s in signers if s.public_key.keyid == keyid)
        typer.echo(f"signed {role} with {review.display_name(name)}")
    if request.state.roots:
        ring.keep_root(encode_metadata(request.state.roots[-1]))


def _claim_versions(ring: Keyring, request: SigningRequest, *, again: bool) -> None:
    """Record every version of the request as signed here."""
    for role, changed in request.changes.items():
        ring.claim_version(role, changed.signed.version, changed.signed_bytes, again=again)


def _print_changes(request: SigningRequest) -> None:
    """Print what signing the request does."""
    for line in review.describe_request(request):
        typer.echo(line)


def _check_content(request: SigningRequest, path: Path) -> None:
    """Check that the request adds exactly this file or bundle. ExitError(CHECK_FAILED) if not."""
    data = _pack_folder(path) if path.is_dir() else _read_request_file(path)
    digest = sha256(data).hexdigest()
    files = [info for changed in request.changes.values() for info in getattr(changed.signed, "targets", {}).values()]
    if not any(info.hashes.get("sha256") == digest for info in files):
        why = f"{path}: the request adds no such content (sha256 {digest}); do not sign it"
        raise ExitError(ExitCode.CHECK_FAILED, why)
    typer.echo(f"checked {path}: sha256 {digest}")


def _pack_folder(bundle: Path) -> bytes:
    """Return the bytes of a bundle folder as the repository would have them. ExitError(MODEL) if it is not sound."""
    from models.bundle.archive import pack_bundle  # noqa: PLC0415
    from models.bundle.bundle import open_bundle  # noqa: PLC0415
    from models.bundle.manifest import BundleError  # noqa: PLC0415

    try:
        return pack_bundle(open_bundle(bundle))
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def _write_request(path: Path, request: SigningRequest) -> None:
    """Write the request file and print which signatures are missing and what to do next."""
    write_private_file(path, dump_request(request))
    wanting = {role: missing_signatures(request, role) for role in request.changes}
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
