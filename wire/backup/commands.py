"""What the commands of all backups share: their options, and what they say when they are done."""

import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from wire.backup.archive import BackupPlan, BackupResult, ProgressReport, write_backup
from wire.backup.restoring import RestoredState, RestoreRequest, read_configuration
from wire.backup.sealing import choose_seal
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import require_path

_SAY_EVERY_S = 2.0
BackupFile = Annotated[Path, typer.Argument(help="The backup, one file.", show_default=False)]
BackupSource = Annotated[Path, typer.Argument(callback=require_path, help="The backup, one file.", show_default=False)]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        callback=require_path,
        help="Seal under, or open with, its first line; - asks.",
        show_default=False,
    ),
]
Recipient = Annotated[
    Path | None,
    typer.Option(
        "--recipient", callback=require_path, help="Seal to this X25519 public key, in PEM.", show_default=False
    ),
]
IdentityFile = Annotated[
    Path | None,
    typer.Option(
        "--identity", callback=require_path, help="The recipient's private key, in PEM, mode 0600.", show_default=False
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Put aside what is in the folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def run_backup(
    target: Path, plan: BackupPlan, passphrase: Path | None, recipient: Path | None, *, as_json: bool
) -> None:
    """Write a backup and say what it is. ExitError as `write_backup` says."""
    seal = choose_seal(passphrase, recipient)
    result = write_backup(target, plan._replace(report=report_progress()), seal, int(time.time() * 1000))
    facts = describe_backup(target, result)
    if as_json:
        typer.echo(json.dumps({**facts, "sealed": seal is not None}))
        return
    typer.echo(f"backup  {target}: {facts['files']} files of {plan.name}, {result.size:,} bytes")
    typer.echo("sealed  yes" if seal else "sealed  no: keys are in it; keep it like a key, or seal it (--recipient)")
    for told in plan.notes.values():
        typer.echo(f"note    {told}")


def report_progress() -> ProgressReport:
    """Say on standard error how far a large backup is, about every two seconds."""
    said_at, copied = time.monotonic(), 0

    def report(size: int) -> None:
        nonlocal said_at, copied
        copied += size
        if time.monotonic() - said_at >= _SAY_EVERY_S:
            said_at = time.monotonic()
            typer.echo(f"{copied / 1e6:,.0f} MB", err=True)

    return report


def describe_backup(target: Path, result: BackupResult) -> dict[str, Any]:
    """What a program wants to know of a backup."""
    manifest = result.manifest
    return {
        "backup": str(target), "kind": manifest.kind, "name": manifest.name, "files": len(manifest.files),
        "bytes": result.size, "created_ms": manifest.created_ms, "notes": manifest.notes,
    }  # fmt: skip


def print_restored(folder: Path, restored: RestoredState, facts: dict[str, Any], *, as_json: bool) -> None:
    """Say what was restored, and what is to be known of it. `facts`: of the owner, by a word each."""
    manifest, aside = restored
    if as_json:
        known = {"state": str(folder), "kind": manifest.kind, "name": manifest.name, "created_ms": manifest.created_ms}
        typer.echo(json.dumps({**known, "aside": str(aside) if aside else None, "notes": manifest.notes, **facts}))
        return
    when = datetime.fromtimestamp(manifest.created_ms / 1000, UTC)
    typer.echo(f"restored  {manifest.name} into {folder}, as of {when:%Y-%m-%d %H:%M:%S} UTC")
    for word, fact in facts.items():
        typer.echo(f"{word:<8}  {fact}")
    for told in manifest.notes.values():
        typer.echo(f"note      {told}")
    if aside:
        typer.echo(f"aside     {aside}: what was there; delete it once all is well")


@contextlib.contextmanager
def bring_configuration(config: Path | None, request: RestoreRequest) -> Iterator[None]:
    """Write the backup's configuration where `config` names a file that is not there; taken away if the block fails."""
    if config is None or config.exists():
        yield
        return
    _write_configuration(config, read_configuration(request))
    try:
        yield
    except ExitError:
        config.unlink(missing_ok=True)
        raise


def _write_configuration(file: Path, text: bytes) -> None:
    """Write the configuration of a backup. ExitError(CONFIG) if the backup has none."""
    if not text:
        raise ExitError(ExitCode.CONFIG, f"{file} is not there, and the backup holds none: write it first")
    try:
        file.write_bytes(text)
        file.chmod(0o600)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{file}: {error.strerror}") from None
