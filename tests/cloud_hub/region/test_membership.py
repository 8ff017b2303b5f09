"""Hubs that share a real PostgreSQL database: one holder for each name, by a session; who is alive, by its clock."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from cloud_hub.region.membership import HubSession, RegionMembership
from simulations.postgres import PostgresServer
from wire.process.exit_codes import ExitCode, ExitError

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.create_database()


def wait_for(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def alive(place: RegionMembership) -> list[str]:
    return [hub.name for hub in place.view.hubs]


@contextlib.contextmanager
def joined(url: str, name: str) -> Iterator[RegionMembership]:
    with contextlib.closing(RegionMembership.open(url, name)) as place:
        yield place


def test_hubs_see_who_comes_and_who_goes(url: str):
    with joined(url, "hub") as first:
        assert alive(first) == ["hub"]
        with joined(url, "hub-2") as second:
            assert alive(second) == ["hub", "hub-2"]
            wait_for(lambda: alive(first) == ["hub", "hub-2"])
        wait_for(lambda: alive(first) == ["hub"])


def test_a_second_hub_of_one_name_is_refused_in_one_line_and_the_first_stays(url: str):
    with joined(url, "hub-2") as first:
        with pytest.raises(ExitError, match=r"runs as 'hub-2': .*\[hub\] member") as stop:
            RegionMembership.open(url, "hub-2")
        assert stop.value.code is ExitCode.NAME_TAKEN
        assert "\n" not in str(stop.value)
        seen = first.view.now_ms
        wait_for(lambda: first.view.now_ms > seen)
        assert alive(first) == ["hub-2"]


def test_the_name_of_a_process_that_was_killed_is_free_at_once(url: str):
    dead = HubSession(url, "hub")
    dead.take_name()
    dead.look()
    dead.disconnect()  # as the kernel does; nothing was said to the others
    with joined(url, "hub") as place:
        assert [hub.session != dead.id for hub in place.view.hubs] == [True]


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
                asyncio.run(asyncio.wait_for(first.run(), 60))
    assert stop.value.code is ExitCode.NAME_TAKEN
