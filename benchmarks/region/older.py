"""The hub as it was before hubs could share a database, in a work tree of its own beside this checkout.

Its state is a copy of the rig's: keys as they are, the registry with the number of its schema then, since a hub refuses
what a newer program wrote.
"""

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.harness.rig import ROOT

COMMIT = "2c7bd51"  # the last one of six SQLite files and raw statements, before `cloud_hub.database`
_REGISTRY_SCHEMA = "3"


class NoHistoryError(Exception):
    """This checkout has no such commit."""


@contextmanager
def check_out(folder: Path) -> Iterator[Path]:
    """The older program's folder. NoHistoryError on a checkout without history."""
    git = ("git", "-C", str(ROOT), "worktree")
    done = subprocess.run(
        [*git, "add", "--detach", str(folder), COMMIT], capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        raise NoHistoryError(f"this checkout has no commit {COMMIT}")
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], capture_output=True, check=False)


def copy_state(root: Path, into: Path) -> Path:
    """Copy a hub's state folder, with a registry that the older program takes."""
    shutil.copytree(root, into, ignore=shutil.ignore_patterns("*.db*", "*.sock"))
    with closing(sqlite3.connect(root / "devices.db")) as source, closing(sqlite3.connect(into / "devices.db")) as copy:
        source.backup(copy)
        copy.execute("update meta set value = ? where key = 'schema'", (_REGISTRY_SCHEMA,))
        copy.commit()
    return into
