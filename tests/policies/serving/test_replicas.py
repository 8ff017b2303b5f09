"""Routing among replicas: load, prefix credit, imbalance, two choices, residency, the circuit breaker."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.replicas import (
    BREAKER_FAULTS,
    LAST_RESORT_S,
    CircuitBreaker,
    PrefixTable,
    ReplicaLoad,
    filter_regions,
    hash_prefix,
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
