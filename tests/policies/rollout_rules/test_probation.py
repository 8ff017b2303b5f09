"""Probation checks, each at its limit; and a model as good as the one before is not rolled back by chance."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.rollout_rules.probation import DEFAULT_LIMITS, find_breach, find_end, is_soak_over
from tests.edge_agent.doubles.install_world import make_assignment
from wire.protocol.rollout import DeviceSignals

FINE = DeviceSignals(inferences=1000, escalated=200, p95_us=1000, starts=1)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
COUNTS = st.integers(0, 10**9)


def test_a_model_like_the_one_before_may_stay():
    assert find_breach(FINE, FINE, 0) == ""
    assert find_breach(DeviceSignals(), DeviceSignals(), 0) == ""


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (replace(FINE, crashes=3), "crashes"),
        (replace(FINE, inferences=200, crashes=1), "crashes"),
        (replace(FINE, errors=50), "errors"),
        (replace(FINE, inferences=3, errors=3, escalated=0), "errors"),
        (replace(FINE, escalated=400), "unsure"),
        (replace(FINE, p95_us=5000), "95 of 100"),
        (replace(FINE, confidence=float("nan")), "no number"),
        (replace(FINE, confidence_sq=float("inf")), "no number"),
        (replace(FINE, rss_bytes=241 << 20), "memory"),
    ],
)
def test_any_one_gate_is_enough(seen, words):
    assert words in find_breach(seen, FINE, 200 << 20)


@pytest.mark.parametrize(
    "seen",
    [
        replace(FINE, crashes=2),
        replace(FINE, inferences=199, crashes=1),
        replace(FINE, errors=2),
        replace(FINE, errors=15),
        replace(FINE, escalated=330),
        replace(FINE, p95_us=4999),
        replace(FINE, rss_bytes=240 << 20),
        replace(FINE, inferences=199, escalated=199, p95_us=10**6),
    ],
)
def test_up_to_its_edge_each_gate_says_nothing(seen):
    assert find_breach(seen, FINE, 200 << 20) == ""


@pytest.mark.parametrize(("usual_us", "breach"), [(0, False), (1, True)])
def test_a_latency_of_nothing_was_not_measured_and_any_other_is_a_baseline(usual_us, breach):
    found = find_breach(replace(FINE, p95_us=10**6), replace(FINE, p95_us=usual_us), 0)
    assert bool(found) is breach


def test_what_was_never_seen_before_is_no_baseline_for_speed_or_doubt():
    assert find_breach(replace(FINE, escalated=1000, p95_us=10**6), DeviceSignals(inferences=199), 0) == ""


@pytest.mark.parametrize(
    ("before_us", "seen_us", "breach"),
    [
        (400, 2000, True),  # within 5 ms, and five times
        (400, 1999, False),
        (20, 100, False),  # five times, and no more than a cold cache explains
        (20_000, 25_000, False),
        (20_000, 25_001, True),  # a quarter, and more than 5 ms
    ],
)
def test_five_times_slower_is_a_regression_within_5_ms_too(before_us, seen_us, breach):
    found = find_breach(replace(FINE, p95_us=seen_us), replace(FINE, p95_us=before_us), 0)
    assert ("95 of 100" in found) is breach


def test_a_thousand_models_that_are_as_good_stay_at_every_look():
    dice = random.Random(8)
    for _ in range(1000):
        before = DeviceSignals(inferences=360, escalated=sum(dice.random() < 0.2 for _ in range(360)))
        seen = DeviceSignals()
        for _ in range(6):
            more = sum(dice.random() < 0.2 for _ in range(100))
            seen = replace(seen, inferences=seen.inferences + 100, escalated=seen.escalated + more)
            assert find_breach(seen, before, 0) == ""


def test_a_model_that_doubts_forty_points_more_goes_back_with_its_first_two_hundred_answers():
    dice = random.Random(9)
    for _ in range(100):
        before = DeviceSignals(inferences=1000, escalated=200)
        seen = DeviceSignals(inferences=200, escalated=sum(dice.random() < 0.6 for _ in range(200)))
        assert find_breach(seen, before, 0)


@given(
    st.builds(DeviceSignals, *[COUNTS] * 3, NUMBERS, NUMBERS, *[COUNTS] * 4),
    st.builds(DeviceSignals, *[COUNTS] * 3),
    COUNTS,
)
def test_whatever_was_counted_the_gates_have_an_answer(seen, before, declared):
    assert isinstance(find_breach(seen, before, declared, DEFAULT_LIMITS), str)


@pytest.mark.parametrize(
    ("inferences", "elapsed_s", "enough"),
    [
        (199, 1800.0, False),
        (200, 1799.9, False),
        (200, 1800.0, True),
        (1, 86_400.0, True),
        (0, 86_400.0, False),
        (200, float("nan"), False),
    ],
)
def test_it_is_committed_after_time_and_answers_or_after_the_longest_time(inferences, elapsed_s, enough):
    assert is_soak_over(DeviceSignals(inferences=inferences), elapsed_s, make_assignment(1, 0)) is enough


@pytest.mark.parametrize(
    ("answers", "least", "elapsed_s", "ends"),
    [(0, 1, 99.0, False), (0, 1, 100.0, True), (1, 1, 100.0, False), (0, 0, 100.0, False)],
)
def test_a_model_that_never_answered_goes_back_after_its_longest_soak(answers, least, elapsed_s, ends):
    terms = make_assignment(1, 0, max_soak_s=100.0, min_inferences=least)
    found = find_end(DeviceSignals(inferences=answers), elapsed_s, 0, terms)
    assert found == ("no answer in 100 s: nothing shows how it answers" if ends else "")


@pytest.mark.parametrize(("needs_release", "late_ms", "ends"), [(True, -1, False), (True, 0, True), (False, 0, False)])
def test_a_model_that_was_not_released_goes_back_when_its_assignment_expires(needs_release, late_ms, ends):
    terms = make_assignment(1, 0, max_soak_s=100.0, needs_release=needs_release)
    found = find_end(FINE, 0.0, terms.expires_ms + late_ms, terms)
    assert found == ("the hub did not release it in time" if ends else "")


def test_a_model_that_did_not_crash_and_did_not_answer_breaks_no_limit_of_crashes():
    limits = replace(DEFAULT_LIMITS, min_samples=0)
    assert find_breach(DeviceSignals(), DeviceSignals(), 0, limits) == ""
    assert find_breach(DeviceSignals(crashes=1), DeviceSignals(), 0, limits) == "1 crashes in 0 answers"
