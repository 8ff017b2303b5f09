"""A database error is told as what it is: only a connection that failed reads as a database that does not answer."""

import inspect
import sqlite3

import psycopg
import pytest
import sqlalchemy as sa

from cloud_hub.database.errors import explain_fault, is_defect

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
