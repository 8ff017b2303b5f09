"""Shares of the shards among hubs that come, go and die: each shard gets one holder, fairly, and then nothing moves."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.shard_leases import SHARDS, ShardPlan, ShardView, compute_share, plan_shards

NAMES = [f"hub-{number}" for number in range(1, 17)]
ALIVE = st.sets(st.sampled_from(NAMES), min_size=1)
Holders = dict[int, str]


def act(hub: str, holders: Holders, alive: set[str]) -> ShardPlan:
    """One look of a hub at the table, and what it does then."""
    mine = frozenset(shard for shard, holder in holders.items() if holder == hub)
    free = frozenset(shard for shard in range(SHARDS) if holders.get(shard) not in alive)
    plan = plan_shards(ShardView(mine, free), compute_share(hub, alive))
    holders.update(dict.fromkeys(plan.take, hub))
    for shard in plan.give:
        del holders[shard]
    return plan


def settle(holders: Holders, alive: set[str], order: list[str]) -> None:
    for _ in range(3):  # give, take what was given, and once more that nothing moves
        for hub in order:
            act(hub, holders, alive)


@given(ALIVE)
def test_shares_sum_to_all_shards_and_none_is_above_the_fair_one(alive: set[str]):
    shares = [compute_share(hub, alive) for hub in alive]
    assert sum(shares) == SHARDS
    assert max(shares) - min(shares) <= 1
    assert max(shares) == ceil(SHARDS / len(alive))
    assert compute_share("stranger", alive) == 0


@given(st.lists(ALIVE, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_however_hubs_come_and_go_each_shard_has_one_holder_and_each_hub_its_share(changes, rng):
    holders: Holders = {}
    for alive in changes:
        order = sorted(alive)
        rng.shuffle(order)
        settle(holders, alive, order)
        assert set(holders) == set(range(SHARDS))
        counts = {hub: sum(holder == hub for holder in holders.values()) for hub in alive}
        assert counts == {hub: compute_share(hub, alive) for hub in alive}


@given(ALIVE, st.dictionaries(st.integers(0, SHARDS - 1), st.sampled_from(NAMES)), st.randoms(use_true_random=False))
def test_once_every_hub_has_its_share_nothing_moves_in_whatever_order_they_look(alive, holders, rng):
    settle(holders, alive, sorted(alive))
    order = sorted(alive)
    rng.shuffle(order)
    assert [act(hub, holders, alive) for hub in order] == [ShardPlan()] * len(alive)


@given(ALIVE, st.sampled_from(NAMES))
def test_a_hub_that_joins_costs_the_others_no_more_than_its_share_and_one_shard_each(alive: set[str], newcomer: str):
    holders: Holders = {}
    settle(holders, alive, sorted(alive))
    before, joined = dict(holders), alive | {newcomer}
    settle(holders, joined, sorted(joined))
    moved = sum(holders[shard] != before[shard] for shard in holders)
    assert moved <= compute_share(newcomer, joined) + len(joined)


@given(ALIVE, st.frozensets(st.integers(0, SHARDS - 1)), st.frozensets(st.integers(0, SHARDS - 1)))
def test_what_is_taken_is_free_and_what_is_given_is_held(alive, mine, free):
    view = ShardView(mine, free - mine)
    plan = plan_shards(view, compute_share(min(alive), alive))
    assert set(plan.take) <= view.free
    assert set(plan.give) <= view.mine
    assert not (plan.take and plan.give)


def test_the_lowest_free_shards_are_taken_and_the_highest_given_as_many_as_differ_from_the_share():
    view = ShardView(frozenset({3, 9, 5}), frozenset({8, 1, 4}))
    plans = [plan_shards(view, share) for share in (0, 1, 2, 3, 4, 5, 9)]
    assert [plan.give for plan in plans] == [(3, 5, 9), (5, 9), (9,), (), (), (), ()]
    assert [plan.take for plan in plans] == [(), (), (), (), (1,), (1, 4), (1, 4, 8)]


def test_what_the_division_leaves_goes_to_the_first_hubs_by_name():
    assert [compute_share(hub, ["c", "a", "b", "a"], 8) for hub in "abcd"] == [3, 3, 2, 0]
