"""Table of leases: who serves which shard and does which task of a region, until when, in which term.

Rule: only the server's clock counts. Rule: a lease that has ended is never renewed, only taken again, in a higher term;
so a write under an earlier term is never mistaken for one of now (`storage.fence`). Rule: who takes passes locked rows
by: a lease whose holder is in the middle of a write is not taken before that write has ended, or was ended.
"""

import secrets
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.errors import explain_error, refuse_newer
from cloud_hub.database.parts import REGION, SERVED
from cloud_hub.database.server import list_connection_options, name_writer
from cloud_hub.database.statements import insert_missing, lock_exclusively
from cloud_hub.database.tables import leases
from policies.serving.shard_leases import SHARDS
from wire.protocol.topics import HUB_NAMES

LIFE_S = 6.0
_NOW = "cast(extract(epoch from statement_timestamp()) * 1000 as bigint)"
_COLUMNS = "kind, number, hub, session, term, since_ms, until_ms"
_LOOK = sa.text(f"select {_COLUMNS}, {_NOW} as now_ms from region.leases order by kind, number")  # noqa: S608 - as below
_MINE = {"parts": list(SERVED), "schemas": list(SERVED.values())}
# Both in one statement, at one time: what is renewed has not ended; what is taken has, or is of a hub's last life. What
# somebody else has locked waits for nobody: it is held (`kept`) until its old end.
# A program that does not serve what the region's hubs have made of a part renews and takes nothing.
_BEYOND = """select s.part, s.schema from region.schemas s
      join unnest(cast(:parts as text[]), cast(:schemas as bigint[])) as mine(part, schema) on mine.part = s.part
      where s.schema > mine.schema"""
_RENEW_AND_TAKE = sa.text(
    f"""with beyond as ({_BEYOND}), mine as (
      select kind, number from region.leases where session = :session and until_ms > {_NOW}
      and not exists (select 1 from beyond) for no key update skip locked
    ), renewed as (
      update region.leases l set until_ms = {_NOW} + :life, renewed_ms = {_NOW} from mine
      where l.kind = mine.kind and l.number = mine.number
      returning l.kind, l.number, l.hub, l.session, l.term, l.since_ms, l.until_ms
    ), kept as (
      select {_COLUMNS} from region.leases l where session = :session and until_ms > {_NOW}
      and not exists (select 1 from beyond)
      and not exists (select 1 from mine where l.kind = mine.kind and l.number = mine.number)
    ), free as (
      select l.kind, l.number from region.leases l
      join unnest(cast(:kinds as text[]), cast(:numbers as bigint[])) as wanted(kind, number)
      on l.kind = wanted.kind and l.number = wanted.number
      where (l.until_ms <= {_NOW} or (l.hub = :hub and l.session <> :session)) and not exists (select 1 from beyond)
      for update of l skip locked
    ), taken as (
      update region.leases l set hub = :hub, session = :session, stated = :session, term = l.term + 1,
      since_ms = {_NOW}, renewed_ms = {_NOW}, until_ms = {_NOW} + :life from free
      where l.kind = free.kind and l.number = free.number
      returning l.kind, l.number, l.hub, l.session, l.term, l.since_ms, l.until_ms
    ) select * from renewed union all select * from taken union all select * from kept"""  # noqa: S608 - constants of this file
)
_GIVE = sa.text(
    "with mine as (select l.kind, l.number from region.leases l "
    "join unnest(cast(:kinds as text[]), cast(:numbers as bigint[])) as given(kind, number) "
    "on l.kind = given.kind and l.number = given.number where l.session = :session for no key update of l skip locked) "
    "update region.leases l set hub = '', session = '', stated = '', until_ms = 0 from mine "
    "where l.kind = mine.kind and l.number = mine.number"
)
# Whoever is alive renews; a write under leases that have ended is of a process that is stopped or cut off.
_END_WRITES = sa.text(
    f"""select count(pg_terminate_backend(stale.pid)) from (
      select distinct a.pid from region.leases l
      join unnest(cast(:kinds as text[]), cast(:numbers as bigint[])) as wanted(kind, number)
      on l.kind = wanted.kind and l.number = wanted.number
      join pg_stat_activity a on a.application_name = :prefix || l.session and a.usename = current_user
      where l.until_ms <= {_NOW} and l.session not in ('', :session)
    ) as stale"""  # noqa: S608 - constants of this file
)


class LeaseKind(StrEnum):
    """What a lease is for: a hub's being there, a shard, or a task that one hub of the region does."""

    HUB = "hub"
    SHARD = "shard"
    TASK = "task"


class RegionTask(StrEnum):
    """Tasks that one hub of a region does for all, in the order of their numbers: a new one goes last.

    A hub that was stopped in the middle of a task and woken may do one more step of it beside its successor. That does
    no harm where the step can be done twice (retirements: an update of rows whose time is over) or where the database
    decides between two outcomes (files of keeper and rotation: `SharedFiles.sync` undoes the later one). A task that
    tells others what to do checks its term in the transaction that it writes (`storage.fence` does so for shards).

    A hub of an older release takes every lease here that is free, also of a task that it does not know: that one waits.
    """

    RETIREMENTS = "retirements"  # to end them when their time is over
    SCHEMA = "schema"  # to contract the database once no hub of an older release is there
    ROLLOUTS = "rollouts"  # to decide what devices run
    KEEPER = "keeper"  # to renew the signatures of the update repository, and to publish the hub's keys there
    ROTATION = "rotation"  # to change the hub's keys, and to destroy old ones


TASKS = tuple(RegionTask)


class LeaseId(msgspec.Struct, frozen=True, order=True):
    """Which lease. `number`: of the shard, or the place in `HUB_NAMES` or `TASKS`."""

    kind: LeaseKind
    number: int


class Lease(msgspec.Struct, frozen=True):
    """A lease as the table has it. Times in ms since 1970, by the server's clock."""

    id: LeaseId
    hub: str
    session: str
    term: int
    since_ms: int
    until_ms: int


class LeaseView(msgspec.Struct, frozen=True):
    """One look at all leases. `now_ms`: the server's clock."""

    now_ms: int
    leases: tuple[Lease, ...]

    def held(self) -> Iterator[Lease]:
        """Leases that have not ended."""
        return (lease for lease in self.leases if lease.until_ms > self.now_ms)

    def hubs(self) -> list[str]:
        """Names of the hubs that are alive and do not leave."""
        return [lease.hub for lease in self.held() if lease.id.kind is LeaseKind.HUB]

    def list_mine(self, session: str, kind: LeaseKind) -> frozenset[int]:
        """Numbers of the leases of a kind that this session holds."""
        return frozenset(each.id.number for each in self.held() if each.session == session and each.id.kind is kind)

    def list_free(self, hub: str, session: str, kind: LeaseKind) -> frozenset[int]:
        """Numbers of the leases of a kind that this process of a hub may take."""
        return frozenset(
            each.id.number
            for each in self.leases
            if each.id.kind is kind and (each.until_ms <= self.now_ms or (each.hub == hub and each.session != session))
        )


class LeaseTable:
    """The leases as one process of a hub sees them. Used by one thread at a time.

    `session`: drawn by each process, since a hub that was killed may be started again under its name. Every method
    raises SQLAlchemyError if the server cannot be asked.
    """

    def __init__(self, url: str, hub: str, life_s: float = LIFE_S) -> None:
        self.hub = hub
        self.session = secrets.token_hex(8)
        self.life_s = life_s
        self._url = url
        self._engine = sa.create_engine(
            url,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
            connect_args=list_connection_options(url),
        )

    @classmethod
    def open(cls, url: str, hub: str, life_s: float = LIFE_S) -> "LeaseTable":
        """Open the table, creating what is missing. ExitError as `open_part` says."""
        engine = open_part(url, REGION)
        try:
            with engine.begin() as connection:
                lock_exclusively(connection, "leases")
                for lease in _list_all():
                    insert_missing(connection, leases, {"kind": lease.kind.value, "number": lease.number})
        except sa.exc.DBAPIError as error:
            raise explain_error(error, url) from None
        finally:
            engine.dispose()
        return cls(url, hub, life_s)

    def close(self) -> None:
        self._engine.dispose()

    def look(self) -> LeaseView:
        """See all leases."""
        with self._engine.connect() as connection:
            rows = connection.execute(_LOOK).mappings().all()
        return LeaseView(int(rows[0]["now_ms"]), tuple(_parse_lease(row) for row in rows))

    def renew_and_take(self, wanted: Collection[LeaseId]) -> dict[LeaseId, Lease]:
        """Renew what this process holds, take those wanted that nobody holds; returns all that it holds now.

        A row that somebody has locked is not waited for: its lease is not renewed this time.
        """
        asked = {
            "hub": self.hub,
            "session": self.session,
            "life": int(self.life_s * 1000),
            **_name_ids(wanted),
            **_MINE,
        }
        with self._engine.connect() as connection:
            found = [_parse_lease(row) for row in connection.execute(_RENEW_AND_TAKE, asked).mappings()]
        return {lease.id: lease for lease in found}

    def check_served(self) -> None:
        """Check that this program serves the database. ExitError(DATABASE) if newer hubs have contracted it beyond."""
        with self._engine.connect() as connection:
            row = connection.execute(sa.text(_BEYOND + " order by 1 limit 1"), _MINE).one_or_none()
        if row is not None:
            raise refuse_newer(self._url, row.part, row.schema, SERVED[row.part])

    def end_writes(self, wanted: Collection[LeaseId]) -> int:
        """End the writes of other processes under leases that have ended; returns how many there were.

        What is ended is rolled back: its process finds its connection lost when it wakes, and its leases too.
        """
        asked = {"session": self.session, "prefix": name_writer(""), **_name_ids(wanted)}
        with self._engine.connect() as connection:
            return int(connection.execute(_END_WRITES, asked).scalar_one())

    def give(self, given: Collection[LeaseId]) -> None:
        """Give leases away; those that this process does not hold, or that somebody has locked, are left alone."""
        with self._engine.connect() as connection:
            connection.execute(_GIVE, {"session": self.session, **_name_ids(given)})


def _list_all() -> list[LeaseId]:
    sizes = {LeaseKind.HUB: len(HUB_NAMES), LeaseKind.SHARD: SHARDS, LeaseKind.TASK: len(TASKS)}
    return [LeaseId(kind, number) for kind, size in sizes.items() for number in range(size)]


def _name_ids(ids: Collection[LeaseId]) -> dict[str, list[Any]]:
    ordered = sorted(ids)
    return {"kinds": [each.kind.value for each in ordered], "numbers": [each.number for each in ordered]}


def _parse_lease(row: Any) -> Lease:
    times = {name: int(row[name]) for name in ("term", "since_ms", "until_ms")}
    return Lease(LeaseId(LeaseKind(row["kind"]), int(row["number"])), row["hub"], row["session"], **times)
