"""Routing among replicas: load, prefix credit, imbalance, two choices, residency, the circuit breaker."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.replicas import (
    BREAKER_FAILURES,
    BREAKER_OPEN_S,
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


def test_the_breaker_opens_after_five_failures_and_closes_after_two_successes():
    breaker = CircuitBreaker()
    for _ in range(BREAKER_FAILURES):
        assert breaker.admits(3, 0.0)
        breaker = breaker.on_failure(0.0)
    assert not breaker.admits(0, BREAKER_OPEN_S - 1)
    assert breaker.admits(0, BREAKER_OPEN_S)
    assert not breaker.admits(1, BREAKER_OPEN_S)  # half open: one at a time
    assert not breaker.on_failure(BREAKER_OPEN_S).admits(0, BREAKER_OPEN_S + 1)
    half = breaker.on_success()
    assert not half.admits(1, BREAKER_OPEN_S)
    assert half.on_success().admits(1, 0.0)
