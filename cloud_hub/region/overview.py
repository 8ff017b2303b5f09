"""Which hubs a region has: who is there, since when, how late, and what each holds, as any hub of it can say.

Rule: every time is by the server's clock. Rule: leases say who serves; a hub without the lease of its being there that
holds others drains. The rows of names add what leases do not know: the release, and who took a name and serves not yet.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from cloud_hub.database.connection import connect_part
from cloud_hub.database.parts import REGION
from cloud_hub.region.lease_keeper import LOOK_S
from cloud_hub.region.leases import LIFE_S, TASKS, LeaseKind
from cloud_hub.region.releases import ALIVE_MS
from policies.serving.shard_leases import SHARDS

LATE_MS = 2000  # a hub whose renewal is overdue by more is late
GONE_SHOWN_MS = 86_400_000
_LOOK_MS = int(LOOK_S * 1000)
_NOW = "cast(extract(epoch from statement_timestamp()) * 1000 as bigint)"
# A hub of the first release writes no `renewed_ms`.
_LEASES = sa.text(
    f"""select kind, number, hub, term, since_ms, until_ms, {_NOW} as now_ms,
    case when stated = session then renewed_ms else until_ms - {int(LIFE_S * 1000)} end as renewed_ms
    from region.leases where hub <> '' and until_ms > {_NOW} - {GONE_SHOWN_MS} order by kind, number"""  # noqa: S608
)
_NAMES = sa.text(
    f"""select name, since_ms, seen_ms, case when stated = session then release else '' end as release,
    {_NOW} as now_ms from region.hubs where seen_ms > {_NOW} - {GONE_SHOWN_MS}"""  # noqa: S608 - constants of this file
)


class HubPresence(StrEnum):
    """How a hub is there."""

    STARTING = "starting"  # it has its name and holds nothing yet
    ALIVE = "alive"
    LATE = "late"  # its renewals are overdue; once its leases end it is gone
    DRAINING = "draining"  # it finishes what it has, and takes nothing more
    GONE = "gone"  # without a word; shown for a day


class HeldTask(msgspec.Struct, frozen=True):
    """A task that a hub does for its region, since when and in which term of its lease."""

    task: str
    since_ms: int
    term: int


class HubEntry(msgspec.Struct, frozen=True):
    """One hub of a region. Times in ms since 1970, by the server's clock.

    `late_ms`: by how much its last renewal is overdue; `ranges`: first and last shard of each run that it serves.
    `release`: "" if it states none.
    """

    member: str
    state: HubPresence
    since_ms: int
    seen_ms: int
    late_ms: int = 0
    shards: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    tasks: tuple[HeldTask, ...] = ()
    release: str = ""


class RegionOverview:
    """Reads the hubs of a region from its database. May be used by several threads."""

    def __init__(self, url: str) -> None:
        self._engine = connect_part(url, REGION)

    def read(self) -> tuple[HubEntry, ...]:
        """Every hub, by name, with those that are gone since a day. SQLAlchemyError if the server cannot be asked."""
        with self._engine.connect() as connection:
            names = connection.execute(_NAMES).mappings().all()
            return describe_hubs(connection.execute(_LEASES).mappings().all(), names)

    def close(self) -> None:
        self._engine.dispose()


def describe_hubs(leases: Iterable[Mapping[Any, Any]], names: Iterable[Mapping[Any, Any]]) -> tuple[HubEntry, ...]:
    """Every hub that holds a lease, has held one or has a row of its name, by name."""
    held: dict[str, list[Mapping[Any, Any]]] = {}
    for lease in leases:
        held.setdefault(lease["hub"], []).append(lease)
    rows = {row["name"]: row for row in names}
    return tuple(_describe(name, held.get(name, []), rows.get(name)) for name in sorted({*held, *rows}))


def describe_alone(member: str, since_ms: int, now_ms: int, release: str, *, draining: bool) -> HubEntry:
    """The one hub of a database that it does not share."""
    state = HubPresence.DRAINING if draining else HubPresence.ALIVE
    tasks = tuple(HeldTask(task.value, since_ms, 0) for task in TASKS)
    return HubEntry(member, state, since_ms, now_ms, 0, SHARDS, ((0, SHARDS - 1),), tasks, release)


def join_ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """First and last of each run of numbers that follow one another."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


def _describe(name: str, leases: list[Mapping[Any, Any]], row: Mapping[Any, Any] | None) -> HubEntry:
    now_ms = max(each["now_ms"] for each in (*leases, *([row] if row else [])))
    holds = [lease for lease in leases if lease["until_ms"] > now_ms]
    kinds = {lease["kind"] for lease in holds}
    own = next((lease for lease in leases if lease["kind"] == LeaseKind.HUB), None)
    renewed_ms = max((lease["renewed_ms"] for lease in leases), default=0)
    late_ms = max(0, now_ms - renewed_ms - _LOOK_MS) if holds else 0
    state = HubPresence.GONE
    if LeaseKind.HUB in kinds:
        state = HubPresence.LATE if late_ms > LATE_MS else HubPresence.ALIVE
    elif kinds:
        state = HubPresence.DRAINING
    elif row is not None and row["seen_ms"] > now_ms - ALIVE_MS:
        state = HubPresence.STARTING
    shards = [lease["number"] for lease in holds if lease["kind"] == LeaseKind.SHARD]
    tasks = [lease for lease in holds if lease["kind"] == LeaseKind.TASK and lease["number"] < len(TASKS)]
    return HubEntry(
        name,
        state,
        since_ms=own["since_ms"] if own else row["since_ms"] if row else min(each["since_ms"] for each in leases),
        seen_ms=max(renewed_ms, row["seen_ms"] if row else 0),
        late_ms=late_ms,
        shards=len(shards),
        ranges=join_ranges(shards),
        tasks=tuple(HeldTask(TASKS[each["number"]].value, each["since_ms"], each["term"]) for each in tasks),
        release=row["release"] if row else "",
    )
