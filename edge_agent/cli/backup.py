"""Commands `skerry agent backup` and `skerry agent restore`: a device's keys, records and installed versions."""

from pathlib import Path

import typer

from edge_agent.cli.agent import (
    ConfigOption,
    NewConfigOption,
    NewStateOption,
    StateOption,
    find_config,
    find_state_folder,
    name_state_folder,
)
from wire.backup.archive import BackupKind, BackupPlan
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

MARKER = "agent.mark"  # says which database is the valid one: never that of a backup


def backup(
    file: BackupFile,
    state: StateOption = None,
    config: ConfigOption = None,
    *,
    passphrase_file: PassphraseFile = None,
    recipient: Recipient = None,
    as_json: AsJson = False,
) -> None:
    """Write one file with a device's keys, records, open questions, installed versions and configuration.

    The agent may run meanwhile. Exit code 30 if a database is damaged, 31 if there is no room; then nothing is written.

    Example: skerry agent backup cam-7.backup --config cam-7.toml
    """
    from edge_agent.identity.identity import load_identity  # noqa: PLC0415 - help needs none of it

    folder = find_state_folder(state, config)
    name = load_identity(folder).device
    plan = BackupPlan(BackupKind.AGENT, name, read_version(), folder, config=find_config(config), left_out=(MARKER,))
    run_backup(file, plan, passphrase_file, recipient, as_json=as_json)


restore_app = typer.Typer(**TYPER_SETTINGS)


@restore_app.command()
def restore(
    file: BackupSource,
    state: NewStateOption = None,
    config: NewConfigOption = None,
    *,
    passphrase_file: PassphraseFile = None,
    identity: IdentityFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Put a device's backup into its state folder, and the configuration where there is none. No agent may run on it.

    Open questions go on; new ones get numbers that the device has not used since; nothing is spent before the hub has
    told what was. Refused, with nothing changed: 30 what is damaged, of something else or of a newer version, 32 a
    folder in use, 2 one that is not empty.

    Example: skerry agent restore cam-7.backup --config cam-7.toml
    """
    request = RestoreRequest(
        file, BackupKind.AGENT, choose_secrets(passphrase_file, identity), force, report_progress()
    )
    waiting: list[int] = []
    with bring_configuration(config, request):
        folder = name_state_folder(state, config)
        restored = restore_state(request, folder, lambda staged, _: waiting.append(_prepare(staged)))
    facts = {"open": sum(waiting), "next": "start the agent; its budgets wait for the hub's word"}
    print_restored(folder, restored, facts, as_json=as_json)


def _prepare(staged: Path) -> int:
    """Check the keys and make the records fit to go on; how many questions are open. ExitError(DATABASE) otherwise."""
    from edge_agent.identity.identity import load_identity  # noqa: PLC0415 - help needs none of it
    from edge_agent.storage.restoring import prepare_restored_database  # noqa: PLC0415

    try:
        load_identity(staged)
    except ExitError as error:
        raise ExitError(ExitCode.DATABASE, f"the backup holds no device that can be used: {error}") from None
    database = staged / "agent.db"
    return prepare_restored_database(database) if database.exists() else 0
