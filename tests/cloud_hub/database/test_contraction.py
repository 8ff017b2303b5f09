"""From one schema number to the next while hubs are there: backfill, contraction, and who has to be gone before."""

import dataclasses

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.contraction import add_indexes, contract_part, read_number
from cloud_hub.database.parts import LEDGER, Contraction, DatabasePart, DatabaseUrls
from cloud_hub.database.tables import spend
from wire.process.exit_codes import ExitCode, ExitError

ROWS, AT_ONCE = 10, 3


def double_some(connection: sa.Connection) -> int:
    """Give amounts that a release before wrote another meaning: a few in each transaction."""
    found = connection.execute(sa.select(spend.c.device).where(spend.c.amount < 100).limit(AT_ONCE)).scalars().all()
    connection.execute(spend.update().where(spend.c.device.in_(found)).values(amount=spend.c.amount + 100))
    return len(found)


def tighten(connection: sa.Connection) -> None:
    left = connection.execute(sa.select(sa.func.count()).select_from(spend).where(spend.c.amount < 100)).scalar_one()
    assert left == 0, "the backfill comes first"


NEXT: DatabasePart = dataclasses.replace(LEDGER, contractions=(Contraction(tighten, double_some),))


def write_rows_before(urls: DatabaseUrls) -> None:
    engine = open_part(urls.ledger, LEDGER)
    with engine.begin() as connection:
        for number in range(ROWS):
            row = {"device": f"demo--d{number}", "account": "bytes", "period": 1, "amount": number}
            connection.execute(spend.insert(), row)
    engine.dispose()


def read_amounts(connection: sa.Connection) -> list[int]:
    return sorted(connection.execute(sa.select(spend.c.amount)).scalars())


def test_a_file_is_contracted_by_its_start_and_a_server_only_when_nobody_is_waited_for(urls: DatabaseUrls):
    write_rows_before(urls)
    engine = open_part(urls.ledger, NEXT)
    if urls.server:
        with engine.connect() as connection:
            assert (read_number(connection, NEXT), read_amounts(connection)) == (1, list(range(ROWS)))
        open_part(urls.ledger, LEDGER).dispose()  # a program of the release before
        waiting = contract_part(engine, NEXT, lambda *_: ("hub-2 of an earlier release",))
        assert (waiting.schema, waiting.expanded, waiting.waits_for) == (1, 2, ("hub-2 of an earlier release",))
        open_part(urls.ledger, LEDGER).dispose()
        assert contract_part(engine, NEXT, lambda *_: ()).schema == 2
    with engine.connect() as connection:
        assert (read_number(connection, NEXT), read_amounts(connection)) == (2, list(range(100, 100 + ROWS)))
    engine.dispose()
    with pytest.raises(ExitError, match="has schema 2 of ledger, newer than this program's 1: update") as stop:
        open_part(urls.ledger, LEDGER)
    assert stop.value.code is ExitCode.DATABASE


@pytest.mark.postgres
def test_a_hub_that_comes_at_the_last_moment_keeps_the_schema_as_it_is(request: pytest.FixtureRequest):
    url = request.getfixturevalue("postgres").create_database()
    open_part(url, LEDGER).dispose()
    engine = open_part(url, NEXT)
    looks = iter([(), ("hub-2 of an earlier release",)])
    assert contract_part(engine, NEXT, lambda *_: next(looks)).schema == 1
    engine.dispose()


@pytest.mark.postgres
def test_a_backfill_that_is_broken_off_goes_on_where_it_was(request: pytest.FixtureRequest, tmp_path):
    urls = DatabaseUrls(tmp_path, request.getfixturevalue("postgres").create_database())
    write_rows_before(urls)
    calls = []

    def break_off(connection: sa.Connection) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise sa.exc.OperationalError("", {}, Exception("the server is gone"))
        return double_some(connection)

    broken = dataclasses.replace(NEXT, contractions=(Contraction(tighten, break_off),))
    engine = open_part(urls.ledger, broken)
    with pytest.raises(sa.exc.OperationalError):
        contract_part(engine, broken, lambda *_: ())
    with engine.connect() as connection:
        assert sum(amount >= 100 for amount in read_amounts(connection)) == AT_ONCE
    assert contract_part(engine, broken, lambda *_: ()).schema == 2
    engine.dispose()


@pytest.mark.postgres
def test_an_index_that_is_missing_is_made_while_rows_are_written(request: pytest.FixtureRequest):
    url = request.getfixturevalue("postgres").create_database()
    engine = open_part(url, LEDGER)
    with engine.begin() as connection:
        connection.exec_driver_sql("drop index ledger.leaves_device")
    for _ in range(2):
        add_indexes(engine, LEDGER)
        with engine.connect() as connection:
            assert "leaves_device" in {each["name"] for each in sa.inspect(connection).get_indexes("leaves", "ledger")}
    engine.dispose()
