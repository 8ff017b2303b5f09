"""Rounds of the hub: what nothing waits for, how long the rest waits, and what a busy share is."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving.rounds import GatheredRound, RoundLimits, RoundLoad, find_round_end, learn_busy

LIMITS = RoundLimits(max_wait_s=0.01, deadline_share=0.02, full=16, calm=0.25)
FULL_LOAD = RoundLoad(open_questions=100, askers=100, busy=1.0)

limits = st.builds(
    RoundLimits, max_wait_s=st.floats(0, 0.1), deadline_share=st.floats(0, 1), full=st.integers(1, 64),
    calm=st.floats(0, 0.99),
)  # fmt: skip
loads = st.builds(
    RoundLoad, open_questions=st.integers(0, 5000), askers=st.integers(0, 5000), busy=st.floats(-1, 2)
)  # fmt: skip
rounds = st.builds(
    GatheredRound, began_s=st.floats(0, 2e9), questions=st.integers(0, 100), tightest=st.floats(-10, 4e9) | st.just(inf)
)  # fmt: skip


def wait_of(gathered: GatheredRound, load: RoundLoad, within: RoundLimits = LIMITS) -> float:
    return find_round_end(gathered, load, within) - gathered.began_s


def test_one_open_question_waits_for_nobody_however_busy_the_hub_is():
    assert wait_of(GatheredRound(5.0, 1), RoundLoad(1, 1, 1.0)) == 0.0


def test_a_device_that_asks_one_after_another_waits_for_nobody():
    """Its verdict is under way while it asks again: one asker, and the question before has ended."""
    assert wait_of(GatheredRound(5.0, 1), RoundLoad(open_questions=1, askers=1, busy=0.9)) == 0.0


def test_a_calm_hub_waits_for_nothing():
    assert wait_of(GatheredRound(5.0, 1), RoundLoad(100, 100, 0.25)) == 0.0


def test_a_round_in_which_all_who_are_expected_are_ends_at_once():
    assert wait_of(GatheredRound(5.0, 4), RoundLoad(4, 4, 1.0)) == 0.0


def test_a_round_that_is_worth_its_commit_ends_at_once():
    assert wait_of(GatheredRound(5.0, 16), FULL_LOAD) == 0.0


def test_a_busy_hub_gathers():
    assert wait_of(GatheredRound(0.0, 1), FULL_LOAD) == pytest.approx(0.01)
    assert wait_of(GatheredRound(0.0, 1), RoundLoad(100, 100, 0.625)) == pytest.approx(0.005)


def test_a_tight_deadline_shortens_the_wait():
    gathered = GatheredRound(0.0).add(10.0).add(0.1)
    assert gathered.tightest == 0.1
    assert wait_of(gathered, FULL_LOAD) == pytest.approx(0.002)


def test_a_deadline_that_has_passed_waits_no_longer():
    assert wait_of(GatheredRound(7.0, 1, tightest=3.0), FULL_LOAD) == 0.0


def test_without_questions_nothing_is_gathered():
    assert wait_of(GatheredRound(7.0), FULL_LOAD) == 0.0


@given(rounds, loads, limits)
def test_no_round_waits_longer_than_the_limit_or_the_share_of_its_tightest_deadline(gathered, load, within):
    wait = wait_of(gathered, load, within)
    slack = 1e-6 * max(1.0, gathered.began_s * 1e-3)  # of floats as large as a date
    assert 0.0 <= wait <= within.max_wait_s + slack
    if gathered.tightest < inf:
        assert wait <= within.deadline_share * max(0.0, gathered.tightest - gathered.began_s) + slack


@given(rounds, st.floats(-1, 2), limits)
def test_nothing_waits_when_one_question_is_open_and_one_device_asks(gathered, busy, within):
    assert wait_of(gathered, RoundLoad(1, 1, busy), within) == 0.0


@given(rounds, loads, limits, st.floats(0, 1))
def test_a_busier_loop_never_waits_shorter(gathered, load, within, more):
    busier = RoundLoad(load.open_questions, load.askers, load.busy + more)
    assert wait_of(gathered, busier, within) >= wait_of(gathered, load, within)


@given(rounds, loads, limits, st.floats(0, 4e9))
def test_one_more_question_never_makes_a_round_longer(gathered, load, within, deadline):
    before = wait_of(gathered, load, within)
    if gathered.questions:
        assert wait_of(gathered.add(deadline), load, within) <= before


@given(st.floats(0, 1), st.floats(-1, 10), st.floats(-1, 10))
def test_a_busy_share_is_a_share(before, worked, passed):
    assert 0.0 <= learn_busy(before, worked, passed) <= 1.0


def test_a_busy_share_follows_within_a_second_or_two():
    busy = 0.0
    for _ in range(20):
        busy = learn_busy(busy, 0.1, 0.1)
    assert busy > 0.8
    for _ in range(20):
        busy = learn_busy(busy, 0.0, 0.1)
    assert busy < 0.2


def test_the_limits_that_the_page_names_are_those_in_force():
    assert RoundLimits(max_wait_s=0.01) == LIMITS
