"""Bundles that failed on this device, so that they are not fetched again and again.

Law: a failure is remembered for this version of the agent alone; a newer one may try again.
"""

from pathlib import Path

from models.update.merging_floors_floors import FloorsDb

MAX_TRIES = 3  # of a bundle that ended for want of time or memory, or without a word


class Quarantine:
    """`folder`: of the floors. `agent`: our version. sqlite3.Error: the disk refuses."""

    def __init__(self, folder: Path, agent: str) -> None:
        self._folder = folder
        self._prefix = f"failed/{agent}/"

    def tries(self, path: str) -> int:
        """How often it failed."""
        with FloorsDb(self._folder) as db:
            return db.note(self._prefix + path)

    def ban(self, digest: str, until_ms: int) -> None:
        """It misbehaved while it served: not before then again."""
        with FloorsDb(self._folder) as db:
            db.keep_note(self._prefix + digest, until_ms)

    def banned(self, digest: str, now_ms: int) -> bool:
        with FloorsDb(self._folder) as db:
            return now_ms < db.note(self._prefix + digest)

    def note(self, path: str, *, hopeless: bool) -> None:
        """It failed; one that is hopeless is not tried again."""
        with FloorsDb(self._folder) as db:
            db.keep_note(self._prefix + path, MAX_TRIES if hopeless else db.note(self._prefix + path) + 1)
