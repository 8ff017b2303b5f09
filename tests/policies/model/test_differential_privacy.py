"""Gaussian privacy accounting against Google's dp-accounting, and releases counted so that none is one too many."""

import random
from math import inf, nan, sqrt

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, get_epsilon_gaussian
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from policies.model.differential_privacy import compute_gaussian_delta, count_releases_within
from tests.policies.model.gaussian_epsilon import compute_gaussian_epsilon

SIGMAS = st.floats(0.3, 300)
DELTAS = st.floats(1e-12, 0.1)


@pytest.mark.further
def test_epsilon_equals_dp_accounting_within_1_percent_at_1000_random_points():
    rng = random.Random(107)
    for _ in range(1000):
        sigma, releases, delta = 10 ** rng.uniform(-0.5, 2.5), int(10 ** rng.uniform(0, 4)), 10 ** rng.uniform(-12, -2)
        theirs = get_epsilon_gaussian(sigma / sqrt(releases), delta)
        assert compute_gaussian_epsilon(sigma, releases, delta) == pytest.approx(theirs, rel=0.01, abs=1e-9), (
            sigma,
            releases,
            delta,
        )


def test_k_releases_equal_what_dp_accounting_composes_of_k_events():
    rng = random.Random(7)
    for _ in range(6):
        sigma, releases, delta = rng.uniform(3, 20), rng.randint(1, 60), 10 ** rng.uniform(-9, -4)
        theirs = PLDAccountant(value_discretization_interval=1e-3)
        theirs.compose(SelfComposedDpEvent(GaussianDpEvent(sigma), releases))
        assert compute_gaussian_epsilon(sigma, releases, delta) == pytest.approx(theirs.get_epsilon(delta), rel=0.01)


def test_sigma_5_delta_1e_6_and_epsilon_8_are_58_releases():
    assert count_releases_within(8, 5, 1e-6) == 58
    assert compute_gaussian_epsilon(5, 58, 1e-6) <= 8 < compute_gaussian_epsilon(5, 59, 1e-6)


@given(SIGMAS, DELTAS, st.floats(0.01, 20))
def test_the_last_release_fits_and_the_next_does_not(sigma, delta, limit):
    most = count_releases_within(limit, sigma, delta)
    assert compute_gaussian_epsilon(sigma, most, delta) <= limit * (1 + 1e-9)
    assert compute_gaussian_epsilon(sigma, most + 1, delta) > limit * (1 - 1e-9)


@given(SIGMAS, DELTAS, st.integers(1, 10_000))
def test_more_releases_or_less_noise_never_cost_less(sigma, delta, releases):
    here = compute_gaussian_epsilon(sigma, releases, delta)
    assert here <= compute_gaussian_epsilon(sigma, releases + 1, delta)
    assert here <= compute_gaussian_epsilon(sigma * 0.9, releases, delta)
    assert compute_gaussian_delta(here, sqrt(releases) / sigma) <= delta


def test_nothing_released_costs_nothing():
    assert compute_gaussian_epsilon(5, 0, 1e-6) == 0
    assert count_releases_within(0, 0.5, 1e-6) == 0


@pytest.mark.parametrize(
    ("sigma", "delta"), [(0, 1e-6), (-1, 1e-6), (nan, 1e-6), (inf, 1e-6), (5, 0), (5, 1), (5, nan)]
)
def test_parameters_that_cannot_be_meant_have_no_number_of_releases(sigma, delta):
    with pytest.raises(ValueError, match="is not a number"):
        count_releases_within(8, sigma, delta)


def test_a_limit_that_is_no_number_from_0_on_is_refused():
    for limit in (-1.0, nan, inf):
        with pytest.raises(ValueError, match="epsilon"):
            count_releases_within(limit, 5, 1e-6)
