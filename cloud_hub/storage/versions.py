"""Store of model usage: which device announced which model version last, and which versions are retired.

Rule: a device is written when its models change or once a day, never for each message; losing the last second of it
costs nothing, since the device says hello again.
"""

import threading
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from cloud_hub.core.lineup import ModelUse, find_model_users
from cloud_hub.database.changes import Topic, record_change
from cloud_hub.database.connection import IN_MEMORY, Location, open_part, read_snapshot
from cloud_hub.database.parts import VERSIONS
from cloud_hub.database.statements import lock_exclusively, write_rows
from cloud_hub.database.tables import retired, spoken
from cloud_hub.registry.device_states import DeviceLookup
from wire.protocol.messages import ModelRef


class ModelUsageStore:
    """Which models devices use, in the hub's database: used by one thread at a time (a lock sees to it)."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._one = threading.Lock()

    @classmethod
    def open(cls, where: Location | None) -> "ModelUsageStore":
        """Open or create the tables; None = in memory. ExitError(DATABASE) if they cannot be used."""
        return cls(open_part(IN_MEMORY if where is None else where, VERSIONS))

    def read_uses(self) -> dict[str, ModelUse]:
        """Models used by device, with the time (hub ms) of its last recorded Hello."""
        with self._one, read_snapshot(self._engine) as connection:
            return read_uses(connection)

    def devices_using(self, model: str, now_ms: int, registry: DeviceLookup) -> dict[str, int]:
        """Devices that use a model; see `lineup.find_model_users`."""
        return find_model_users(self.read_uses(), model, now_ms, registry)

    def put_uses(self, speakers: Mapping[str, ModelUse]) -> None:
        """Replace the recorded models of these devices. SQLAlchemyError if they cannot be written."""
        if not speakers:
            return
        rows = [_use_row(device, ref, use.at_ms) for device, use in speakers.items() for ref in use.models]
        gone = spoken.delete().where(spoken.c.device == sa.bindparam("named"))
        with self._one, self._engine.begin() as connection:
            lock_exclusively(connection, "spoken")  # else what two hubs write of one device would both remain
            connection.execute(gone, [{"named": device} for device in sorted(speakers)])
            write_rows(connection, spoken, rows)
            record_change(connection, Topic.USES, speakers)

    def retired_models(self) -> frozenset[str]:
        """Names of the retired versions, as `digits@7`."""
        with self._one, read_snapshot(self._engine) as connection:
            return read_retired(connection)

    def retire(self, model: str, at_ms: int) -> None:
        """Record a version as retired."""
        with self._one, self._engine.begin() as connection:
            write_rows(connection, retired, [{"model": model, "at_ms": at_ms}])
            record_change(connection, Topic.MODELS, (model,))

    def close(self) -> None:
        with self._one:
            self._engine.dispose()


def read_uses(connection: sa.Connection, devices: Collection[str] | None = None) -> dict[str, ModelUse]:
    """Models used by these devices, or by all; those that announced none are left out."""
    query = spoken.select() if devices is None else spoken.select().where(spoken.c.device.in_(devices))
    found: dict[str, ModelUse] = {}
    for row in connection.execute(query.order_by(*spoken.primary_key)):
        before = found.get(row.device, ModelUse((), 0))
        model = ModelRef(row.name, row.version, row.cut, row.codec)
        found[row.device] = ModelUse((*before.models, model), max(row.at_ms, before.at_ms))
    return found


def read_retired(connection: sa.Connection, models: Collection[str] | None = None) -> frozenset[str]:
    """Which of these versions are retired, or all that are."""
    query = sa.select(retired.c.model)
    return frozenset(
        connection.execute(query if models is None else query.where(retired.c.model.in_(models))).scalars()
    )


def _use_row(device: str, ref: ModelRef, at_ms: int) -> dict[str, Any]:
    named = {"name": ref.name, "version": ref.version, "cut": ref.cut, "codec": ref.codec}
    return {"device": device, **named, "at_ms": at_ms}
