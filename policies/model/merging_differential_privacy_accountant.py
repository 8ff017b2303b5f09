"""What Gaussian noise promises: epsilon of so many releases, and how many releases an epsilon allows. In closed form.

Law: every rounding goes against us: an epsilon is never below the true one, a number of releases never above it.
"""

from math import erfc, exp, inf, isfinite, log, pi, sqrt

_SERIES_FROM = 20.0  # from here a normal tail by its series: the function itself comes near its smallest number
_STEPS = 200
_MOST_RELEASES = 2**53


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta at which one Gaussian release of sensitivity / standard deviation `mu` is (epsilon, delta).

    B. Balle and Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy" (ICML 2018), theorem 8.
    """
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    return exp(_log_tail(near)) - exp(epsilon + _log_tail(far))


def epsilon(sigma: float, releases: int, delta: float) -> float:
    """Of `releases` that each add noise of `sigma` times their sensitivity; inf if no float holds it.

    Gaussian releases compose exactly: k of them are one with noise `sigma` / sqrt(k) (J. Dong, A. Roth and W. Su,
    "Gaussian Differential Privacy", 2022, corollary 3.3). ValueError for parameters that cannot be meant.
    """
    _check(sigma, delta)
    if releases < 0:
        raise ValueError(f"{releases} releases")
    if not releases:
        return 0.0
    mu = sqrt(releases) / sigma
    low, high = 0.0, 1.0
    while delta_of(high, mu) > delta:
        low, high = high, high * 2
        if not isfinite(high):
            return inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high if delta_of(0.0, mu) > delta else 0.0


def releases_until(limit: float, sigma: float, delta: float) -> int:
    """How many releases of noise `sigma` stay within (`limit`, `delta`). ValueError as for `epsilon`."""
    _check(sigma, delta)
    if not 0 <= limit < inf:
        raise ValueError(f"epsilon {limit:g} is not a number from 0 on")
    fits, over = 0, 1
    while over < _MOST_RELEASES and delta_of(limit, sqrt(over) / sigma) <= delta:
        fits, over = over, over * 2
    while over - fits > 1:
        middle = (fits + over) // 2
        fits, over = (middle, over) if delta_of(limit, sqrt(middle) / sigma) <= delta else (fits, middle)
    return fits


def _check(sigma: float, delta: float) -> None:
    if not 0 < sigma < inf:
        raise ValueError(f"sigma {sigma:g} is not a number above 0")
    if not 0 < delta < 1:
        raise ValueError(f"delta {delta:g} is not a number between 0 and 1")


def _log_tail(x: float) -> float:
    """The logarithm of P(N > x) of a standard normal N."""
    if x < _SERIES_FROM:
        return log(erfc(x / sqrt(2)) / 2)
    square = 1 / (x * x)  # M. Abramowitz and I. Stegun, formula 26.2.12; the next term is below 1e-9 of the sum
    return -x * x / 2 - log(x * sqrt(2 * pi)) + log(1 - square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square))))
