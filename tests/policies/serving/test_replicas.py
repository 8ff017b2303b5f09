"""Routing among replicas: load, prefix credit, imbalance, two choices, residency, the circuit breaker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving.replicas import (
    BREAKER_FAULTS,
    LAST_RESORT_S,
    MAX_PREFIX_BLOCKS,
    CircuitBreaker,
    PrefixTable,
    ReplicaLoad,
    filter_regions,
    hash_prefix,
    is_imbalanced,
    rank_replicas,
    score_replica,
)

SHARES = st.floats(0, 1)
DICE = st.tuples(st.floats(0, 0.999), st.floats(0, 0.999))
COUNTS = st.integers(0, 500)
LOADS = st.lists(
    st.builds(ReplicaLoad, st.uuids().map(str), COUNTS, COUNTS, COUNTS, SHARES, COUNTS, st.sampled_from("ab")),
    max_size=20,
    unique_by=lambda each: each.name,
)


@given(LOADS, DICE)
def test_every_replica_is_ranked_once_and_the_first_has_the_best_score_among_few(loads, dice):
    ranked = rank_replicas(loads, dice)
    assert sorted(ranked) == sorted(each.name for each in loads)
    if 0 < len(loads) <= 8:
        first = next(each for each in loads if each.name == ranked[0])
        requests = [each.requests for each in loads]
        apart = max(requests) > 1.5 * min(requests) and max(requests) - min(requests) > 8
        scores = [score_replica(each, with_prefix=not apart) for each in loads]
        assert score_replica(first, with_prefix=not apart) == min(scores)


@given(LOADS, st.sampled_from([None, frozenset("a"), frozenset()]), DICE)
def test_no_request_is_computed_outside_its_regions(loads, allowed, dice):
    ranked = rank_replicas(filter_regions(loads, allowed), dice)
    regions = {each.name: each.region for each in loads}
    assert allowed is None or all(regions[name] in allowed for name in ranked)


def test_a_prefix_wins_among_equals_and_not_under_imbalance():
    holder = ReplicaLoad("b", in_flight=6, prefix_blocks=20)
    assert rank_replicas([ReplicaLoad("a"), holder], (0.0, 0.0))[0] == "b"
    busy = ReplicaLoad("b", in_flight=9, prefix_blocks=20)
    assert rank_replicas([ReplicaLoad("a"), busy], (0.0, 0.0))[0] == "a"


@given(st.binary(max_size=400), st.binary(max_size=400), st.integers(1, 64))
def test_two_prompts_share_as_many_hashes_as_whole_blocks(left, right, size):
    same = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    pairs = zip(hash_prefix(left, size), hash_prefix(right, size), strict=False)
    assert sum(a == b for a, b in pairs) == same // size


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.binary(max_size=200)), max_size=30))
def test_the_table_stays_bounded_and_never_says_more_than_was_sent(sent):
    table = PrefixTable(max_blocks=8)
    for replica, prompt in sent:
        blocks = hash_prefix(prompt, 4)
        table.add(replica, blocks)
        assert len(table) <= 8
        assert table.count_blocks(replica, blocks) == min(8, len(blocks))
    table.forget("x")
    assert not any(table.count_blocks("x", hash_prefix(prompt, 4)) for _, prompt in sent)


CALLERS = st.sampled_from(["honest", *(f"hostile-{number}" for number in range(10))])
STEPS = st.one_of(
    st.tuples(st.just("fault"), CALLERS),
    st.tuples(st.just("success"), CALLERS),
    st.tuples(st.just("check"), st.booleans()),
)


@given(st.lists(STEPS, max_size=60))
def test_no_callers_faults_take_a_replica_from_others_that_passes_its_check(steps):
    breaker, passed = CircuitBreaker(), True
    for at, (what, who) in enumerate(steps):
        if what == "fault":
            breaker = breaker.on_fault(str(who), float(at))
        elif what == "success":
            breaker = breaker.on_success()
        else:
            passed = bool(who)
            breaker = breaker.on_check(passed=passed)
        assert breaker.admits == passed


def test_a_fault_makes_a_replica_suspected_until_its_next_check():
    breaker = CircuitBreaker().on_fault("acme", 0.0)
    assert breaker.is_last_resort(0.0)
    assert not breaker.on_check(passed=True).is_last_resort(0.0)
    assert not breaker.on_check(passed=False).admits
    assert breaker.on_check(passed=False).on_check(passed=True).admits


def test_faults_of_several_callers_in_a_row_make_a_replica_the_last_resort_for_a_while():
    alone = several = CircuitBreaker()
    for number in range(BREAKER_FAULTS):
        alone = alone.on_fault("acme", 1.0).on_check(passed=True)
        several = several.on_fault(f"tenant-{number}", 1.0).on_check(passed=True)
    assert not alone.is_last_resort(1.0)
    assert several.is_last_resort(LAST_RESORT_S)
    assert not several.is_last_resort(1.0 + LAST_RESORT_S)
    assert not several.on_success().is_last_resort(1.0)


def test_of_many_replicas_two_are_drawn_by_the_dice_and_the_holder_of_a_prefix_beside_them():
    plain = [ReplicaLoad(f"r{number}", in_flight=number % 3) for number in range(10)]
    pairs = set()
    for one in range(10):
        for two in range(9):
            ranked = rank_replicas(plain, (one / 10 + 0.001, two / 9 + 0.001))
            drawn = {f"r{one}", f"r{(one + 1 + two) % 10}"}
            assert set(ranked[:2]) == drawn
            pairs.add(frozenset(drawn))
    assert len(pairs) == 45  # each pair
    held = [*plain[:4], ReplicaLoad("r4", in_flight=1, prefix_blocks=1), *plain[5:]]
    assert set(rank_replicas(held, (0.0, 0.0))[:3]) == {"r0", "r1", "r4"}
    busy = [*held[:9], ReplicaLoad("r9", in_flight=9)]  # then load alone decides
    assert set(rank_replicas(busy, (0.0, 0.0))[:2]) == {"r0", "r1"}
    assert rank_replicas(busy, (0.0, 0.0))[2:] != rank_replicas(held, (0.0, 0.0))[2:]


def test_load_alone_decides_where_one_has_half_as_much_again_and_more_than_eight_more():
    def apart(most: int, least: int) -> bool:
        return is_imbalanced([ReplicaLoad("a", in_flight=most), ReplicaLoad("b", waiting=least)])

    assert [apart(9, 0), apart(8, 0), apart(30, 20), apart(31, 20), apart(18, 9), apart(17, 9)] == [
        True, False, False, True, True, False,
    ]  # fmt: skip


def test_equal_replicas_take_turns_and_a_draw_near_one_takes_the_last():
    loads = [ReplicaLoad(name) for name in "abcd"]
    assert [rank_replicas(loads, (draw, 0.0))[0] for draw in (0.0, 0.25, 0.49, 0.5, 0.999)] == ["a", "b", "b", "c", "d"]
    assert rank_replicas(loads, (0.5, 0.0)) == ["c", "d", "a", "b"]
    assert rank_replicas([], (0.0, 0.0)) == []


def test_a_table_forgets_the_least_lately_used_first_and_of_one_prompt_its_end():
    table, first, second = PrefixTable(max_blocks=4), hash_prefix(b"aabbcc", 2), hash_prefix(b"ddee", 2)
    table.add("x", first)
    table.add("y", second)
    assert (table.count_blocks("x", first), table.count_blocks("y", second), len(table)) == (2, 2, 4)
    table.add("x", first)  # used again: now the other's end goes
    assert (table.count_blocks("x", first), table.count_blocks("y", second)) == (3, 1)
    table.forget("x")
    assert (table.count_blocks("x", first), table.count_blocks("y", second), len(table)) == (0, 1, 1)


def test_of_one_prompt_no_more_blocks_are_counted_than_the_most():
    assert len(hash_prefix(b"a" * (MAX_PREFIX_BLOCKS + 1), 1)) == MAX_PREFIX_BLOCKS


def test_a_breaker_forgets_a_row_of_faults_with_a_success_and_with_a_failed_check():
    row = CircuitBreaker().on_fault("a", 5.0).on_fault("b", 6.0)
    assert row == CircuitBreaker(suspected=True, faults=2, caller="a", several=True)
    assert row.on_success() == CircuitBreaker()
    assert row.on_check(passed=False) == CircuitBreaker(tripped=True)
    assert row.on_check(passed=False).on_success() == CircuitBreaker(tripped=True)
    assert row.on_check(passed=True) == CircuitBreaker(faults=2, caller="a", several=True)
    assert row.on_fault("b", 7.0).several
    assert not CircuitBreaker().on_fault("a", 5.0).on_fault("a", 6.0).several


@pytest.mark.parametrize(("in_flight", "waiting", "running", "requests"), [(3, 1, 1, 3), (1, 2, 3, 5), (0, 0, 4, 4)])
def test_requests_under_way_are_the_hubs_own_or_what_the_engine_reports_if_that_is_more(
    in_flight, waiting, running, requests
):
    load = ReplicaLoad("a", in_flight, waiting, running)
    assert load.requests == score_replica(load) == requests
