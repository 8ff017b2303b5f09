"""Limits of serving, at their edges: the last value that is allowed or counts, and the first that does not."""

from math import inf, nan

import pytest

from policies.serving import admission, batching, replicas, running_shares
from policies.serving.admission import (
    MAX_RETRY_S,
    MIN_RETRY_S,
    RefuseQuestion,
    RetrySchedule,
    TokenBucket,
    schedule_retry,
    seconds_until_token,
    take_token,
)
from policies.serving.batching import BACKGROUND_SHARE, BatchCost, choose_batch_size, limit_background
from policies.serving.replicas import (
    BREAKER_FAULTS,
    KV_FREE,
    KV_PENALTY,
    LAST_RESORT_S,
    CircuitBreaker,
    ReplicaLoad,
    score_replica,
)
from policies.serving.scaling import ScalingRules
from policies.serving.transformer import (
    DecoderLoad,
    TransformerShape,
    count_activation_bytes,
    count_parameters,
    list_needs,
)
from wire.protocol.messages import RefusalReason

SMALL = TransformerShape(2, 64, 8, 4, 8, 256, 1000)
TIMES = ("deadline_s", "drain_s", "backlog_s", "down_after_s", "idle_s", "room_s")


def test_the_defaults_of_scaling_are_these():
    rules = ScalingRules()
    assert (rules.floor, rules.ceiling, rules.busy_share, rules.deadline_s, rules.drain_s) == (1, 8, 0.8, 1.0, 10.0)
    assert (rules.backlog_s, rules.down_after_s, rules.idle_s) == (900.0, 600.0, 900.0)
    assert (rules.room_items, rules.room_s) == (1000, 60.0)


def test_the_numbers_of_routing_and_sharing_are_these():
    found = (
        MIN_RETRY_S, MAX_RETRY_S, BREAKER_FAULTS, LAST_RESORT_S, KV_FREE, KV_PENALTY, BACKGROUND_SHARE,
        replicas.IMBALANCE_RATIO, replicas.IMBALANCE_GAP, replicas.ALL_COMPARED, running_shares.MEMORY_S,
        admission.PATIENCE_SHARE, admission.OWN_PART, admission.OWN_TENANTS, batching.USEFUL_RATE,
    )  # fmt: skip
    assert found == (1.0, 60.0, 5, 30.0, 0.5, 6.0, 0.05, 1.5, 8.0, 8, 10.0, 0.7, 1 / 8, 16, 0.9)


@pytest.mark.parametrize("name", TIMES)
def test_a_time_of_scaling_is_above_nothing_and_ends(name):
    assert getattr(ScalingRules(**{name: 1e-9}), name) == 1e-9  # type: ignore[arg-type]
    for value in (0.0, -1.0, inf, nan):
        with pytest.raises(ValueError, match=name):
            ScalingRules(**{name: value})  # type: ignore[arg-type]


def test_a_floor_is_from_nothing_to_the_ceiling_and_the_ceiling_at_least_one():
    for floor, ceiling in ((0, 1), (1, 1), (8, 8)):
        assert ScalingRules(floor=floor, ceiling=ceiling).floor == floor
    for floor, ceiling in ((-1, 1), (2, 1), (0, 0)):
        with pytest.raises(ValueError, match="floor"):
            ScalingRules(floor=floor, ceiling=ceiling)


def test_a_busy_share_is_above_nothing_and_at_most_all():
    assert ScalingRules(busy_share=1.0).busy_share == 1.0
    for share in (0.0, -0.1, 1.01, nan):
        with pytest.raises(ValueError, match="busy_share"):
            ScalingRules(busy_share=share)


def test_the_time_until_a_token_is_what_is_missing_by_the_rate_within_the_bounds_of_a_retry():
    assert seconds_until_token(TokenBucket(0.5, 10.0), 0.25, 10.0) == pytest.approx(2.0)
    assert seconds_until_token(TokenBucket(0.5, 10.0), 0.25, 11.0) == pytest.approx(1.0)
    assert seconds_until_token(TokenBucket(1.0, 10.0), 0.25, 10.0, 3.0) == pytest.approx(8.0)
    assert seconds_until_token(TokenBucket(0.0, 10.0), 1e-9, 10.0) == MAX_RETRY_S
    assert seconds_until_token(TokenBucket(5.0, 10.0), 1.0, 10.0) == MIN_RETRY_S


def test_a_token_is_taken_when_it_is_just_there_and_a_clock_that_goes_back_earns_none():
    assert take_token(TokenBucket(0.0, 0.0), 1.0, 5.0, 1.0) == TokenBucket(0.0, 1.0)
    assert take_token(TokenBucket(0.0, 0.0), 1.0, 5.0, 0.999) is None
    assert take_token(TokenBucket(1.0, 10.0), 1.0, 5.0, 2.0) == TokenBucket(0.0, 10.0)
    assert take_token(TokenBucket(0.0, 0.0), 1.0, 5.0, 100.0) == TokenBucket(4.0, 100.0)


def test_a_batch_is_formed_of_what_waits_and_of_none_without_items_or_slots():
    assert [choose_batch_size(queued, 8, 2) for queued in (-1, 0, 1, 2, 3, 15, 16, 17)] == [0, 0, 1, 1, 2, 8, 8, 8]
    assert [choose_batch_size(4, 8, free) for free in (-1, 0, 1)] == [0, 0, 4]


def test_background_items_fill_a_batch_by_a_share_of_its_time_and_without_limit_where_none_is_known():
    cost = BatchCost(0.05, 0.002)
    assert limit_background(10.0, 4.0, cost) == pytest.approx(10.0 + BACKGROUND_SHARE * 0.07 / 0.002)
    assert limit_background(0.0, 4.0, cost) == pytest.approx(4.0 + BACKGROUND_SHARE * 0.058 / 0.002)
    assert limit_background(0.0, 0.0, cost) == inf
    assert limit_background(10.0, 4.0, BatchCost(0.05, 0.0)) == inf


def test_a_replica_is_a_last_resort_only_after_enough_faults_of_several_callers():
    breaker = CircuitBreaker()
    for number in range(BREAKER_FAULTS - 1):
        breaker = breaker.on_fault(f"caller-{number % 2}", 100.0)
        assert breaker.last_until_s == -inf
    at_limit = breaker.on_fault("caller-0", 100.0)
    assert at_limit.last_until_s == 100.0 + LAST_RESORT_S
    alone = CircuitBreaker()
    for _ in range(3 * BREAKER_FAULTS):
        alone = alone.on_fault("caller", 100.0)
    assert (alone.last_until_s, alone.suspected, alone.admits) == (-inf, True, True)
    assert (at_limit.on_check(passed=False).admits, at_limit.on_check(passed=True).suspected) == (False, False)
    assert at_limit.on_check(passed=True).is_last_resort(100.0), "a passed check does not undo what callers met"
    assert not at_limit.on_check(passed=True).is_last_resort(100.0 + LAST_RESORT_S)


def test_a_fuller_cache_counts_by_what_waits_for_it_from_eight_tenths_on():
    def score(share: float, waiting: int = 10) -> float:
        return score_replica(ReplicaLoad("a", waiting=waiting, kv_usage=share), with_prefix=False)

    assert KV_FREE == 0.5
    assert score(0.0) == score(KV_FREE) == 10.0
    assert score(1.0) == pytest.approx(10.0 + KV_PENALTY * 10 * (1.0 - KV_FREE))
    assert score(1.0, waiting=0) == 0.0


def test_an_encoder_has_one_table_whether_tied_or_not_and_a_decoder_two_unless_tied():
    def parameters(*, decoder: bool, tied: bool) -> float:
        shape = TransformerShape(2, 64, 8, 4, 8, 256, 1000, decoder=decoder, tied=tied)
        return count_parameters(shape).total

    one_table = parameters(decoder=True, tied=True)
    assert parameters(decoder=False, tied=False) == parameters(decoder=False, tied=True) == one_table
    assert parameters(decoder=True, tied=False) == one_table + 1000 * 64


def test_layouts_have_a_layer_for_each_stage_and_divide_the_heads():
    layouts = [(tensor, pipeline) for tensor in (1, 2, 3, 4, 8, 16) for pipeline in (1, 2, 3)]
    found = [(need.tensor, need.pipeline) for need in list_needs(SMALL, DecoderLoad(1, 8), 1e6, layouts)]
    assert found == [(tensor, pipeline) for tensor in (1, 2, 4, 8) for pipeline in (1, 2)]


def test_the_scores_of_the_vocabulary_are_alive_beside_the_widest_layer():
    one, two = (count_activation_bytes(SMALL, DecoderLoad(sequences, 8)) for sequences in (1, 2))
    assert two - one == 4 * 1000  # four bytes for each score
    assert one == 4 * (2048 * (2 * 256 + 3 * 64 + 2 * 64) + 1000)


def test_refused_callers_come_back_one_by_one_at_the_rate_at_which_questions_are_served():
    refused, line, times = RefuseQuestion(RefusalReason.BUSY, 2.0), RetrySchedule(), []
    for _ in range(3):
        line, found = schedule_retry(line, refused, 4.0, 100.0)
        times.append(found.retry_after_s)
    assert times == [2.0, 2.25, 2.5]
    assert schedule_retry(RetrySchedule(), refused, 0.0, 100.0)[0].at == pytest.approx(102.0 + MIN_RETRY_S)
    full = RetrySchedule(100.0 + MAX_RETRY_S)
    line, found = schedule_retry(full, refused, 4.0, 100.0)
    assert (line, found.retry_after_s) == (full, MAX_RETRY_S)
