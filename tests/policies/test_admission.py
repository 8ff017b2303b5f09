"""Queue or refuse: early, cheap, fair. And the two smallest policies, batching and backoff."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import LONGEST_RETRY_S, SHORTEST_RETRY_S, Bucket, Limits, Load, Queue, Refuse, decide, take
from policies.backoff import delay
from policies.batching import size
from wire.messages import Reason

LIMITS = Limits(max_queued=100, max_device_open=16, max_device_rate_per_s=50.0, served_per_s=10.0)
COUNTS = st.integers(0, 200)


def reason(load: Load) -> Reason:
    decision = decide(load, LIMITS)
    assert isinstance(decision, Refuse)
    assert not decision.final
    return decision.reason


def test_an_idle_hub_takes_it():
    assert decide(Load(0, 0), LIMITS) == Queue()


def test_refusals_in_their_order():
    assert reason(Load(100, 99, 99.0, draining=True)) is Reason.DRAINING
    assert reason(Load(100, 99, 99.0)) is Reason.RATE
    assert reason(Load(100, 0)) is Reason.BUSY
    assert reason(Load(0, 16)) is Reason.RATE


def test_a_rate_that_is_no_number_is_refused():
    assert reason(Load(0, 0, math.nan)) is Reason.RATE


def test_a_full_queue_says_when_it_will_be_empty():
    decision = decide(Load(150, 0), LIMITS)
    assert isinstance(decision, Refuse)
    assert decision.retry_after_s == 15.0


def test_one_greedy_device_cannot_fill_the_queue():
    open_of_one = 0
    while isinstance(decide(Load(90 + open_of_one, open_of_one), LIMITS), Queue):
        open_of_one += 1
    assert open_of_one < 10, "90 of 100 places are taken: the greedy one may not have the rest"
    assert decide(Load(90 + open_of_one, 0), LIMITS) == Queue(), "and a quiet one is still let in"


@given(COUNTS, COUNTS, COUNTS, st.floats(0, 100))
def test_a_device_with_fewer_open_questions_is_never_worse_off(queued, first, second, rate):
    few, many = sorted((first, second))
    if isinstance(decide(Load(queued, many, rate), LIMITS), Queue):
        assert decide(Load(queued, few, rate), LIMITS) == Queue()


@given(COUNTS, COUNTS, COUNTS)
def test_a_fuller_queue_never_takes_what_an_emptier_one_refuses(first, second, device_open):
    low, high = sorted((first, second))
    if isinstance(decide(Load(high, device_open), LIMITS), Queue):
        assert decide(Load(low, device_open), LIMITS) == Queue()


@given(COUNTS, COUNTS, st.floats(), st.booleans())
def test_bounds_hold_and_a_refusal_always_says_when_to_come_back(queued, device_open, rate, draining):
    decision = decide(Load(queued, device_open, rate, draining), LIMITS)
    if isinstance(decision, Refuse):
        assert SHORTEST_RETRY_S <= decision.retry_after_s <= LONGEST_RETRY_S
    else:
        assert queued < LIMITS.max_queued
        assert device_open < LIMITS.max_device_open


@given(st.lists(st.floats(0, 10), max_size=60), st.floats(0.1, 20), st.integers(1, 20))
def test_a_bucket_never_gives_more_than_burst_plus_rate(gaps, rate, burst):
    bucket, now, taken = Bucket(float(burst), 0.0), 0.0, 0
    for gap in gaps:
        now += gap
        after = take(bucket, rate, burst, now)
        if after is not None:
            bucket, taken = after, taken + 1
    assert taken <= burst + rate * now + 1e-6


def test_a_bucket_fills_again_and_a_clock_that_goes_back_adds_nothing():
    empty = take(Bucket(1.0, 10.0), 2.0, 1.0, 10.0)
    assert empty == Bucket(0.0, 10.0)
    assert take(empty, 2.0, 1.0, 10.4) is None
    assert take(empty, 2.0, 1.0, 5.0) is None
    assert take(Bucket(5.0, 10.0), 2.0, 5.0, 8.0) == Bucket(4.0, 10.0)
    assert take(empty, 2.0, 1.0, 10.5) == Bucket(0.0, 10.5)


@pytest.mark.parametrize(
    ("queued", "free_slots", "expected"),
    [(0, 1, 0), (5, 0, 0), (1, 1, 1), (5, 1, 5), (50, 1, 32), (5, 2, 3), (-1, 1, 0)],
)
def test_an_idle_engine_gets_what_is_there(queued, free_slots, expected):
    assert size(queued, 32, free_slots) == expected


@given(st.integers(1, 1000), st.integers(1, 64), st.integers(1, 8))
def test_all_free_slots_together_empty_the_queue_or_are_full(queued, max_batch, free_slots):
    batch = size(queued, max_batch, free_slots)
    assert 1 <= batch <= max_batch
    assert batch == max_batch or batch * free_slots >= queued


@given(st.integers(0, 10**9), st.floats(0, 1), st.floats(0, 100), st.floats(0, 3600))
def test_a_delay_is_within_its_bounds(attempt, jitter, base_s, cap_s):
    waited = delay(attempt, jitter, base_s, cap_s)
    assert 0 <= waited <= cap_s
    assert waited <= delay(attempt, 1.0, base_s, cap_s)


def test_delays_double_up_to_the_cap():
    assert [delay(attempt, 1.0) for attempt in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert delay(3, 0.5) == 4.0


@pytest.mark.parametrize(("attempt", "jitter"), [(-1, 0.5), (0, -0.1), (0, 1.1), (0, math.nan)])
def test_an_impossible_delay_fails_loudly(attempt, jitter):
    with pytest.raises(ValueError):
        delay(attempt, jitter)
