"""The simulated table of leases keeps the rules of the real one (tests/cloud_hub/region/test_leases.py)."""

import pytest

from cloud_hub.region.leases import Lease, LeaseId, LeaseKind
from cloud_hub.storage.jobs import ShardClaim
from simulations.kernel.kernel import Kernel
from simulations.nodes.lease_table import SimulatedLeaseTable

ONE, TWO = (LeaseId(LeaseKind.SHARD, number) for number in (1, 2))
LIFE_S = 6.0


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def taken() -> list[Lease]:
    return []


@pytest.fixture
def table(kernel: Kernel, taken: list[Lease]) -> SimulatedLeaseTable:
    return SimulatedLeaseTable(kernel, taken.append, LIFE_S)


def test_a_lease_that_one_process_holds_is_not_given_to_another_until_it_ends(
    table: SimulatedLeaseTable, kernel: Kernel, taken: list[Lease]
) -> None:
    assert table.renew_and_take("hub", "a", [ONE]).keys() == {ONE}
    assert table.renew_and_take("hub-2", "b", [ONE, TWO]).keys() == {TWO}
    kernel.run(LIFE_S - 1)
    table.renew_and_take("hub-2", "b", [])
    kernel.run(LIFE_S)
    assert table.renew_and_take("hub-2", "b", [ONE])[ONE].term == 2
    assert [(each.id, each.session, each.term) for each in taken] == [(ONE, "a", 1), (TWO, "b", 1), (ONE, "b", 2)]


def test_renewing_keeps_the_term_and_one_that_ended_is_taken_again_in_the_next(
    table: SimulatedLeaseTable, kernel: Kernel
) -> None:
    table.renew_and_take("hub", "a", [ONE])
    kernel.run(LIFE_S - 1)
    renewed = table.renew_and_take("hub", "a", [ONE])[ONE]
    assert (renewed.term, renewed.until_ms) == (1, 2 * LIFE_S * 1000 - 1000)
    kernel.run(2 * LIFE_S)
    assert table.renew_and_take("hub", "a", []) == {}
    assert table.renew_and_take("hub", "a", [ONE])[ONE].term == 2


def test_a_process_that_is_started_again_takes_over_from_its_last_life_at_once(table: SimulatedLeaseTable) -> None:
    table.renew_and_take("hub", "a", [ONE])
    assert table.renew_and_take("hub", "b", [ONE])[ONE].term == 2
    assert table.renew_and_take("hub", "a", []) == {}


def test_what_is_given_away_is_free_at_once_and_only_its_holder_gives_it(table: SimulatedLeaseTable) -> None:
    table.renew_and_take("hub", "a", [ONE])
    table.give("b", [ONE])
    assert table.renew_and_take("hub-2", "b", [ONE]) == {}
    table.give("a", [ONE])
    assert table.renew_and_take("hub-2", "b", [ONE])[ONE].term == 2


def test_the_fence_lets_the_holder_pass_in_its_term_until_the_lease_has_ended(
    table: SimulatedLeaseTable, kernel: Kernel
) -> None:
    table.renew_and_take("hub", "a", [ONE])
    asked = [("a", 1), ("a", 0), ("b", 1)]
    assert [table.holds(session, ShardClaim(1, term)) for session, term in asked] == [True, False, False]
    kernel.run(LIFE_S)
    assert not table.holds("a", ShardClaim(1, 1)), "though nobody took it"


def test_a_look_shows_what_ended_and_is_the_same_as_long_as_nothing_did(
    table: SimulatedLeaseTable, kernel: Kernel
) -> None:
    table.renew_and_take("hub", "a", [ONE])
    seen = table.look()
    assert seen.list_mine("a", LeaseKind.SHARD) == {1}
    kernel.run(1.0)
    table.renew_and_take("hub", "a", [])
    assert table.look() is seen
    kernel.run(1.0 + LIFE_S)
    assert table.look().list_mine("a", LeaseKind.SHARD) == frozenset()


def test_a_backup_brings_the_leases_back_as_they_were(table: SimulatedLeaseTable, kernel: Kernel) -> None:
    table.renew_and_take("hub", "a", [ONE])
    backup = table.snapshot()
    kernel.run(LIFE_S)
    table.renew_and_take("hub-2", "b", [ONE])
    table.restore_snapshot(backup)
    assert not table.holds("b", ShardClaim(1, 2))
    assert table.renew_and_take("hub-2", "b", [ONE])[ONE].term == 2
