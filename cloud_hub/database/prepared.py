"""Statements of SQLite as text with question marks, which its driver prepares once and keeps.

Rule: what is built here names our own tables and columns only (so S608 is ignored); values are parameters. Those of
PostgreSQL are in `arrays`.
"""

import functools
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import dialect

_quote = dialect().identifier_preparer.quote


@functools.lru_cache
def build_row_insert(table: sa.Table, names: tuple[str, ...], conflict: str = "") -> str:
    """Statement that inserts a row of these columns. `conflict`: what follows, see `build_row_upsert`."""
    marks = ", ".join("?" * len(names))
    return f"insert into {_quote(table.name)} ({_join(names)}) values ({marks}){conflict}"  # noqa: S608


@functools.lru_cache
def build_row_upsert(table: sa.Table, names: tuple[str, ...], added: str) -> str:
    """Statement that inserts a row, or adds its column `added` to the row of its primary key that is there."""
    keys = _join(column.name for column in table.primary_key)
    changed = f"{_quote(added)} = {_quote(table.name)}.{_quote(added)} + excluded.{_quote(added)}"
    return build_row_insert(table, names, f" on conflict ({keys}) do update set {changed}")


@functools.lru_cache
def build_row_update(table: sa.Table, names: tuple[str, ...], unset: str) -> str:
    """Statement that sets these columns of the row of a primary key, which comes last, where `unset` is null."""
    changed = ", ".join(f"{_quote(name)} = ?" for name in names)
    return f"update {_quote(table.name)} set {changed} where {_match(table)} and {_quote(unset)} is null"  # noqa: S608


@functools.lru_cache
def build_row_delete(table: sa.Table) -> str:
    """Statement that deletes the row of a primary key."""
    return f"delete from {_quote(table.name)} where {_match(table)}"  # noqa: S608


def _join(names: Iterable[str]) -> str:
    return ", ".join(map(_quote, names))


def _match(table: sa.Table) -> str:
    return " and ".join(f"{_quote(column.name)} = ?" for column in table.primary_key)
