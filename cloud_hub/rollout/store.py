"""Store of rollouts: plans, heads, devices, history and assignment counters.

Rule: the only owner of these rows. A change is written if and only if the rollout still is where its writer believed
it to be (compare-and-set of the revision), together with its entries in the history; so of two hubs that decide at once
one is right and the other looks again. An entry is never changed, and a counter never sinks.
"""

from collections.abc import Iterable
from typing import Any, Self

import msgspec
import sqlalchemy as sa

from cloud_hub.database.changes import Topic, record_change
from cloud_hub.database.connection import Location, open_part, read_snapshot
from cloud_hub.database.parts import ROLLOUTS
from cloud_hub.database.statements import lock_exclusively, write_rows
from cloud_hub.database.tables import rollout_counters as counters_table
from cloud_hub.database.tables import rollout_devices, rollout_history, rollouts
from cloud_hub.rollout.types import (
    TERMINAL,
    HistoryEntry,
    RolloutChanges,
    RolloutError,
    RolloutHead,
    RolloutPlan,
    RolloutRecord,
    RolloutRow,
    RolloutState,
)
from wire.process.exit_codes import ExitCode, ExitError

_encode_json = msgspec.json.Encoder(order="deterministic").encode


class RolloutStore:
    """Reads and writes rollouts; every method is called from one thread at a time."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, where: Location) -> Self:
        """Open the tables, or create them. ExitError(DATABASE) if damaged or written by a newer version."""
        return cls(open_part(where, ROLLOUTS))

    def close(self) -> None:
        self._engine.dispose()

    # -- writing

    def create_rollout(self, record: RolloutRecord, entries: Iterable[HistoryEntry]) -> None:
        """Insert a new rollout, durable on return.

        RolloutError if its id was used, or a device is in another open one.
        """
        plan, head = record.plan, record.head
        row = {
            "id": plan.id,
            "family": plan.family,
            "made_ms": plan.made_ms,
            "changed_ms": plan.made_ms,
            "open": True,
            "revision": head.revision,
            "plan": _encode_json(plan),
            "head": _encode_json(head),
        }
        with self._engine.begin() as connection:
            # Another hub may create one on the same devices at this moment: each must see the other's.
            lock_exclusively(connection, f"rollouts of {plan.family}")
            try:
                connection.execute(rollouts.insert(), row)
            except sa.exc.IntegrityError:
                raise RolloutError("conflict", f"there was a rollout {plan.id} already: choose another id") from None
            _put_rows(connection, plan.id, record.rows)
            _put_entries(connection, plan.id, entries)
            other = _find_conflict(connection, plan)
            if other is not None:
                raise RolloutError("conflict", f"rollout {other} of {plan.family} is under way on some of them")
            record_change(connection, Topic.ROLLOUTS)

    def apply_changes(self, changes: RolloutChanges) -> bool:
        """Write changes, durable when it returns True. False: another hub was faster, nothing was written."""
        head, mine = changes.head, rollouts.c.id == changes.id
        values = {
            "revision": head.revision,
            "changed_ms": head.changed_ms,
            "open": head.state not in TERMINAL,
            "head": _encode_json(head),
        }
        with self._engine.begin() as connection:
            put = rollouts.update().where(mine, rollouts.c.revision == changes.expected).values(values)
            if connection.execute(put).rowcount != 1:
                return False
            family = connection.execute(sa.select(rollouts.c.family).where(mine)).scalar_one()
            _put_rows(connection, changes.id, changes.rows)
            _put_entries(connection, changes.id, changes.entries)
            raise_counters(connection, family, ((row.device, row.counter) for row in changes.rows if row.counter))
            record_change(connection, Topic.ROLLOUTS)
        return True

    # -- reading

    def newest_ms(self) -> int:
        """Return the latest time in the history, in ms: the lower bound of the clock."""
        with read_snapshot(self._engine) as connection:
            return int(connection.execute(sa.select(sa.func.max(rollout_history.c.at_ms))).scalar() or 0)

    def list_ids(self, since_ms: int = 0) -> list[str]:
        """Return the ids of open rollouts, and of those that changed since `since_ms`; newest first."""
        query = sa.select(rollouts.c.id).where(sa.or_(rollouts.c.open, rollouts.c.changed_ms >= since_ms))
        with read_snapshot(self._engine) as connection:
            return list(connection.execute(query.order_by(rollouts.c.made_ms.desc(), rollouts.c.id)).scalars())

    def list_revisions(self) -> dict[str, int]:
        """Return the revisions of open rollouts by id."""
        with read_snapshot(self._engine) as connection:
            found = connection.execute(sa.select(rollouts.c.id, rollouts.c.revision).where(rollouts.c.open))
            return {row.id: row.revision for row in found}

    def read_record(self, rollout: str) -> RolloutRecord | None:
        """Read a whole rollout as it is at one moment, None if unknown. ExitError(DATABASE) if it is damaged."""
        with read_snapshot(self._engine) as connection:
            found = connection.execute(rollouts.select().where(rollouts.c.id == rollout)).first()
            if found is None:
                return None
            mine = rollout_devices.c.rollout == rollout
            facts = list(connection.execute(sa.select(rollout_devices.c.facts).where(mine)).scalars())
            count = sa.select(sa.func.count()).where(rollout_history.c.rollout == rollout)
            entries = int(connection.execute(count).scalar_one())
            counters = read_counters(connection, found.family)
        try:
            plan, head = (
                msgspec.json.decode(found.plan, type=RolloutPlan),
                msgspec.json.decode(found.head, type=RolloutHead),
            )
            rows = [msgspec.json.decode(each, type=RolloutRow) for each in facts]
        except msgspec.DecodeError as error:
            raise ExitError(ExitCode.DATABASE, f"rollout {rollout} is damaged ({error}): restore rollouts.db") from None
        return RolloutRecord(plan, head, rows, counters, entries)

    def read_history(self, rollout: str) -> list[HistoryEntry]:
        """Return the history of a rollout, oldest entry first."""
        query = rollout_history.select().where(rollout_history.c.rollout == rollout).order_by(rollout_history.c.seq)
        with read_snapshot(self._engine) as connection:
            return [
                HistoryEntry(row.seq, row.at_ms, row.by, what=row.what, why=row.why, state=RolloutState(row.state))
                for row in connection.execute(query)
            ]


def _put_rows(connection: sa.Connection, rollout: str, rows: Iterable[RolloutRow]) -> None:
    facts = ({"rollout": rollout, "device": row.device, "facts": _encode_json(row)} for row in rows)
    write_rows(connection, rollout_devices, facts)


def _put_entries(connection: sa.Connection, rollout: str, entries: Iterable[HistoryEntry]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "rollout": rollout, "seq": each.seq, "at_ms": each.at_ms, "by": each.by, "what": each.what,
            "why": each.why, "state": each.state.value,
        }
        for each in entries
    ]  # fmt: skip
    if rows:
        connection.execute(rollout_history.insert(), rows)


def raise_counters(connection: sa.Connection, family: str, counters: Iterable[tuple[str, int]]) -> None:
    rows = ({"family": family, "device": device, "counter": counter} for device, counter in counters)
    write_rows(connection, counters_table, rows, raised=("counter",))


def read_counters(connection: sa.Connection, family: str) -> dict[str, int]:
    query = sa.select(counters_table.c.device, counters_table.c.counter).where(counters_table.c.family == family)
    return {row.device: row.counter for row in connection.execute(query)}


def _find_conflict(connection: sa.Connection, plan: RolloutPlan) -> str | None:
    """Another open rollout of the family that has a device of this one, or None."""
    mine, other = rollout_devices.alias("mine"), rollout_devices.alias("other")
    shared = sa.and_(other.c.device == mine.c.device, other.c.rollout != mine.c.rollout)
    joined = mine.join(other, shared).join(rollouts, rollouts.c.id == other.c.rollout)
    wanted = (mine.c.rollout == plan.id, rollouts.c.family == plan.family, rollouts.c.open)
    return connection.execute(sa.select(other.c.rollout).select_from(joined).where(*wanted).limit(1)).scalar()
