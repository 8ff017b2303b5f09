"""Confidence sequences: right at every look, narrower with more samples, and not moved by a minority that lies."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout_rules.confidence import (
    WeightedCounts,
    compute_weighted_mean,
    count_samples,
    estimate_samples_needed,
    find_lower_bound,
    find_upper_bound,
    group_devices,
    log_wealth,
    mirror_outcomes,
)

PEOPLE = st.tuples(*(st.integers(0, 40) for _ in range(3)))
CROWDS = st.lists(PEOPLE, min_size=1, max_size=12).map(
    lambda counts: group_devices((WeightedCounts(1.0, *count),) for count in counts)
)


def bounds(of, alpha=0.01):
    return find_lower_bound(of, alpha), find_upper_bound(of, alpha)


def one(worse: int, same: int, better: int, weight: float = 1.0):
    return group_devices([(WeightedCounts(weight, worse, same, better),)])


def test_without_samples_nothing_is_known():
    assert bounds(group_devices([])) == bounds(one(0, 0, 0)) == (-1.0, 1.0)
    assert compute_weighted_mean(group_devices([])) == 0.0


@given(CROWDS)
def test_the_mean_lies_within_its_own_bounds(of):
    low, high = bounds(of)
    assert low <= compute_weighted_mean(of) <= high


@given(CROWDS)
def test_better_and_worse_are_treated_alike(of):
    assert find_lower_bound(mirror_outcomes(of), 0.01) == pytest.approx(-find_upper_bound(of, 0.01))


@given(CROWDS, st.integers(0, 12))
def test_whoever_may_be_lying_only_widens_the_bounds(of, liars):
    assert find_lower_bound(of, 0.01, liars) <= find_lower_bound(of, 0.01)
    assert find_upper_bound(of, 0.01, liars) >= find_upper_bound(of, 0.01)


@given(CROWDS, PEOPLE)
def test_what_one_device_says_cannot_move_the_bound_that_one_may_lie_about(of, said):
    """The bound that leaves out one liar is never beyond what the others alone would show."""
    with_liar = (*of, *group_devices([(WeightedCounts(1.0, *said),)]))
    assert find_lower_bound(with_liar, 0.01, 1) <= find_lower_bound(of, 0.01) + 0.001


@given(CROWDS, st.floats(-0.99, 0.99), st.floats(-0.99, 0.99))
def test_a_higher_claim_is_never_easier_to_refute_from_above(of, a, b):
    low, high = sorted((a, b))
    assert log_wealth(of, low) >= log_wealth(of, high) - 1e-9


def test_more_samples_give_narrower_bounds():
    (low, high), (narrow_low, narrow_high) = bounds(one(3, 94, 3)), bounds(one(30, 940, 30))
    assert low < narrow_low < 0 < narrow_high < high


def test_a_third_of_the_weight_counts_a_third():
    both = group_devices([(WeightedCounts(1.0, 0, 30, 0), WeightedCounts(1 / 3, 30, 0, 0))])
    assert compute_weighted_mean(both) == pytest.approx(-0.25)
    assert count_samples(both) == 60


def test_about_as_many_samples_as_foretold_rule_out_a_margin():
    count = estimate_samples_needed(0.05, 0.04, 0.01)
    assert count == pytest.approx(262, abs=5)
    assert find_lower_bound(one(count // 50, count - 2 * (count // 50), count // 50), 0.01) > -0.06


def peeks(rng: Random, runs: int, looks: int, truth: tuple[float, float], margin: float) -> float:
    """How often betting ever refutes, at any of the looks, what is just true: a mean of `truth` = `margin`."""
    worse, better = truth
    refuted = 0
    for _ in range(runs):
        counts = [0, 0, 0]
        for _ in range(looks):
            for _ in range(25):
                dice = rng.random()
                counts[0 if dice < worse else 2 if dice > 1 - better else 1] += 1
            if find_lower_bound(one(*counts), 0.05) > margin + 0.0003:
                refuted += 1
                break
    return refuted / runs


@pytest.mark.further
def test_looking_as_often_as_one_likes_costs_nothing():
    """One look in twenty would be wrong of a test that is meant to be asked once; here: one *run* in twenty at most."""
    rng = Random(1)
    assert peeks(rng, 200, 20, (0.05, 0.0), -0.05) <= 0.05 + 0.03
    assert peeks(rng, 200, 20, (0.08, 0.03), -0.05) <= 0.05 + 0.03


def test_a_real_difference_is_found():
    assert peeks(Random(2), 40, 20, (0.02, 0.02), -0.10) == 1.0


@given(CROWDS, st.integers(1, 5), st.floats(-0.95, 0.95))
def test_leaving_out_those_that_speak_most_for_it_never_makes_a_version_look_better(of, liars, mean):
    assert log_wealth(of, mean, liars) <= log_wealth(of, mean, 0) + 1e-9


def test_devices_that_all_speak_against_it_are_counted_though_some_may_lie():
    worse = one(20, 0, 0)
    assert log_wealth(worse, 0.0, 1) == pytest.approx(log_wealth(worse, 0.0, 0))


def test_nothing_is_won_against_a_mean_of_the_least_there_can_be():
    assert log_wealth(one(1, 2, 3), -1.0) == 0.0
