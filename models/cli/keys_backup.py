"""Commands `skerry keys backup` and `skerry keys restore`: a folder of offline signing keys and what they signed."""

from pathlib import Path
from typing import Annotated

import typer

from wire.backup.archive import BackupKind, BackupManifest, BackupPlan
from wire.backup.commands import (
    AsJson,
    BackupFile,
    BackupSource,
    Force,
    IdentityFile,
    PassphraseFile,
    Recipient,
    print_restored,
    report_progress,
    run_backup,
)
from wire.backup.restoring import RestoreRequest, restore_state
from wire.backup.sealing import choose_secrets
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.packages import read_version
from wire.process.terminal import require_path

RingFolder = Annotated[Path, typer.Option("--dir", callback=require_path, help="The folder of the keys.")]
NewRingFolder = Annotated[Path, typer.Option("--dir", help="The folder of the keys.")]


def backup(
    file: BackupFile,
    folder: RingFolder = Path("ring"),
    *,
    passphrase_file: PassphraseFile = None,
    recipient: Recipient = None,
    as_json: AsJson = False,
) -> None:
    """Write one file with the keys of a folder, under their passphrases still, and the record of what they signed.

    Example: skerry keys backup ring.backup --dir ring
    """
    if not list(folder.glob("*.key")):
        raise ExitError(ExitCode.MISSING, f"{folder} holds no keys")
    plan = BackupPlan(BackupKind.KEYS, folder.name, read_version(), folder)
    run_backup(file, plan, passphrase_file, recipient, as_json=as_json)


def restore(
    file: BackupSource,
    folder: NewRingFolder = Path("ring"),
    *,
    passphrase_file: PassphraseFile = None,
    identity: IdentityFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Put a backup of keys into a folder.

    What the keys signed since is not in its record: compare with the hub (`skerry repository status`) before you sign.

    Example: skerry keys restore ring.backup --dir ring
    """
    request = RestoreRequest(file, BackupKind.KEYS, choose_secrets(passphrase_file, identity), force, report_progress())
    restored = restore_state(request, folder, _prepare)
    facts = {"keys": ", ".join(sorted(path.stem for path in folder.glob("*.key")))}
    print_restored(folder, restored, facts, as_json=as_json)


def _prepare(staged: Path, _manifest: BackupManifest) -> None:
    if not list(staged.glob("*.key")):
        raise ExitError(ExitCode.DATABASE, "the backup holds no keys")
