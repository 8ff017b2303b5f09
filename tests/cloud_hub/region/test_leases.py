"""Leases of hubs that share a real PostgreSQL database: one holder at a time, terms that rise, a fence that holds."""

import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import QUESTIONS
from cloud_hub.region.leases import LeaseId, LeaseKind, LeaseTable
from cloud_hub.storage.fence import find_lost_claims
from cloud_hub.storage.jobs import ShardClaim
from policies.serving.shard_leases import SHARDS
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

LONG_S, SHORT_S = 60.0, 0.3
SEVEN = LeaseId(LeaseKind.SHARD, 7)


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def table_of(url: str) -> Iterator[Callable[..., LeaseTable]]:
    tables: list[LeaseTable] = []

    def open_table(hub: str, life_s: float = LONG_S) -> LeaseTable:
        tables.append(LeaseTable.open(url, hub, life_s))
        return tables[-1]

    yield open_table
    for table in tables:
        table.close()


@pytest.fixture
def questions(url: str) -> Iterator[sa.Engine]:
    engine = open_part(url, QUESTIONS)
    yield engine
    engine.dispose()


def wait_ended(table: LeaseTable, lease: LeaseId) -> None:
    deadline = time.monotonic() + 60
    while any(each.id == lease for each in table.look().held()):
        assert time.monotonic() < deadline, "it never ended"
        time.sleep(0.02)


def test_every_shard_is_there_once_and_held_by_nobody(table_of):
    table_of("hub")
    view = table_of("hub-2").look()
    assert sorted(each.id.number for each in view.leases if each.id.kind is LeaseKind.SHARD) == list(range(SHARDS))
    assert list(view.held()) == []


def test_a_lease_that_one_hub_holds_is_not_given_to_another_until_it_ends(table_of):
    first, second = table_of("hub", SHORT_S), table_of("hub-2")
    assert first.renew_and_take([SEVEN])[SEVEN].term == 1
    if SEVEN not in second.renew_and_take([SEVEN]):
        wait_ended(second, SEVEN)
    assert second.renew_and_take([SEVEN])[SEVEN].term == 2
    assert first.renew_and_take([]) == {}


def test_renewing_keeps_the_term_and_one_that_ended_is_taken_again_in_the_next(table_of):
    table = table_of("hub", SHORT_S)
    term = table.renew_and_take([SEVEN])[SEVEN].term
    renewed = table.renew_and_take([SEVEN]).get(SEVEN)
    if renewed is not None:
        assert renewed.term in (term, term + 1)
    wait_ended(table, SEVEN)
    assert table.renew_and_take([]) == {}
    assert table.renew_and_take([SEVEN])[SEVEN].term > term


def test_a_hub_that_is_started_again_takes_over_from_its_last_process_at_once(table_of):
    table_of("hub").renew_and_take([SEVEN])
    assert table_of("hub").renew_and_take([SEVEN])[SEVEN].term == 2


def test_what_is_given_away_is_free_at_once(table_of):
    first, second = table_of("hub"), table_of("hub-2")
    first.renew_and_take([SEVEN])
    second.give([SEVEN])  # it is not its own to give
    assert SEVEN not in second.renew_and_take([SEVEN])
    first.give([SEVEN])
    assert SEVEN in second.renew_and_take([SEVEN])


def test_the_fence_lets_the_holder_pass_and_nobody_else(table_of, questions: sa.Engine):
    first, second = table_of("hub"), table_of("hub-2")
    first.renew_and_take([SEVEN])
    claims = frozenset({ShardClaim(7, 1), ShardClaim(8, 1), ShardClaim(7, 2)})
    with questions.begin() as connection:
        assert find_lost_claims(connection, first.session, claims) == claims - {ShardClaim(7, 1)}
        assert find_lost_claims(connection, second.session, claims) == claims


def test_a_lease_that_has_ended_fences_though_nobody_took_it(table_of, questions: sa.Engine):
    table = table_of("hub", SHORT_S)
    table.renew_and_take([SEVEN])
    wait_ended(table, SEVEN)
    with questions.begin() as connection:
        assert find_lost_claims(connection, table.session, {ShardClaim(7, 1)}) == {ShardClaim(7, 1)}


def hold_one(table: LeaseTable, connection: sa.Connection) -> None:
    """Pass the fence for shard 7; a slow machine may need longer than the lease lives."""
    while True:
        table.renew_and_take([SEVEN])
        held = {ShardClaim(7, each.term) for each in table.renew_and_take([]).values()}
        if held and not find_lost_claims(connection, table.session, held):
            return


def test_a_lease_is_not_taken_while_its_holder_writes_and_its_holder_may_renew_it(table_of, questions: sa.Engine):
    first, second = table_of("hub", SHORT_S), table_of("hub-2")
    with questions.begin() as connection:
        hold_one(first, connection)
        wait_ended(second, SEVEN)
        assert SEVEN not in second.renew_and_take([SEVEN])
    assert SEVEN in second.renew_and_take([SEVEN])


def test_a_write_that_its_holder_does_not_end_is_ended_by_who_wants_the_lease_and_rolled_back(table_of, url: str):
    first, second = table_of("hub", SHORT_S), table_of("hub-2")
    engine = open_part(url, QUESTIONS)
    connection = engine.connect()
    transaction = connection.begin()
    hold_one(first, connection)
    wait_ended(second, SEVEN)
    assert SEVEN not in second.renew_and_take([SEVEN])
    assert second.end_writes([LeaseId(LeaseKind.SHARD, 8)]) == 0, "nobody waits for that one"
    assert second.end_writes([SEVEN]) == 1
    deadline = time.monotonic() + 60
    while SEVEN not in second.renew_and_take([SEVEN]):
        assert time.monotonic() < deadline, "it was never given up"
    with pytest.raises(sa.exc.DBAPIError):
        connection.execute(sa.text("select 1"))
    connection.invalidate()
    transaction.close()
    connection.close()
    engine.dispose()


def test_a_row_that_somebody_has_locked_delays_its_own_lease_alone(table_of, questions: sa.Engine, url: str):
    first, second = table_of("hub"), table_of("hub-2")
    eight = LeaseId(LeaseKind.SHARD, 8)
    held = first.renew_and_take([SEVEN, eight])
    engine = open_part(url, QUESTIONS)
    with engine.begin() as locker:
        locker.execute(sa.text("select 1 from region.leases where kind = 'shard' and number = 7 for update"))
        renewed = first.renew_and_take([])
        assert renewed[SEVEN].until_ms == held[SEVEN].until_ms, "it waits for its locker until it ends"
        assert renewed[eight].until_ms > held[eight].until_ms
        with questions.begin() as connection:
            claims = frozenset({ShardClaim(7, 1), ShardClaim(8, 1)})
            assert find_lost_claims(connection, first.session, claims) == {ShardClaim(7, 1)}
        first.give([SEVEN, eight])
        assert eight in second.renew_and_take([SEVEN, eight])
        assert {each.id for each in first.look().held()} == {SEVEN, eight}
    assert first.renew_and_take([])[SEVEN].until_ms > held[SEVEN].until_ms
    engine.dispose()


def test_writes_of_who_renews_its_leases_are_never_ended(table_of, questions: sa.Engine):
    first, second = table_of("hub"), table_of("hub-2")
    with questions.begin() as connection:
        hold_one(first, connection)
        assert second.end_writes([SEVEN]) == 0
        assert connection.execute(sa.text("select 1")).scalar_one() == 1
