"""Differential privacy accounting of the Gaussian mechanism, in closed form, and its accounts in a policy. Pure.

Rule: every rounding goes against us: an epsilon is never below the true one, a number of releases never above it.

Rule: an account counts squared sensitivity over squared noise, which Gaussian releases simply add up (`epsilon`), so
that rules with different noise share one account and no edit of a policy refunds what was spent.
"""

from functools import lru_cache
from math import erfc, exp, inf, log, pi, sqrt

from policies.model.policy import AccountUnit, BudgetAccount, NoiseTerms, PrivacyUnit, TransformKind, TransformSpec
from wire.protocol.messages import TensorDType

_SERIES_FROM = 20.0  # from here a normal tail by its series: the function itself comes near its smallest number
_STEPS = 200
_MOST_RELEASES = 2**53


def compute_gaussian_delta(epsilon: float, mu: float) -> float:
    """Smallest delta at which one Gaussian release is (epsilon, delta)-private.

    `mu`: sensitivity / standard deviation. B. Balle and Y.-X. Wang, "Improving the Gaussian Mechanism for Differential
    Privacy" (ICML 2018), theorem 8.
    """
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    return exp(_log_normal_tail(near)) - exp(epsilon + _log_normal_tail(far))


def count_releases_within(limit: float, sigma: float, delta: float) -> int:
    """How many releases of noise `sigma` stay within (`limit`, `delta`). Raises ValueError as `epsilon`."""
    _check_parameters(sigma, delta)
    if not 0 <= limit < inf:
        raise ValueError(f"epsilon {limit:g} is not a number from 0 on")
    fits, over = 0, 1
    while over < _MOST_RELEASES and compute_gaussian_delta(limit, sqrt(over) / sigma) <= delta:
        fits, over = over, over * 2
    while over - fits > 1:
        middle = (fits + over) // 2
        fits, over = (middle, over) if compute_gaussian_delta(limit, sqrt(middle) / sigma) <= delta else (fits, middle)
    return fits


def _check_parameters(sigma: float, delta: float) -> None:
    if not 0 < sigma < inf:
        raise ValueError(f"sigma {sigma:g} is not a number above 0")
    if not 0 < delta < 1:
        raise ValueError(f"delta {delta:g} is not a number between 0 and 1")


def _log_normal_tail(x: float) -> float:
    """Logarithm of P(N > x) of a standard normal N."""
    if x < _SERIES_FROM:
        return log(erfc(x / sqrt(2)) / 2)
    square = 1 / (x * x)  # M. Abramowitz and I. Stegun, formula 26.2.12; the next term is below 1e-9 of the sum
    return -x * x / 2 - log(x * sqrt(2 * pi)) + log(1 - square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square))))


_ACCOUNT_GRAIN = 100_000.0  # an account counts in 1 / _GRAIN**2
_WHOLE_TYPES = frozenset({TensorDType.UINT8, TensorDType.INT8})
_LEAST_ON_WHOLE = 16.0  # noise finer than the values themselves: from here delta is within 1 % of the closed form
_NUMERIC = _WHOLE_TYPES | {TensorDType.FP32, TensorDType.FP16}


@lru_cache(maxsize=256)
def price_release(epsilon: float, delta: float, sigma: float) -> tuple[int, int]:
    """Limit of an account and the charge of one release, both rounded against us.

    The unit of both is 1 / `_ACCOUNT_GRAIN`**2.
    """
    limit = count_releases_within(epsilon, _ACCOUNT_GRAIN, delta)
    return limit, max(1, -int(-((_ACCOUNT_GRAIN / sigma) ** 2) // 1))


def count_releases(dp: NoiseTerms, share: float = 1.0) -> int:
    """How many noised fields may leave in a period until a denial; `share`: of the epsilon (0..1)."""
    return int(dp.limit * share) // dp.each


def merge_noise_terms(first: NoiseTerms, second: NoiseTerms) -> NoiseTerms:
    """The stricter of the two in every number."""
    shares = [each for each in (first.random_ask, second.random_ask) if each is not None]
    units = list(PrivacyUnit)
    return NoiseTerms(
        unit=max(first.unit, second.unit, key=units.index),
        clip_norm=min(first.clip_norm, second.clip_norm),
        sigma=max(first.sigma, second.sigma),
        delta=min(first.delta, second.delta),
        epsilon=min(first.epsilon, second.epsilon),
        period_days=max(first.period_days, second.period_days),
        audit_share=min(first.audit_share, second.audit_share),
        random_ask=min(shares) if shares else None,
        limit=min(first.limit, second.limit),
        each=min(first.each, second.each),  # of the greater sigma
    )


def build_privacy_accounts(dp: NoiseTerms) -> tuple[BudgetAccount, ...]:
    """Privacy accounts of these terms: one for all questions, one more for audits, which may use a share of it.

    The period is part of the key: a policy with another period counts anew, beside what it had.
    """
    subject, key = dp.unit is PrivacyUnit.SUBJECT, f"privacy/{dp.period_days}d"
    whole = BudgetAccount(key, AccountUnit.PRIVACY, dp.limit, dp.period_days, each=dp.each, subject=subject)
    share = BudgetAccount(
        f"{key}/audits", AccountUnit.PRIVACY, int(dp.limit * dp.audit_share), dp.period_days,
        audits=True, each=dp.each, subject=subject,
    )  # fmt: skip
    return whole, share


def build_noise_steps(dp: NoiseTerms, dtype: TensorDType) -> tuple[TransformSpec, ...] | None:
    """Transforms that make a field's values private: clip the norm, then add noise.

    None for values that no noise can be added to, or where the noise is too small for their grid. Two vectors inside a
    ball of radius `clip_norm` are at most twice that apart (replace-one neighbours), hence the factor 2.
    """
    if dtype not in _NUMERIC or (dtype in _WHOLE_TYPES and 2 * dp.clip_norm * dp.sigma < _LEAST_ON_WHOLE):
        return None
    clip = TransformSpec(TransformKind.CLIP_NORM, high=dp.clip_norm)
    return clip, TransformSpec(TransformKind.NOISE, step=2 * dp.clip_norm * dp.sigma)
