"""What newer Pythons refuse or warn of stands nowhere, and is noticed on the oldest one too."""

import ast
import gc
import re
import sqlite3
import warnings
from pathlib import Path

import pytest

from tests import ROOT
from tests.newer_python import StrictConnection

FOLDERS = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations", "clients", "examples", "deploy")
SQL = re.compile(r"\s*(select|insert|update|delete|replace|with|create|drop|alter)\s", re.IGNORECASE)
NUMBERED = re.compile(r"\?[0-9]")
# Deprecated by 3.12 to 3.14, or gone there: what stands for it is in the documentation of each.
LEAVING = re.compile(
    r"\b(utcnow|utcfromtimestamp|get_event_loop_policy|set_event_loop_policy|(?:asyncio\.)get_event_loop"
    r"|asyncio\.iscoroutinefunction|getdefaultlocale|codecs\.open|pkg_resources|ChildWatcher|asyncore|telnetlib|audioop"
    r"|distutils|set_start_method)\b|\brmtree\([^)]*onerror="
)
# The way in which processes start differs by version (`fork`, from 3.14 on `forkserver`), so it is named at each place.
STARTS = re.compile(
    r"multiprocessing\.(Process|Pool|Queue|Pipe|Manager)\(|get_context\(\)|ProcessPoolExecutor\((?!.*mp_context)"
)


def sources() -> list[Path]:
    folders = [*(ROOT / name for name in (*FOLDERS, "benchmarks")), ROOT / "skerry.py"]
    found = [path for place in folders for path in (place.rglob("*.py") if place.is_dir() else [place])]
    return [path for path in found if "peers" not in path.parts and "node_modules" not in path.parts]


def test_no_statement_has_numbered_placeholders():
    """Python 3.12.0 to 3.12.3 warn of one that is given a sequence."""
    found = [
        f"{path.relative_to(ROOT)}: {node.value[:60]}"
        for path in sources()
        if "?" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if SQL.match(node.value) and NUMBERED.search(node.value)
    ]
    assert found == []


def test_nothing_that_the_newest_python_deprecates_is_used():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LEAVING.search(line) or STARTS.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("sql", ["select ?1", "insert into t values(?2,?1)", "select :name", "select @a", "select $b"])
def test_a_sequence_for_numbered_or_named_placeholders_is_refused_on_every_python(sql):
    db = StrictConnection(":memory:")
    with pytest.raises((sqlite3.ProgrammingError, DeprecationWarning, sqlite3.OperationalError)):
        db.execute(sql, (1, 2) if "?2" in sql else (1,))
    db.close()


def test_ordinary_statements_and_named_values_pass():
    db = StrictConnection(":memory:")
    assert db.execute("select ?, '?1 :x', \"a\" -- :y\n", (1,)).fetchone() == (1, "?1 :x", "a")
    assert db.execute("select :name", {"name": 2}).fetchone() == (2,)
    db.execute("create table t(a)")
    db.executemany("insert into t values(?)", [(1,), (2,)])
    assert db.execute("select sum(a) from t").fetchone() == (3,)
    db.close()


def test_a_connection_that_is_dropped_open_is_warned_of_on_every_python():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        StrictConnection(":memory:").close()
        assert caught == []
        dropped = StrictConnection(":memory:")
        del dropped
        gc.collect()
    assert {each.category for each in caught} == {ResourceWarning}


def test_every_connection_of_these_tests_is_judged_as_on_the_newest_python():
    db = sqlite3.connect(":memory:")
    with pytest.raises((sqlite3.ProgrammingError, DeprecationWarning)):
        db.execute("select :name", (1,))
    db.close()
