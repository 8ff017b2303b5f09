"""Admission control: bounds, shares, retry times; and exponential backoff."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.monitoring.backoff import compute_delay, compute_taken_over_pause
from policies.serving.admission import (
    DEVICE_KEENNESS,
    MAX_RETRY_S,
    MIN_RETRY_S,
    OWN_PART,
    OWN_TENANTS,
    TENANT_KEENNESS,
    AdmissionLimits,
    AdmissionLoad,
    AdmitQuestion,
    RateLimit,
    RefuseQuestion,
    RetrySchedule,
    TokenBucket,
    compute_band_ceiling,
    compute_capacity,
    compute_flow_share,
    decide_admission,
    estimate_service_rate,
    is_within_own,
    schedule_retry,
    seconds_until_token,
    settle_bucket,
    take_token,
)
from policies.serving.fair_queue import HIGH, LOW, NORMAL
from wire.protocol.messages import RefusalReason

LIMITS = AdmissionLimits(max_queued=100, max_device_open=16, max_wait_s=60.0, held_back=0.3, served_per_s=10.0)
COUNTS = st.integers(0, 200)


def reason(load: AdmissionLoad) -> RefusalReason:
    decision = decide_admission(load, LIMITS)
    assert isinstance(decision, RefuseQuestion)
    assert not decision.final
    return decision.reason


def test_an_idle_hub_takes_it():
    assert decide_admission(AdmissionLoad(0, 0), LIMITS) == AdmitQuestion()


def test_refusals_in_their_order():
    assert reason(AdmissionLoad(100, 99, draining=True)) is RefusalReason.DRAINING
    assert reason(AdmissionLoad(100, 0)) is RefusalReason.BUSY
    assert reason(AdmissionLoad(0, 16)) is RefusalReason.RATE


def test_a_full_queue_says_when_it_will_be_empty():
    decision = decide_admission(AdmissionLoad(150, 0), LIMITS)
    assert isinstance(decision, RefuseQuestion)
    assert decision.retry_after_s == 15.0


def test_one_greedy_device_cannot_fill_the_queue():
    open_of_one = 0
    while isinstance(decide_admission(AdmissionLoad(90 + open_of_one, open_of_one), LIMITS), AdmitQuestion):
        open_of_one += 1
    assert open_of_one < 10, "90 of 100 places are taken: the greedy one may not have the rest"
    assert decide_admission(AdmissionLoad(90 + open_of_one, 0), LIMITS) == AdmitQuestion(), (
        "and a quiet one is still let in"
    )


@given(COUNTS, COUNTS, COUNTS)
def test_a_device_with_fewer_open_questions_is_never_worse_off(queued, first, second):
    few, many = sorted((first, second))
    if isinstance(decide_admission(AdmissionLoad(queued, many), LIMITS), AdmitQuestion):
        assert decide_admission(AdmissionLoad(queued, few), LIMITS) == AdmitQuestion()


@given(COUNTS, COUNTS, COUNTS)
def test_a_fuller_queue_never_takes_what_an_emptier_one_refuses(first, second, device_open):
    low, high = sorted((first, second))
    if isinstance(decide_admission(AdmissionLoad(high, device_open), LIMITS), AdmitQuestion):
        assert decide_admission(AdmissionLoad(low, device_open), LIMITS) == AdmitQuestion()


@given(COUNTS, COUNTS, st.floats(), st.booleans())
def test_bounds_hold_and_a_refusal_always_says_when_to_come_back(queued, device_open, ahead, draining):
    decision = decide_admission(AdmissionLoad(queued, device_open, draining, ahead=ahead), LIMITS)
    if isinstance(decision, RefuseQuestion):
        assert MIN_RETRY_S <= decision.retry_after_s <= MAX_RETRY_S
    else:
        assert queued < LIMITS.max_queued
        assert device_open < LIMITS.max_device_open


@given(st.lists(st.floats(0, 10), max_size=60), st.floats(0.1, 20), st.integers(1, 20))
def test_a_bucket_never_gives_more_than_burst_plus_rate(gaps, rate, burst):
    bucket, now, taken = TokenBucket(float(burst), 0.0), 0.0, 0
    for gap in gaps:
        now += gap
        after = take_token(bucket, rate, burst, now)
        if after is not None:
            bucket, taken = after, taken + 1
    assert taken <= burst + rate * now + 1e-6


def test_a_bucket_fills_again_and_a_clock_that_goes_back_adds_nothing():
    empty = take_token(TokenBucket(1.0, 10.0), 2.0, 1.0, 10.0)
    assert empty == TokenBucket(0.0, 10.0)
    assert take_token(empty, 2.0, 1.0, 10.4) is None
    assert take_token(empty, 2.0, 1.0, 5.0) is None
    assert take_token(TokenBucket(5.0, 10.0), 2.0, 5.0, 8.0) == TokenBucket(4.0, 10.0)
    assert take_token(empty, 2.0, 1.0, 10.5) == TokenBucket(0.0, 10.5)


@given(st.integers(0, 10**9), st.floats(0, 1), st.floats(0, 100), st.floats(0, 3600))
def test_a_delay_is_within_its_bounds(attempt, jitter, base_s, cap_s):
    waited = compute_delay(attempt, jitter, base_s, cap_s)
    assert 0 <= waited <= cap_s
    assert waited <= compute_delay(attempt, 1.0, base_s, cap_s)


def test_delays_double_up_to_the_cap():
    assert [compute_delay(attempt, 1.0) for attempt in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert compute_delay(3, 0.5) == 4.0


@pytest.mark.parametrize(("attempt", "jitter"), [(-1, 0.5), (0, -0.1), (0, 1.1), (0, math.nan)])
def test_an_impossible_delay_fails_loudly(attempt, jitter):
    with pytest.raises(ValueError):
        compute_delay(attempt, jitter)


def test_lower_bands_find_the_queue_full_sooner():
    assert [compute_band_ceiling(band, 100, 0.3) for band in (HIGH, NORMAL, LOW)] == [100, 85, 70]
    for band, queued in ((LOW, 70), (NORMAL, 85), (HIGH, 100)):
        many = AdmissionLoad(queued, 0, band=band, tenants=OWN_TENANTS + 1)
        assert decide_admission(replace(many, queued=queued - 1), LIMITS) == AdmitQuestion()
        assert reason(many) is RefusalReason.BUSY


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(HIGH, LOW)), max_size=60), st.integers(HIGH, LOW))
def test_however_ten_tenants_fill_the_queue_another_has_the_places_that_are_its_own(asked, band):
    limits = replace(LIMITS, max_queued=512, served_per_s=1e6)
    held: Counter[int] = Counter()
    for tenant, urgency in asked:
        for _ in range(64):
            load = AdmissionLoad(held.total(), 0, tenant_open=held[tenant], band=urgency, tenants=len(held))
            held[tenant] += decide_admission(load, limits) == AdmitQuestion()
    for own in range(int(OWN_PART * 512 / OWN_TENANTS)):
        load = AdmissionLoad(held.total() + own, own, tenant_open=own, band=band, tenants=11)
        assert decide_admission(load, limits) == AdmitQuestion()


def test_nobody_is_let_in_to_wait_longer_than_the_limit_says():
    limits = replace(LIMITS, max_queued=1000, max_wait_s=2.0, served_per_s=500.0)
    assert compute_capacity(AdmissionLoad(0, 0, served_per_s=100.0), limits) == 200
    assert compute_capacity(AdmissionLoad(0, 0, served_per_s=math.inf), limits) == 1000
    assert decide_admission(AdmissionLoad(150, 0, served_per_s=100.0, ahead=199.0), limits) == AdmitQuestion()
    late = decide_admission(AdmissionLoad(150, 0, served_per_s=100.0, ahead=500.0), limits)
    assert late == RefuseQuestion(RefusalReason.BUSY, 3.0)


def test_a_caller_with_little_patience_is_refused_where_others_wait():
    load = AdmissionLoad(50, 0, served_per_s=10.0, ahead=20.0)
    assert decide_admission(load, LIMITS) == AdmitQuestion()
    hurried = replace(load, budget_s=2.5)
    assert isinstance(decide_admission(hurried, LIMITS), RefuseQuestion)


@given(st.integers(1, 500), st.floats(0.1, 1000), st.floats(1, 60))
def test_a_crowd_is_sent_back_one_after_the_other_and_never_beyond_the_limit(count, per_s, first_s):
    line, told = RetrySchedule(), []
    for _ in range(count):
        line, refused = schedule_retry(line, RefuseQuestion(RefusalReason.BUSY, first_s), per_s, 1000.0)
        told.append(refused.retry_after_s)
    assert told == sorted(told)
    assert first_s - 1e-6 <= told[0]
    assert all(MIN_RETRY_S - 1e-6 <= each <= MAX_RETRY_S for each in told)
    within = [each for each in told if each < MAX_RETRY_S]
    assert len(within) <= (MAX_RETRY_S - first_s) * per_s + 1.001


@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 64))
def test_a_share_leaves_room_for_whoever_has_nothing(queued, places, most):
    assert 1 <= compute_flow_share(queued, places, DEVICE_KEENNESS, most) <= most


@given(st.floats(0, 10), st.floats(0.1, 20), st.floats(0, 100))
def test_who_waits_as_long_as_told_finds_a_token(tokens, rate, now):
    bucket = TokenBucket(tokens, now)
    if take_token(bucket, rate, 10.0, now) is None:
        assert (
            take_token(bucket, rate, 10.0, now + seconds_until_token(bucket, rate, now) + 1e-6) is not None
            or rate < 1 / 60
        )


def test_a_tenant_that_holds_its_whole_share_is_refused_and_not_one_question_later():
    limits = replace(LIMITS, max_queued=100, max_device_open=1000, served_per_s=10.0)
    share = compute_flow_share(50, compute_capacity(AdmissionLoad(50, 0), limits), TENANT_KEENNESS, 100)
    just_under = AdmissionLoad(50, 0, tenant_open=share - 1)
    at_share = AdmissionLoad(50, 0, tenant_open=share)
    assert decide_admission(just_under, limits) == AdmitQuestion()
    refused = decide_admission(at_share, limits)
    assert isinstance(refused, RefuseQuestion)
    assert refused.reason is RefusalReason.RATE


def test_a_clock_that_goes_back_does_not_let_a_settled_bucket_earn_the_same_seconds_twice():
    limit = RateLimit(rate_per_s=1.0, burst=100.0)
    ahead = settle_bucket(TokenBucket(0.0, 0.0), limit, 10.0)
    back = settle_bucket(ahead, limit, 5.0)
    assert back == ahead == TokenBucket(10.0, 10.0)
    assert settle_bucket(back, limit, 10.0) == TokenBucket(10.0, 10.0)


def test_a_flow_may_have_so_many_times_what_is_left_at_least_one_and_at_most_its_limit():
    shares = [(50, 100, 4.0, 400), (90, 100, 0.5, 64), (90, 100, 1.0, 64), (100, 100, 1.0, 64), (0, 100, 4.0, 64)]
    assert [compute_flow_share(*each) for each in shares] == [200, 5, 10, 1, 64]


def test_a_tenants_own_places_are_its_part_of_an_eighth_of_all_and_at_least_one():
    for places, own in ((1, 1), (128, 1), (255, 1), (256, 2), (1280, 10)):
        limits = replace(LIMITS, max_queued=places, max_device_open=own + 1, served_per_s=1e6)
        for load, within in (
            (AdmissionLoad(0, own - 1, tenant_open=own - 1, tenants=OWN_TENANTS), True),
            (AdmissionLoad(0, own, tenant_open=own - 1, tenants=OWN_TENANTS), False),
            (AdmissionLoad(0, own - 1, tenant_open=own, tenants=OWN_TENANTS), False),
            (AdmissionLoad(0, own - 1, tenant_open=own - 1, tenants=OWN_TENANTS + 1), False),
        ):
            assert is_within_own(load, compute_capacity(load, limits)) == within, (places, load)


@pytest.mark.parametrize("band", [HIGH, NORMAL, LOW])
@pytest.mark.parametrize(("places", "tenants"), [(2, 1), (2, 17), (3, 1), (16, 16), (16, 17), (1000, 1), (1000, 17)])
def test_a_queue_is_full_for_a_tenant_with_much_open_at_seven_eighths_or_where_its_band_ends(band, places, tenants):
    limits = replace(LIMITS, max_queued=places, max_device_open=10**6, served_per_s=1e6)
    ends = max(1, math.ceil(places * (1 - 0.3 * band / 2)))
    if tenants <= OWN_TENANTS:
        ends = min(ends, max(1, int(places * 7 / 8)))
    own = max(1, places // 128)
    for queued in range(max(0, ends - 2), ends + 2):
        load = AdmissionLoad(queued, 1, tenant_open=own, band=band, tenants=tenants)
        decided = decide_admission(load, limits)
        full = isinstance(decided, RefuseQuestion) and decided.reason is RefusalReason.BUSY
        assert full == (queued >= ends), queued


def test_a_device_with_all_it_may_have_open_is_refused_whatever_room_there_is_and_comes_back_when_one_is_answered():
    limits = replace(LIMITS, max_queued=12_800, max_device_open=16, served_per_s=1e3)
    own = AdmissionLoad(0, 16, tenants=1)  # of the hundred places that are its own
    assert decide_admission(own, limits) == RefuseQuestion(RefusalReason.RATE, 2.0)
    assert decide_admission(replace(own, device_open=15), limits) == AdmitQuestion()
    many = AdmissionLoad(0, 16, tenant_open=200, tenants=1)
    assert decide_admission(many, limits) == RefuseQuestion(RefusalReason.RATE, 2.0)
    slow = replace(many, served_per_s=4.0)
    assert decide_admission(slow, limits) == RefuseQuestion(RefusalReason.RATE, 4.0)
    crowd = AdmissionLoad(90, 1, tenant_open=50, served_per_s=10.0, tenants=17)
    assert decide_admission(crowd, LIMITS) == RefuseQuestion(RefusalReason.RATE, 5.0)


def test_a_refusal_for_a_full_queue_draining_or_haste_says_its_time():
    assert decide_admission(AdmissionLoad(0, 0, draining=True), LIMITS) == RefuseQuestion(RefusalReason.DRAINING, 5.0)
    assert decide_admission(AdmissionLoad(100, 0, served_per_s=20.0), LIMITS) == RefuseQuestion(RefusalReason.BUSY, 5.0)
    hurried = AdmissionLoad(50, 0, served_per_s=10.0, ahead=35.0, budget_s=5.0)
    assert decide_admission(hurried, LIMITS) == AdmitQuestion()  # seven tenths of five seconds
    later = replace(hurried, ahead=85.0)
    assert decide_admission(later, LIMITS) == RefuseQuestion(RefusalReason.BUSY, 5.0)
    assert reason(replace(hurried, ahead=math.nan)) is RefusalReason.BUSY


def test_until_engines_were_measured_the_configured_rate_counts():
    rates = [
        estimate_service_rate(AdmissionLoad(0, 0, served_per_s=each), LIMITS) for each in (0.0, -1.0, 0.5, math.inf)
    ]
    assert rates == [10.0, 10.0, 0.5, 10.0]
    assert compute_capacity(AdmissionLoad(0, 0, served_per_s=0.001), LIMITS) == 1


def test_a_refusal_that_is_final_stays_final_whenever_it_is_sent_back():
    final = RefuseQuestion(RefusalReason.BUSY, 3.0, final=True)
    assert schedule_retry(RetrySchedule(), final, 4.0, 100.0) == (RetrySchedule(103.25), final)
    full = RetrySchedule(100.0 + MAX_RETRY_S)
    assert schedule_retry(full, final, 4.0, 100.0) == (
        full,
        RefuseQuestion(RefusalReason.BUSY, MAX_RETRY_S, final=True),
    )


def test_a_client_whose_session_was_taken_over_waits_one_minute_to_two():
    assert [compute_taken_over_pause(dice) for dice in (0.0, 0.5, 1.0)] == [60.0, 90.0, 120.0]
    assert [compute_delay(attempt, 1.0, 1e-9, 1e9) for attempt in (32, 33, 10**9)] == [pytest.approx(2**32 * 1e-9)] * 3
