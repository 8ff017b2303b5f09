"""Database of model usage: which device announced which model version last, and which versions are retired.

Rule: a device is written when its models change or once a day, never for each message; losing the last second of it
costs nothing, since the device says hello again.
"""

import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from cloud_hub.core.lineup import ModelUse, find_model_users
from cloud_hub.registry.device_states import DeviceLookup
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.messages import ModelRef

_TABLES = """
create table if not exists spoken (device text, name text, version integer, cut text, codec text, at_ms integer,
    primary key (device, name, version, cut, codec)) without rowid;
create table if not exists retired (model text primary key, at_ms integer) without rowid;
"""


class ModelUsageStore:
    """The tables of `versions.db`: one connection, used by one thread at a time (a lock sees to it)."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._one = threading.Lock()

    @classmethod
    def open(cls, path: Path | None) -> "ModelUsageStore":
        """Open or create the file; None = in memory. ExitError(DATABASE) if it cannot be used."""
        try:
            if path is not None:
                path.touch(0o600)
            db = sqlite3.connect(path or ":memory:", check_same_thread=False)
            db.execute("pragma journal_mode=wal")
            db.execute("pragma synchronous=normal")
            db.executescript(_TABLES)
        except (sqlite3.Error, OSError) as error:
            raise ExitError(ExitCode.DATABASE, f"{path} cannot be used ({error}): move it away") from None
        return cls(db)

    def read_uses(self) -> dict[str, ModelUse]:
        """Models used by device, with the time (hub ms) of its last recorded Hello."""
        with self._one:
            rows = self._db.execute("select device, name, version, cut, codec, at_ms from spoken").fetchall()
        found: dict[str, ModelUse] = {}
        for device, name, version, cut, codec, at_ms in rows:
            before = found.get(device, ModelUse((), 0))
            found[device] = ModelUse((*before.models, ModelRef(name, version, cut, codec)), max(at_ms, before.at_ms))
        return found

    def devices_using(self, model: str, now_ms: int, registry: DeviceLookup) -> dict[str, int]:
        """Devices that use a model; see `lineup.find_model_users`."""
        return find_model_users(self.read_uses(), model, now_ms, registry)

    def put_uses(self, speakers: Mapping[str, ModelUse]) -> None:
        """Replace the recorded models of these devices. sqlite3.Error if it cannot be written."""
        with self._one, self._db:
            self._db.executemany("delete from spoken where device=?", [(device,) for device in speakers])
            rows = [
                (device, ref.name, ref.version, ref.cut, ref.codec, speaker.at_ms)
                for device, speaker in speakers.items()
                for ref in dict.fromkeys(speaker.models)
            ]
            self._db.executemany("insert into spoken values (?,?,?,?,?,?)", rows)

    def retired_models(self) -> frozenset[str]:
        """Names of the retired versions, as `digits@7`."""
        with self._one:
            return frozenset(row[0] for row in self._db.execute("select model from retired"))

    def retire(self, model: str, at_ms: int) -> None:
        """Record a version as retired."""
        with self._one, self._db:
            self._db.execute("insert or replace into retired values (?,?)", (model, at_ms))

    def close(self) -> None:
        with self._one, closing(self._db):
            pass
