"""`skerry hub fetch`: take a model version, bundle and hub part, from another hub's update repository."""

import json
import ssl
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from cloud_hub.cli.options import AsJson, ConfigFile, NewState, load_config
from cloud_hub.runtime.config import HubConfig
from models.cli.flags import accepts_flags
from wire.http.access import is_loopback
from wire.http.client import parse_http_url
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_text
from wire.process.terminal import require_path

_DIGEST_CHARS = 64


@dataclass(frozen=True)
class FetchFlags:
    """Arguments and options of `skerry hub fetch`."""

    model: Annotated[str, typer.Argument(help="MODEL@VERSION, as in digits@7.", show_default=False)]
    url: Annotated[
        str, typer.Option("--from", help="That hub's update repository: https://hub:8080/tuf.", show_default=False)
    ]
    root: Annotated[
        str, typer.Option("--root", help="SHA-256 of its root, the first time: `skerry repository status` there.")
    ] = ""
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", callback=require_path, help="A key of that hub with the scope operate; opens hub parts."
        ),
    ] = None
    ca: Annotated[
        Path | None, typer.Option("--ca", callback=require_path, help="PEM file of the CA that its certificate is of.")
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", callback=require_path, help="Folder of versions. Default: `models_folder`.")
    ] = None
    config: ConfigFile = None
    state: NewState = None
    as_json: AsJson = False


@accepts_flags(FetchFlags)
def fetch(flags: FetchFlags) -> None:
    """Fetch a version from another hub, both parts, into the folder this hub serves from. A cut download goes on.

    Example: skerry hub fetch digits@7 --from https://hub-1:8080/tuf
    """
    from cloud_hub.cli.progress import byte_progress  # noqa: PLC0415 - tuf, for this command alone
    from cloud_hub.repository.fetch import fetch_version  # noqa: PLC0415
    from cloud_hub.repository.source import VersionSource  # noqa: PLC0415

    settings = load_config(flags.config, flags.state)
    folder = _choose_folder(flags.out, settings)
    url = _check_url(flags.url, secret=flags.token_file is not None)
    trust = settings.state_dir().prepare().sources / sha256(url.encode()).hexdigest()[:16]
    source = VersionSource(url, trust, _read_token(flags.token_file), _make_tls_context(url, flags.ca))
    if flags.root:
        source.trust_root(_check_digest(flags.root))
    with byte_progress("fetch version") as progress:
        found = fetch_version(source, folder, flags.model, progress)
    facts = {"model": found.model, "folder": str(found.folder), "sha256": found.sha256, "new": found.new}
    facts |= {"size_bytes": found.size_bytes, "received_bytes": found.received_bytes}
    said = "fetched" if found.new else "there already:"
    sizes = f"{found.size_bytes:,} bytes, {found.received_bytes:,} of them received now"
    typer.echo(json.dumps(facts) if flags.as_json else f"{said} {found.model} in {found.folder}  {sizes}")


def _choose_folder(out: Path | None, settings: HubConfig) -> Path:
    """Return the folder of versions, which must be there. ExitError(CONFIG) if none is named, (MISSING) if not."""
    folder = out or settings.models_folder
    if folder is None:
        raise ExitError(
            ExitCode.CONFIG, "set models_folder in hub.toml to the folder this hub serves from, or use --out"
        )
    if not folder.is_dir():
        raise ExitError(ExitCode.MISSING, f"{folder}: no such folder; make it first")
    return folder


def _check_url(url: str, *, secret: bool) -> str:
    """Return the address without a slash at its end.

    ExitError(USAGE) unless it is one; with a secret to send it has to be https, or http to this machine.
    """
    try:
        where = parse_http_url(url)
    except ValueError:
        raise ExitError(ExitCode.USAGE, f"--from {url!r} is no address: https://hub:8080/tuf, for example") from None
    if secret and where.scheme == "http" and not is_loopback(where.hostname or ""):
        raise ExitError(ExitCode.USAGE, f"--from {url!r}: over http anybody on the way would read the key; use https")
    return url.rstrip("/")


def _check_digest(word: str) -> str:
    if len(word) != _DIGEST_CHARS or set(word) - set("0123456789abcdef"):
        raise ExitError(ExitCode.USAGE, f"--root {word!r}: 64 hex digits, as `skerry repository status` prints them")
    return word


def _read_token(file: Path | None) -> str:
    return read_private_text(file) if file else ""


def _make_tls_context(url: str, ca: Path | None) -> ssl.SSLContext | None:
    """Return TLS with the CAs of this machine and `ca`; None for http. ExitError(CREDENTIALS) if `ca` is none."""
    if not url.startswith("https"):
        return None
    context = ssl.create_default_context()
    try:
        if ca:
            context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise ExitError(ExitCode.CREDENTIALS, f"{ca}: {error.strerror or 'no certificate in PEM form'}") from None
    return context
