"""Commands `skerry hub backup` and `skerry hub restore`: a hub's databases, keys, authority and update repository."""

from datetime import UTC, datetime
from pathlib import Path

import typer

from cloud_hub.cli.options import ConfigFile, NewConfigFile, NewState, State, find_config, load_config
from wire.backup.archive import BackupKind, BackupManifest, BackupPlan
from wire.backup.commands import (
    AsJson,
    BackupFile,
    BackupSource,
    Force,
    IdentityFile,
    PassphraseFile,
    Recipient,
    bring_configuration,
    print_restored,
    report_progress,
    run_backup,
)
from wire.backup.restoring import RestoreRequest, restore_state
from wire.backup.sealing import choose_secrets
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.packages import read_version
from wire.process.terminal import TYPER_SETTINGS

_ON_SERVER = "database"  # the note of a hub whose databases are on a server
_MADE_ANEW = ("broker", "sessions.json")


def backup(
    file: BackupFile,
    *,
    config: ConfigFile = None,
    state: State = None,
    passphrase_file: PassphraseFile = None,
    recipient: Recipient = None,
    as_json: AsJson = False,
) -> None:
    """Write one file with a hub's databases, keys, authority, update repository and configuration.

    The hub may run meanwhile. Exit code 30 if a database is damaged, 31 if there is no room; then nothing is written.

    Example: skerry hub backup hub.backup --config hub.toml
    """
    settings = load_config(config, state)
    folder = settings.state_dir().root
    if not settings.state_dir().keys.is_dir():
        raise ExitError(ExitCode.MISSING, f"{folder}: no such folder, or no hub has its state in it")
    notes = {_ON_SERVER: "its databases are on a server and not in it: pg_dump them"} if settings.store.url else {}
    plan = BackupPlan(
        BackupKind.HUB, settings.hub.name, read_version(), folder, config=find_config(config), left_out=_MADE_ANEW,
        notes=notes,
    )  # fmt: skip
    run_backup(file, plan, passphrase_file, recipient, as_json=as_json)


restore_app = typer.Typer(**TYPER_SETTINGS)


@restore_app.command()
def restore(
    file: BackupSource,
    *,
    config: NewConfigFile = None,
    state: NewState = None,
    passphrase_file: PassphraseFile = None,
    identity: IdentityFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Put a hub's backup into its state folder, and the configuration where there is none. No hub may run on it.

    Devices send again what it does not know any more. Devices that were revoked since, and tenants' keys, are as in the
    backup: revoke them again. Refused, with nothing changed: 30 what is damaged, of something else or of a newer
    version, 32 a folder in use, 2 one that is not empty.

    Example: skerry hub restore hub.backup --config hub.toml
    """
    request = RestoreRequest(file, BackupKind.HUB, choose_secrets(passphrase_file, identity), force, report_progress())
    with bring_configuration(config, request):
        folder = load_config(config, state).state_dir().root
        restored = restore_state(request, folder, _prepare)
    facts = {"again": "what was revoked, retired or denied since the backup", "next": "skerry hub run"}
    print_restored(folder, restored, facts, as_json=as_json)


def _prepare(staged: Path, manifest: BackupManifest) -> None:
    from cloud_hub.runtime.restoring import prepare_restored_hub  # noqa: PLC0415 - help needs none of it

    prepare_restored_hub(staged, datetime.now(UTC), on_server=_ON_SERVER in manifest.notes)
