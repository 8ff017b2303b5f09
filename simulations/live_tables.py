"""One agent.db for a whole fleet: the product's own schema with a device column, seen by one device at a time.

Law: made from the product's tables, never written beside them. A unit of work says for whom it speaks (`me`); what it
reads and writes under the usual names are views of that device's rows, so the product's statements run unchanged.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from edge_agent.tables import migrate

_PRAGMAS = (
    "pragma journal_mode=wal",
    "pragma synchronous=full",
    "pragma cache_size=-65536",
    "pragma wal_autocheckpoint=4000",
    "pragma temp_store=memory",
    "pragma busy_timeout=2000",
)
_UPSERT = re.compile(
    r"insert into (\w+)(?:\(([^)]*)\))? values\((.*?)\) on conflict\(([^)]*)\) do update set (.*)", re.DOTALL
)


class Column(NamedTuple):
    """As SQLite describes it; `key` counts the columns of the primary key from 1, 0 = not of it."""

    name: str
    kind: str
    key: int


class Table(NamedTuple):
    """One of the product's tables; `unique` and `indexes`: column names each. `counted`: its key counts by itself."""

    name: str
    columns: tuple[Column, ...]
    unique: tuple[tuple[str, ...], ...]
    indexes: tuple[tuple[str, ...], ...]
    counted: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key(self) -> tuple[str, ...]:
        keyed = sorted((column for column in self.columns if column.key), key=lambda column: column.key)
        return tuple(column.name for column in keyed)


class Shared(sqlite3.Connection):
    """`me`: the number of the device that speaks now."""

    me = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tables: dict[str, Table] = {}
        self._said: dict[str, str] = {}
        self.create_function("me", 0, lambda: self.me, deterministic=True)

    def use(self, tables: list[Table]) -> None:
        self._tables = {table.name: table for table in tables}

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        return super().execute(self._ours(sql), *rest)

    def executemany(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        return super().executemany(self._ours(sql), *rest)

    def _ours(self, sql: str) -> str:
        """SQLite upserts into no view: such a statement goes to the table itself, with the device put in."""
        said = self._said.get(sql)
        if said is None:
            said = self._said[sql] = _redirected(sql, self._tables) if " on conflict" in sql else sql
        return said


def open_shared(path: Path) -> Shared:
    """Make or open the fleet's file. sqlite3.Error if it cannot be used."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256, factory=Shared)
    path.chmod(0o600)
    tables, views = _product()
    for statement in (*_PRAGMAS, "create table if not exists devices(number integer primary key, id text unique)"):
        db.execute(statement)
    for statement in (each for table in tables for each in _made(table)):
        db.execute(statement)
    for view in views:
        db.execute(view)
    db.use(tables)
    return db


def _product() -> tuple[list[Table], list[str]]:
    """The tables of a new agent.db, and what makes its views anew, each for this connection alone."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, "memory")
        found = db.execute("select type, name, sql from sqlite_master where name not like 'sqlite_%'").fetchall()
        tables = [_table(db, name, sql) for kind, name, sql in found if kind == "table" and not name.endswith("_1")]
        views = [sql.partition(" ")[2] for kind, _, sql in found if kind == "view"]
        return tables, [f"create temp {view}" for view in views]


def _table(db: sqlite3.Connection, name: str, sql: str) -> Table:
    columns = tuple(Column(row[1], row[2], row[5]) for row in db.execute(f"pragma table_info({name})"))
    indexes: dict[str, list[tuple[str, ...]]] = {"u": [], "c": [], "pk": []}
    for _, index, _, origin, *_ in db.execute(f"pragma index_list({name})").fetchall():
        indexes[origin].append(tuple(row[2] for row in db.execute(f"pragma index_info({index})")))
    return Table(name, columns, tuple(indexes["u"]), tuple(indexes["c"]), "autoincrement" in sql.lower())


def _made(table: Table) -> Iterator[str]:
    """The fleet's table, the view that stands for the product's, and what happens where somebody writes to the view."""
    columns, name = ", ".join(table.names), table.name
    kinds = ", ".join(f"{each.name} {each.kind}" for each in table.columns if not (table.counted and each.key))
    if table.counted:
        (counter,) = table.key
        shape = f"{counter} integer primary key autoincrement, device integer not null, {kinds}"
        yield f"create table if not exists all_{name}({shape}{_unique(table)})"
        yield f"create index if not exists all_{name}_{counter} on all_{name}(device, {counter})"
    else:
        shape = f"device integer not null, {kinds}, primary key(device, {', '.join(table.key)})"
        yield f"create table if not exists all_{name}({shape}{_unique(table)}) without rowid"
    for index in table.indexes:
        yield f"create index if not exists all_{name}_{'_'.join(index)} on all_{name}(device, {', '.join(index)})"
    yield f"create temp view {name} as select {columns} from main.all_{name} where device=me()"  # noqa: S608
    yield from _triggers(table)


def _unique(table: Table) -> str:
    return "".join(f", unique(device, {', '.join(names)})" for names in table.unique)


def _triggers(table: Table) -> Iterator[str]:
    name, columns = table.name, ", ".join(table.names)
    new = ", ".join(f"new.{each}" for each in table.names)
    changed = ", ".join(f"{each}=new.{each}" for each in table.names)
    mine = " and ".join(("device=me()", *(f"{each}=old.{each}" for each in table.key)))
    acts = {
        "insert": f"insert into all_{name}(device, {columns}) values(me(), {new})",
        "update": f"update all_{name} set {changed} where {mine}",  # noqa: S608 - names of our own
        "delete": f"delete from all_{name} where {mine}",  # noqa: S608
    }
    for act, body in acts.items():
        yield f"create temp trigger {name}_{act} instead of {act} on {name} begin {body}; end"


def _redirected(sql: str, tables: dict[str, Table]) -> str:
    found = _UPSERT.fullmatch(sql.strip())
    if found is None or found[1] not in tables:
        raise ValueError(f"an upsert that the shared database does not understand: {sql[:120]}")
    name, columns, values, conflict, change = found.groups()
    columns = columns or ",".join(tables[name].names)
    return (
        f"insert into all_{name}(device,{columns}) values(me(),{values}) "
        f"on conflict(device,{conflict}) do update set {change}"
    )
