"""A region whose hubs are of two releases: what is waited for, what is shut, and who is refused. Real PostgreSQL."""

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import REGION
from cloud_hub.database.tables import meta, schemas
from cloud_hub.region.lease_keeper import LeaseKeeper
from cloud_hub.region.leases import LeaseId, LeaseKind, LeaseTable
from cloud_hub.region.membership import RegionMembership
from cloud_hub.region.schema_upgrade import SchemaUpgrade, read_upgrade
from tests.postgres import PostgresServer
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

SEVEN = LeaseId(LeaseKind.SHARD, 7)
# What hubs of the release before several releases write: they know nothing of `stated`.
OLD_ANNOUNCEMENT = """
insert into region.hubs (name, session, since_ms, seen_ms)
values ('{name}', 'old', 0, extract(epoch from clock_timestamp()) * 1000 + {ahead_ms})
on conflict (name) do update set session = excluded.session, seen_ms = excluded.seen_ms
"""
OLD_TAKE = """
update region.leases set hub = 'hub-2', session = 'old', term = term + 1,
until_ms = extract(epoch from clock_timestamp()) * 1000 + 600000 where kind = 'shard' and number = 7
"""


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A database as the release before left it."""
    url = postgres.create_database()
    open_part(url, REGION).dispose()
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("alter table region.leases drop constraint leases_stated, drop column stated")
        connection.exec_driver_sql(
            "alter table region.hubs drop column stated, drop column release, drop column serves"
        )
        connection.exec_driver_sql("drop table region.schemas")
        connection.execute(meta["region"].update().values(value="1"))
    open_part(url, REGION).dispose()
    return url


@pytest.fixture
def old(url: str) -> Iterator[sa.Connection]:
    """The connection of a hub of the release before."""
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection


class Server:
    """A hub that gains shards and must lose none."""

    def lose_shards(self, shards: frozenset[int]) -> None:
        raise AssertionError("it was told nothing yet")

    async def gain_shards(self, terms: dict[int, int]) -> None:
        del terms

    def count_hubs(self, hubs: int) -> None:
        del hubs


def numbers(url: str) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {part.part: (part.schema, part.waits_for) for part in read_upgrade(url)[1]}


def advance(url: str) -> None:
    SchemaUpgrade(url, JsonLog(io.StringIO())).advance()


def test_a_database_is_contracted_once_no_hub_of_an_earlier_release_is_there(url: str, old: sa.Connection):
    with contextlib.closing(RegionMembership.open(url, "hub", "0.2.0")):
        old.exec_driver_sql(OLD_ANNOUNCEMENT.format(name="hub-2", ahead_ms=600_000))
        advance(url)
        assert numbers(url) == {"region": (1, ("hub-2 of an earlier release",))}
        assert [(hub.hub, hub.release) for hub in read_upgrade(url)[0]] == [("hub", "0.2.0"), ("hub-2", "")]
        old.exec_driver_sql("delete from region.hubs where name = 'hub-2'")
        advance(url)
        assert numbers(url) == {"region": (2, ())}


def test_a_lease_of_an_earlier_release_alone_is_waited_for(url: str, old: sa.Connection):
    with contextlib.closing(LeaseTable.open(url, "hub-2")) as table:
        old.exec_driver_sql(OLD_TAKE)
        advance(url)
        assert numbers(url) == {"region": (1, ("hub-2 of an earlier release",))}
        assert SEVEN in table.renew_and_take([SEVEN]), "its successor of the same name is of this release"
        advance(url)
        assert numbers(url)["region"] == (1, ("hub-2 of an earlier release",)), "it has not said so yet"
        with contextlib.closing(RegionMembership.open(url, "hub-2", "0.2.0")):
            advance(url)
            assert numbers(url) == {"region": (2, ())}


def test_an_older_hub_under_the_name_of_a_newer_one_counts_as_older(url: str, old: sa.Connection):
    with contextlib.closing(RegionMembership.open(url, "hub-2", "0.2.0")) as place:
        place._stop.set()  # as a process that was killed
        place._thread.join()
        place._session.disconnect()
        old.exec_driver_sql(OLD_ANNOUNCEMENT.format(name="hub-2", ahead_ms=600_000))
        advance(url)
        assert numbers(url) == {"region": (1, ("hub-2 of an earlier release",))}


def test_an_older_hub_that_comes_back_after_the_contraction_takes_no_lease(url: str, old: sa.Connection):
    with contextlib.closing(LeaseTable.open(url, "hub")) as table:
        old.exec_driver_sql(OLD_TAKE)
        old.exec_driver_sql("update region.leases set until_ms = 1 where number = 7")
        advance(url)
        with pytest.raises(sa.exc.IntegrityError):
            old.exec_driver_sql(OLD_TAKE)
        assert SEVEN in table.renew_and_take([SEVEN])
        table.give([SEVEN])


def test_this_release_left_running_beyond_a_contraction_loses_its_leases_and_ends_with_one_line(url: str):
    table = LeaseTable.open(url, "hub")
    keeper = LeaseKeeper(table, JsonLog(io.StringIO()))

    assert SEVEN in table.renew_and_take([SEVEN])
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(schemas.insert(), {"part": "questions", "schema": 99})
    assert table.renew_and_take([SEVEN]) == {}
    with pytest.raises(ExceptionGroup) as group:
        asyncio.run(asyncio.wait_for(keeper.run(Server()), 60))
    stop = group.value.exceptions[0]
    assert isinstance(stop, ExitError)
    assert stop.code is ExitCode.DATABASE
    assert "has schema 99 of questions, newer than this program's 3: update the program" in str(stop)
    table.close()


def read_lines(log: io.StringIO, event: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == event]


def test_a_contraction_whose_statement_is_refused_is_logged_as_a_defect_once(url: str, old: sa.Connection):
    log = io.StringIO()
    upgrade = SchemaUpgrade(url, JsonLog(log))
    old.exec_driver_sql("alter table region.hubs rename to hidden")
    for _ in range(2):
        upgrade.advance()
    lines = read_lines(log, "schema_fails")
    assert {line["level"] for line in lines} == {"error"}
    assert len(lines) == len({line["part"] for line in lines}), "once for each part"
    assert lines[0]["error"].startswith("ProgrammingError@")
    assert any(frame.startswith("cloud_hub/region/") for frame in lines[0]["frames"])
    old.exec_driver_sql("alter table region.hidden rename to hubs")
    upgrade.advance()
    assert read_lines(log, "schema_fails") == lines
    assert numbers(url) == {"region": (2, ())}


async def test_leases_whose_statement_is_refused_are_logged_as_a_defect_once_until_they_work(
    url: str, old: sa.Connection
):
    log = io.StringIO()
    with contextlib.closing(LeaseTable.open(url, "hub", 60.0)) as table:
        keeping = asyncio.create_task(LeaseKeeper(table, JsonLog(log)).run(Server()))
        old.exec_driver_sql("alter table region.leases rename to hidden")
        async with asyncio.timeout(60):
            while not read_lines(log, "leases_failed"):
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.2)  # two more looks
            old.exec_driver_sql("alter table region.hidden rename to leases")
            while not read_lines(log, "leases_work"):
                await asyncio.sleep(0.05)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    (line,) = read_lines(log, "leases_failed")
    assert line["level"] == "error"
    assert any(frame.startswith("cloud_hub/region/leases.py:") for frame in line["frames"])
