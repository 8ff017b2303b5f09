"""Hubs that share a real PostgreSQL database: one holder for each name, by a session; who is alive, by its clock."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cloud_hub.database.changes import Topic, record_change
from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import REGION
from cloud_hub.database.tables import changes
from cloud_hub.region.membership import HubSession, NewsReader, RegionMembership
from cloud_hub.region.releases import ALIVE_MS
from tests.postgres import PostgresServer
from wire.process.exit_codes import ExitCode, ExitError

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    url = postgres.create_database()
    open_part(url, REGION).dispose()
    return url


def wait_for(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def sessions(url: str) -> dict[str, str]:
    """Who is there, as every other hub sees it: the session of each name."""
    alive = f"seen_ms > extract(epoch from clock_timestamp()) * 1000 - {ALIVE_MS}"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(f"select name, session from region.hubs where {alive} order by name").all()
    return {str(row[0]): str(row[1]) for row in rows}


def alive(url: str) -> list[str]:
    return list(sessions(url))


@contextlib.contextmanager
def joined(url: str, name: str) -> Iterator[RegionMembership]:
    with contextlib.closing(RegionMembership.open(url, name)) as place:
        yield place


def test_hubs_see_who_comes_and_who_goes(url: str):
    with joined(url, "hub"):
        assert alive(url) == ["hub"]
        with joined(url, "hub-2"):
            assert alive(url) == ["hub", "hub-2"]
        assert alive(url) == ["hub"]


def test_a_second_hub_of_one_name_is_refused_in_one_line_and_the_first_stays(url: str):
    with joined(url, "hub-2") as first:
        with pytest.raises(ExitError, match=r"runs as 'hub-2': .*\[hub\] member") as stop:
            RegionMembership.open(url, "hub-2")
        assert stop.value.code is ExitCode.NAME_TAKEN
        assert "\n" not in str(stop.value)
        seen = first.view.now_ms
        wait_for(lambda: first.view.now_ms > seen)
        assert alive(url) == ["hub-2"]


def test_the_name_of_a_process_that_was_killed_is_free_at_once(url: str):
    dead = HubSession(url, "hub")
    dead.take_name()
    dead.look()
    dead.disconnect()  # as the kernel does; nothing was said to the others
    with joined(url, "hub") as place:
        assert sessions(url) == {"hub": place.session}
        assert place.session != dead.id


def test_a_name_is_held_again_after_the_server_was_away(url: str, postgres: PostgresServer):
    with joined(url, "hub") as place:
        seen = place.view.now_ms
        postgres.run_statement("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
        wait_for(lambda: place.view.now_ms > seen + 1000)
        with pytest.raises(ExitError):
            RegionMembership.open(url, "hub")


def test_who_lost_the_name_while_it_was_cut_off_ends(url: str):
    with joined(url, "hub") as first:
        first._session.disconnect()
        taken = HubSession(url, "hub")
        with contextlib.closing(contextlib.ExitStack()) as leaving:
            while not taken.connect():
                time.sleep(0.01)
            taken.look()
            leaving.callback(taken.leave)
            with pytest.raises(ExitError) as stop:
                asyncio.run(asyncio.wait_for(first.run((), lambda _: None), 60))
    assert stop.value.code is ExitCode.NAME_TAKEN


def announce(url: str, topic: Topic, *subjects: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        record_change(connection, topic, subjects)


def read_nothing(topic: Topic, _: sa.Connection, subjects: Collection[str] | None) -> Any:
    return topic, subjects


class Heard:
    """What a hub has taken in: topics with their subjects, None = all of them. `fails`: so many are not taken in."""

    def __init__(self, fails: int = 0) -> None:
        self.news: list[tuple[Topic, Collection[str] | None]] = []
        self.caught_up: list[float] = []
        self._fails = fails

    def readers(self) -> list[NewsReader]:
        return [NewsReader(topic, functools.partial(read_nothing, topic), self.apply) for topic in Topic]

    def apply(self, found: tuple[Topic, Collection[str] | None], _revision: int) -> None:
        self._fails -= 1
        if self._fails >= 0:
            raise ValueError("it does not fit")
        self.news.append(found)

    async def follow(self, place: RegionMembership, met: Callable[[], bool]) -> None:
        """Take in news until something is met."""
        async with asyncio.timeout(60):
            task = asyncio.create_task(place.run(self.readers(), self.caught_up.append))
            while not met():
                await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.wait([task])


async def test_a_change_is_heard_by_the_others_and_only_what_changed_is_read(url: str):
    heard = Heard()
    with joined(url, "hub") as place:
        announce(url, Topic.DEVICES, "demo--a", "demo--b")
        await heard.follow(place, lambda: bool(heard.news))
        assert heard.news == [(Topic.DEVICES, frozenset({"demo--a", "demo--b"}))]
        assert heard.caught_up


async def test_what_changed_while_a_hub_loaded_its_models_is_taken_in_once_it_serves(url: str):
    heard = Heard()
    announce(url, Topic.KEYS, "older")
    with joined(url, "hub") as place:
        seen = place.view.now_ms
        announce(url, Topic.KEYS, "newer")
        wait_for(lambda: place.view.now_ms > seen)
        await heard.follow(place, lambda: bool(heard.caught_up))
        assert heard.news == [(Topic.KEYS, frozenset({"newer"}))]


async def test_a_database_that_was_restored_from_yesterday_is_read_as_a_whole(url: str):
    heard = Heard()
    for _ in range(3):
        announce(url, Topic.DEVICES, "demo--a")
    with joined(url, "hub") as place:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(changes.update().values(revision=1))
        await heard.follow(place, lambda: bool(heard.news))
        assert heard.news == [(Topic.DEVICES, None)]


async def test_news_that_could_not_be_taken_in_are_read_again(url: str, log_records: list[logging.LogRecord]):
    heard = Heard(fails=1)
    with joined(url, "hub") as place:
        announce(url, Topic.ORDERS)
        await heard.follow(place, lambda: len(heard.news) == len(Topic))
        assert {topic for topic, subjects in heard.news if subjects is None} == set(Topic)
    assert any("it does not fit" in str(record.exc_info) + record.getMessage() for record in log_records)


async def test_a_hub_that_was_cut_off_catches_up(url: str, postgres: PostgresServer):
    heard = Heard()
    with joined(url, "hub") as place:
        postgres.run_statement("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
        announce(url, Topic.DEVICES, "demo--a")
        await heard.follow(place, lambda: bool(heard.news))
        assert heard.news == [(Topic.DEVICES, frozenset({"demo--a"}))]
