"""The parts of the hub's state: the file and the PostgreSQL schema of each, its schema number and migrations.

Rule: a schema only goes forward, and hubs of the release before run beside this one on the same database (ADR 0031).

How to change a schema:
- **Add** a table, or a column to a table that is there, in `tables` and nowhere else: the start adds what is missing.
  A column needs a `default` or be nullable, since the release before writes rows without it. No number changes, and
  no entry of `migrations`. Until the last hub of the release before is gone, what you added may be unwritten.
- A hub of the release before reads what you write: no new `LeaseKind`, no new value in a column whose values it knows.
- New members of `RegionTask` go last: the release before takes their leases, and does not do them, until it is gone.
- **Take away or tighten** (drop, rename, a new constraint, a new meaning) by a `Contraction`: it raises the number that
  older programs refuse, and is done once no hub is there that serves less. What it needs of old rows is its `backfill`.
  What is dropped was neither read nor written by the release that is refused last, nor by this one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from cloud_hub.database import tables as t
from cloud_hub.database.statements import is_postgres
from wire.protocol.topics import compute_shard

Migration = Callable[[sa.Connection], None]
Backfill = Callable[[sa.Connection], int]
_NINE_DAYS_MS = 9 * 86_400_000


@dataclass(frozen=True)
class Contraction:
    """What programs of the number before do not bear: it takes a part to the next number.

    `backfill`: writes a few rows that `step` needs written, in a transaction of its own; returns how many, 0 = all are.
    It finds by itself what is left, so it may be broken off, and is run again as long as older hubs write. `step` meets
    tables that this release made in their new form, too.
    """

    step: Migration
    backfill: Backfill | None = None


@dataclass(frozen=True)
class DatabasePart:
    """What belongs together: the file `file` on SQLite, the schema `name` on PostgreSQL.

    `migrations`: n-th entry takes a part from schema n + 1 to n + 2. All but `_add_shards` are of times before
    PostgreSQL, whose first schema is the newest of them; types that differ there (64-bit numbers) are the same on
    SQLite, so that its files need none for them. No more are added: what is new is an entry of `contractions`, each of
    which takes a part one number further (see `contraction`). `durable` False: the last second may be lost.
    """

    name: str
    file: str
    migrations: tuple[Migration, ...] = ()
    durable: bool = True
    contractions: tuple[Contraction, ...] = ()

    @property
    def schema(self) -> int:
        """The least schema number that this program serves; what is below is migrated at the start."""
        return 1 + len(self.migrations)

    @property
    def newest(self) -> int:
        """The highest schema number that this program serves, and the one of a new database."""
        return self.schema + len(self.contractions)

    @property
    def tables(self) -> list[sa.Table]:
        """The part's tables, `meta` among them."""
        return t.tables_of(self.name)


def _add_retention(connection: sa.Connection) -> None:
    """Add retention and subject columns; existing verdicts are kept for nine days, as rows were until then."""
    connection.exec_driver_sql("alter table effects add column keep_until_ms bigint not null default 0")
    connection.exec_driver_sql("alter table effects add column subject blob")
    connection.execute(t.effects.update().values(keep_until_ms=t.effects.c.kept_ms + _NINE_DAYS_MS))
    connection.exec_driver_sql("create index effects_keep_until on effects (keep_until_ms)")
    connection.exec_driver_sql("create index effects_subject on effects (device, subject)")


def _add_shards(connection: sa.Connection) -> None:
    """Add the shard of each question's device: hubs that share a database read and write by shard."""
    for table in (t.effects, t.sealed):
        name = f"{table.schema}.{table.name}" if is_postgres(connection) else table.name
        connection.exec_driver_sql(f"alter table {name} add column shard bigint not null default 0")
        devices = connection.execute(sa.select(table.c.device).distinct()).scalars().all()
        if devices:
            moved = table.update().where(table.c.device == sa.bindparam("of")).values(shard=sa.bindparam("its"))
            connection.execute(moved, [{"of": device, "its": compute_shard(device)} for device in devices])


def _add_life_cycle(connection: sa.Connection) -> None:
    for column in ("why", "authority", "hardware", "ledger"):
        connection.exec_driver_sql(f"alter table devices add column {column} text not null default ''")
    connection.exec_driver_sql("alter table devices add column retire_at_ms integer not null default 0")
    connection.exec_driver_sql("alter table invites add column hardware text not null default ''")
    connection.exec_driver_sql("alter table invites add column replace integer not null default 0")


def _add_class_and_region(connection: sa.Connection) -> None:
    for table in ("devices", "invites"):
        for column in ("device_class", "region"):
            connection.exec_driver_sql(f"alter table {table} add column {column} text not null default ''")


def _add_orders(_connection: sa.Connection) -> None:
    """Standing orders came to the devices; the tables are made as every missing one is.

    The number rises so that an older program, which would not obey them, refuses the database.
    """


def _close_leases(connection: sa.Connection) -> None:
    """Let nobody hold a lease who does not state it in `stated` too, as hubs before schema 2 do not.

    Such a hub that was cut off for long, and comes back, takes nothing and serves nothing.
    """
    ended = t.leases.c.stated != t.leases.c.session
    connection.execute(t.leases.update().where(ended).values(hub="", session="", stated=""))
    connection.exec_driver_sql(
        "alter table region.leases drop constraint if exists leases_stated, "
        "add constraint leases_stated check (stated = session)"
    )


QUESTIONS = DatabasePart(t.QUESTIONS, "hub.db", (_add_retention, _add_shards))
REGISTRY = DatabasePart(t.REGISTRY, "devices.db", (_add_life_cycle, _add_class_and_region, _add_orders))
ACCESS = DatabasePart(t.ACCESS, "access.db")
LEDGER = DatabasePart(t.LEDGER, "ledger.db")
VERSIONS = DatabasePart(t.VERSIONS, "versions.db", durable=False)
ROLLOUTS = DatabasePart(t.ROLLOUTS, "rollouts.db")
PARTS = (QUESTIONS, REGISTRY, ACCESS, LEDGER, VERSIONS, ROLLOUTS)
# Of hubs that share a server; a hub with files is its region's only one.
REGION = DatabasePart(t.REGION, "", contractions=(Contraction(_close_leases),))
ALL_PARTS = (*PARTS, REGION)
SERVED = {part.name: part.newest for part in ALL_PARTS}


@dataclass(frozen=True)
class DatabaseUrls:
    """Where the state of a hub is: the SQLAlchemy URL of each part. `server` "" = SQLite files in `folder`."""

    folder: Path
    server: str = ""

    def url_of(self, part: DatabasePart) -> str:
        """SQLAlchemy URL of a part; of one server all parts have the same."""
        return self.server or sqlite_url(self.folder / part.file)

    def items(self) -> Iterator[tuple[DatabasePart, str]]:
        """Every part with its URL."""
        return ((part, self.url_of(part)) for part in PARTS)

    @property
    def questions(self) -> str:
        return self.url_of(QUESTIONS)

    @property
    def registry(self) -> str:
        return self.url_of(REGISTRY)

    @property
    def access(self) -> str:
        return self.url_of(ACCESS)

    @property
    def ledger(self) -> str:
        return self.url_of(LEDGER)

    @property
    def versions(self) -> str:
        return self.url_of(VERSIONS)

    @property
    def rollouts(self) -> str:
        return self.url_of(ROLLOUTS)


def sqlite_url(path: Path) -> str:
    """SQLAlchemy URL of an SQLite file."""
    return sa.URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
