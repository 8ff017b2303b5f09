"""Epsilon of releases, found from the delta that the product computes: what other accountants print."""

from math import inf, isfinite, sqrt

from policies.model.differential_privacy import compute_gaussian_delta

_STEPS = 200


def compute_gaussian_epsilon(sigma: float, releases: int, delta: float) -> float:
    """Epsilon of `releases` that each add noise of `sigma` times their sensitivity; inf if no float holds it.

    Gaussian releases compose exactly: k of them are one with noise `sigma` / sqrt(k) (J. Dong, A. Roth and W. Su,
    "Gaussian Differential Privacy", 2022, corollary 3.3).
    """
    if not releases:
        return 0.0
    mu = sqrt(releases) / sigma
    low, high = 0.0, 1.0
    while compute_gaussian_delta(high, mu) > delta:
        low, high = high, high * 2
        if not isfinite(high):
            return inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if compute_gaussian_delta(middle, mu) > delta else (low, middle)
    return high if compute_gaussian_delta(0.0, mu) > delta else 0.0
