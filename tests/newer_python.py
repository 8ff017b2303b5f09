"""On an older Python, what `sqlite3` of a newer one warns of or refuses, so that no test passes on one alone.

3.12 warns of named placeholders that are given a sequence (up to 3.12.3 of numbered ones too), and 3.14 refuses them;
3.13 warns of a connection that is dropped without being closed. The tests take warnings for errors.
"""

import re
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

_NAMED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|(\?[0-9]+|[:@$][A-Za-z_]\w*)")


class StrictConnection(sqlite3.Connection):
    """A connection as the newest Python has it."""

    _open = False

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._open = True

    def close(self) -> None:
        super().close()
        self._open = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        refuse_named(sql, parameters)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        rows = list(parameters)
        refuse_named(sql, rows[0] if rows else ())
        return super().executemany(sql, rows)

    def __del__(self) -> None:
        if self._open:
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, stacklevel=1, source=self)


def refuse_named(sql: str, parameters: Any) -> None:
    """sqlite3.ProgrammingError if a statement with numbered or named placeholders is given a sequence."""
    if parameters and not isinstance(parameters, dict) and _has_named(sql):
        raise sqlite3.ProgrammingError(f"a sequence for numbered or named placeholders: {sql}")


@cache
def _has_named(sql: str) -> bool:
    return any(_NAMED.findall(sql))


def judge_as_newest() -> None:
    """Make every connection that this process opens from now on a strict one, if this Python is before 3.13."""
    if sys.version_info >= (3, 13):
        return
    plain: Callable[..., sqlite3.Connection] = sqlite3.connect

    def connect(*words: Any, **named: Any) -> sqlite3.Connection:
        return plain(*words, **{"factory": StrictConnection, **named})

    sqlite3.connect = sqlite3.dbapi2.connect = connect  # type: ignore[assignment]
