"""Recovery of an install at process start: the stored install row, and the countdown of a model on trial.

Owns the table `install`, one row, in a file of its own beside the slots. It is not in agent.db because it is read, and
counted down, before a model is loaded at start, whatever has become of agent.db.

Rule: a row is on disk, synced, when `write_row` returns. If it cannot be read there is no row, and then the store's own
mark that a bundle is on trial decides. A start is on disk before the model is tried, so that a model that crashes its
process ends its trial without any hub. A disk that cannot store the start keeps the model on trial from serving.
"""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from edge_agent.update.actions import StoreActions
from edge_agent.update.installed import RepositoryNames, open_store
from edge_agent.update.machine import InstallMachine
from edge_agent.update.types import CleanUpStore, InstallRow, ProcessStarted, RollBackModel, WriteRow
from wire.protocol.rollout import InstallState

INSTALL_FILE = "install.db"
_TABLE = (
    "create table if not exists install(one integer primary key check(one=1), state text not null, row blob not null)"
)
_WRITE = "insert into install values(1,?,?) on conflict(one) do update set state=excluded.state, row=excluded.row"


class InstallTable:
    """The table of the install row. `folder`: of the updates. Each call opens and closes the file: writes are rare."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / INSTALL_FILE

    def read_row(self) -> InstallRow:
        """The row as it was last written; a fresh one where none can be read."""
        if not self._path.exists():
            return InstallRow()
        try:
            with closing(self._open()) as db:
                found = db.execute("select row from install").fetchone()
            return msgspec.json.decode(found[0], type=InstallRow) if found else InstallRow()
        except (sqlite3.Error, msgspec.DecodeError, UnicodeDecodeError):
            return InstallRow()

    def write_row(self, row: InstallRow) -> None:
        """Write and sync the row. A file that is no database is replaced.

        Raises sqlite3.Error if the disk refuses; then the row before stands.
        """
        try:
            self._insert_row(row)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            with suppress(FileNotFoundError):
                self._path.unlink()
            self._insert_row(row)

    def _insert_row(self, row: InstallRow) -> None:
        with closing(self._open()) as db:
            db.execute(_WRITE, (row.state.value, msgspec.json.encode(row)))

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        db = sqlite3.connect(self._path, isolation_level=None, timeout=5.0)
        try:
            db.execute("pragma journal_mode=delete")
            db.execute("pragma synchronous=full")
            db.execute(_TABLE)
        except sqlite3.Error:
            db.close()
            raise
        return db


def recover_install(folder: Path, names: RepositoryNames, machine: InstallMachine, now_ms: int) -> str:
    """Resume the install machine before any model is loaded; blocks.

    Returns the digest of a bundle that must not serve although it is current, "" for none. Raises ExitError(LOCKED,
    DISK) if the store cannot be opened.
    """
    with open_store(folder) as store:
        started = ProcessStarted(store.current.digest if store.current else "", store.on_trial)
    table, actions = InstallTable(folder), StoreActions(folder, names)
    commands = machine.handle_event(started, now_ms)
    noted = True
    while commands and noted:
        command, *commands = commands
        if isinstance(command, WriteRow):
            noted = _try_write_row(table, command.row)
        elif isinstance(command, RollBackModel):
            commands += machine.handle_event(actions.roll_back(command.target)[0], now_ms)
        elif isinstance(command, CleanUpStore):
            actions.clean_up(command)
    shunned = machine.row.target if not noted or machine.row.state is InstallState.ROLLING_BACK else None
    return shunned.digest if shunned else ""


def forgive_failed_start(folder: Path, row: InstallRow) -> None:
    """Do not count this start: the process ended for another reason before any model ran."""
    with suppress(sqlite3.Error):
        InstallTable(folder).write_row(msgspec.structs.replace(row, clean=True))


def _try_write_row(table: InstallTable, row: InstallRow) -> bool:
    try:
        table.write_row(row)
    except sqlite3.Error:
        return False
    return True
