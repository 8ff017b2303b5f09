"""A database error is told as what it is: only a connection that failed reads as a database that does not answer."""

import inspect
import io
import json
import sqlite3
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from cloud_hub.database.errors import explain_fault, is_defect, log_fault
from wire.process.logging import JsonLog

SILENT = "does not answer"
STATEMENTS = ("IntegrityError", "DataError", "ProgrammingError", "NotSupportedError")


def list_server_errors() -> list[type[psycopg.Error]]:
    """Every error of PostgreSQL's appendix A, as the driver names it."""
    found = [each for _, each in inspect.getmembers(psycopg.errors, inspect.isclass)]
    return [each for each in found if issubclass(each, psycopg.Error) and getattr(each, "sqlstate", None)]


def wrap(error: Exception, driver: type[Exception]) -> sa.exc.SQLAlchemyError:
    wrapped = sa.exc.DBAPIError.instance("select 1", None, error, driver)
    assert isinstance(wrapped, sa.exc.SQLAlchemyError)
    return wrapped


@pytest.mark.parametrize("kind", list_server_errors(), ids=lambda kind: kind.__name__)
def test_of_a_servers_errors_only_those_of_the_connection_read_as_no_answer(kind: type[psycopg.Error]):
    error = wrap(kind("some words"), psycopg.Error)
    if is_defect(error):
        assert type(error).__name__ in STATEMENTS
        with pytest.raises(type(error)):
            explain_fault(error)
        return
    assert (SILENT in explain_fault(error)) == str(kind.sqlstate).startswith(("08", "57P"))


@pytest.mark.parametrize(
    "kind", ["OperationalError", "InternalError", "IntegrityError", "DataError", "ProgrammingError"]
)
def test_a_file_always_answers(kind: str):
    error = wrap(getattr(sqlite3, kind)("some words"), sqlite3.Error)
    assert is_defect(error) == (kind in STATEMENTS)
    if not is_defect(error):
        assert SILENT not in explain_fault(error)


@pytest.mark.parametrize("kind", [sa.exc.InvalidRequestError, sa.exc.ArgumentError, sa.exc.NoResultFound])
def test_a_wrong_use_of_the_library_is_a_defect(kind: type[sa.exc.SQLAlchemyError]):
    with pytest.raises(kind):
        explain_fault(kind("some words"))


def test_a_server_that_nobody_reaches_does_not_answer():
    assert SILENT in explain_fault(wrap(psycopg.OperationalError("connection refused"), psycopg.Error))


def log_failure(*statements: str) -> dict[str, Any]:
    """The line logged about statements of which the last fails."""
    lines, engine = io.StringIO(), sa.create_engine("sqlite://")
    with engine.connect() as connection:
        for statement in statements[:-1]:
            connection.execute(sa.text(statement))
        with pytest.raises(sa.exc.SQLAlchemyError) as caught:
            connection.execute(sa.text(statements[-1]))
    engine.dispose()
    log_fault(JsonLog(lines), "store_failed", caught.value)
    (line,) = map(json.loads, lines.getvalue().splitlines())
    assert "secret" not in lines.getvalue()
    return dict(line)


def test_a_statement_that_fails_is_logged_as_a_defect_with_its_place_and_without_its_values():
    found = log_failure("create table t (n text unique)", *("insert into t values ('secret')",) * 2)
    assert found["error"].startswith("IntegrityError@")
    assert found["frames"][0].startswith("tests/cloud_hub/database/test_errors.py:")


def test_a_database_that_does_not_do_its_work_is_logged_by_name_and_is_no_defect():
    full = "pragma max_page_count = 2", "insert into t values (zeroblob(100000))"
    found = log_failure("create table t (n blob)", *full)
    assert (found["level"], found["error"]) == ("warning", "SQLITE_FULL")
    assert "frames" not in found
