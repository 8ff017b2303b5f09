"""A migration of agent.db that is cut off: the file is of the former or of the new schema, with every row."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.storage import schema
from edge_agent.storage.schema import SCHEMA

FORMER = 3  # a schema that several migrations lie behind
STEP = 40  # virtual-machine instructions of SQLite between two kills
ROWS = 20


def make_former(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma journal_mode=wal")
        for number, text in enumerate(SCHEMA[:FORMER], 1):
            db.executescript(f"{text};pragma user_version={number};")
        db.execute("drop table ledger_1") if db.execute(
            "select 1 from sqlite_master where name='ledger_1'"
        ).fetchone() else None
        db.executemany("insert into accounts values('bytes', ?, 1)", [(day,) for day in range(ROWS)])


def migrate_until_killed(path: Path, steps: int) -> bool:
    """Migrate in a process of its own, which is killed after so many steps. True if it came to its end."""
    child = os.fork()
    if not child:  # it ends here, whatever happens: nothing of the test's process is left to run
        db = sqlite3.connect(path, isolation_level=None)
        left = [steps]

        def count() -> int:
            left[0] -= 1
            if left[0] <= 0:
                os._exit(9)
            return 0

        db.set_progress_handler(count, STEP)
        schema.migrate_schema(db, path.name)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.further
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork beside threads of the test run
def test_a_migration_killed_at_any_step_leaves_the_former_or_the_new_state(tmp_path: Path) -> None:
    former, file = tmp_path / "former.db", tmp_path / "agent.db"
    make_former(former)
    seen, steps, done = set(), 1, False
    while not done:
        for side in tmp_path.glob("agent.*"):
            side.unlink()
        shutil.copy(former, file)
        done = migrate_until_killed(file, steps)
        with closing(sqlite3.connect(file)) as db:
            seen.add(db.execute("pragma user_version").fetchone()[0])
            assert db.execute("select count(*) from accounts").fetchone()[0] == ROWS
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        opened = schema.open_connection(file)  # and the next start goes on from there
        assert opened.db.execute("pragma user_version").fetchone()[0] == len(SCHEMA)
        assert not opened.damaged
        opened.db.close()
        steps += 1
    assert seen == set(range(FORMER, len(SCHEMA) + 1))
