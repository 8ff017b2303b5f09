"""The install machine at the start of a process, before any model is loaded: a model on trial is counted down.

Law: a start is on disk before it is tried, so that a model that ends its process ends its trial; no hub is asked. A
disk that cannot note the start keeps the model on trial from serving.
"""

import sqlite3
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from edge_agent.install_core import InstallCore
from edge_agent.install_deeds import Deeds
from edge_agent.install_table import InstallTable
from edge_agent.install_words import CleanUp, RollBack, Row, Started, Write
from edge_agent.installed import Names, opened
from wire.rollout import InstallState


def begin(folder: Path, names: Names, core: InstallCore, now_ms: int) -> str:
    """Digest of a bundle that must not serve although it is current; "" for none. Blocks.

    ExitError(LOCKED, DISK) if the store cannot be opened.
    """
    with opened(folder) as store:
        started = Started(store.current.digest if store.current else "", store.on_trial)
    table, deeds = InstallTable(folder), Deeds(folder, names)
    commands = core.on(started, now_ms)
    noted = True
    while commands and noted:
        command, *commands = commands
        if isinstance(command, Write):
            noted = _write(table, command)
        elif isinstance(command, RollBack):
            commands += core.on(deeds.roll_back(command.target)[0], now_ms)
        elif isinstance(command, CleanUp):
            deeds.clean_up(command)
    shunned = core.row.target if not noted or core.row.state is InstallState.ROLLING_BACK else None
    return shunned.digest if shunned else ""


def excuse(folder: Path, row: Row) -> None:
    """The process ended for another reason before any model was asked: its start does not count."""
    with suppress(sqlite3.Error):
        InstallTable(folder).write(replace(row, clean=True))


def _write(table: InstallTable, command: Write) -> bool:
    try:
        table.write(command.row)
    except sqlite3.Error:
        return False
    return True
