"""Statements of PostgreSQL that write many rows at once: the values of each column travel as one binary array.

Rule: such a statement is planned each time it is executed (`plan_cache_mode` in `server`), which costs little for a
whole group. A plan that was made when a table was empty reads all of it for every row, until somebody analyses it.
Rule: what is built here names our own tables and columns only (so S608 is ignored); values are parameters.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

Row = Mapping[str, Any]  # the same names in each row that is given with it
KEY = "key_"  # before the name of a column by which rows are found

_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]
_quote = _DIALECT.identifier_preparer.quote


def transpose_rows(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Values of each column."""
    return {name: [row[name] for row in rows] for name in rows[0]}


@functools.lru_cache
def build_array_insert(table: sa.Table, names: tuple[str, ...], conflict: str = "") -> str:
    """Statement that inserts rows. `conflict`: what follows, see `build_array_upsert`."""
    columns = ", ".join(map(_quote, names))
    return f"insert into {_format(table)} ({columns}) select * from {_format_source(table, names)}{conflict}"  # noqa: S608


@functools.lru_cache
def build_array_upsert(
    table: sa.Table, names: tuple[str, ...], raised: frozenset[str] = frozenset(), added: frozenset[str] = frozenset()
) -> str:
    """Statement that inserts rows whose keys differ, or changes those that are there; see `statements.write_rows`."""
    keys = [column.name for column in table.primary_key]
    changed = ", ".join(f"{_quote(name)} = {_choose(name, raised, added)}" for name in names if name not in keys)
    conflict = f" on conflict ({', '.join(map(_quote, keys))}) do update set {changed}"
    insert = build_array_insert(table, names, conflict)
    return insert.replace(_format(table), f"{_format(table)} as old", 1)


def _choose(name: str, raised: frozenset[str], added: frozenset[str]) -> str:
    old, new = f"old.{_quote(name)}", f"excluded.{_quote(name)}"
    if name in raised:
        return f"greatest({old}, {new})"
    return f"{old} + {new}" if name in added else new


@functools.lru_cache
def build_array_update(table: sa.Table, names: tuple[str, ...], unset: str) -> str:
    """Statement that changes the rows of these keys whose column `unset` is null. Names of keys begin with `KEY`."""
    changed = ", ".join(f"{_quote(name)} = new.{_quote(name)}" for name in names if not name.startswith(KEY))
    source = _format_source(table, names)
    where = f"{_match(names)} and old.{_quote(unset)} is null"
    return f"update {_format(table)} as old set {changed} from {source} where {where}"  # noqa: S608


@functools.lru_cache
def build_array_delete(table: sa.Table, names: tuple[str, ...]) -> str:
    """Statement that deletes the rows of these keys. Names of keys begin with `KEY`."""
    return f"delete from {_format(table)} as old using {_format_source(table, names)} where {_match(names)}"  # noqa: S608


def _match(names: tuple[str, ...]) -> str:
    keys = [name for name in names if name.startswith(KEY)]
    return " and ".join(f"old.{_quote(name.removeprefix(KEY))} = new.{_quote(name)}" for name in keys)


def _format(table: sa.Table) -> str:
    return _DIALECT.identifier_preparer.format_table(table)


def _format_source(table: sa.Table, names: tuple[str, ...]) -> str:
    """The arrays as rows; `%(...)b` has psycopg send them in binary."""
    arrays = (f"%({name})b::{_name_type(table.c[name.removeprefix(KEY)])}[]" for name in names)
    return f"unnest({', '.join(arrays)}) as new({', '.join(map(_quote, names))})"


def _name_type(column: sa.Column[Any]) -> str:
    """Type of a value. Texts have no length: a cast to one would cut them where the table refuses them."""
    return "text" if isinstance(column.type, sa.String) else column.type.compile(_DIALECT)
