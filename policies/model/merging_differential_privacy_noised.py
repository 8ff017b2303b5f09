"""Differential privacy in a policy: what a release costs of the period's epsilon, and what noise a field then gets.

Law: an account counts squared sensitivity over noise, which Gaussian releases simply add up (`accountant.epsilon`), so
that rules with different noise share one account and no edit of a policy refunds what was spent.
"""

from functools import lru_cache

from policies.model import merging_differential_privacy_accountant
from policies.model.policy import Account, Coin, Dp, TransformKind, TransformSpec, Unit
from wire.protocol.messages import DType

_GRAIN = 100_000.0  # an account counts in 1 / _GRAIN**2
_WHOLE = frozenset({DType.UINT8, DType.INT8})
_LEAST_ON_WHOLE = 16.0  # noise finer than the values themselves: from here delta is within 1 % of the closed form
_NUMERIC = _WHOLE | {DType.FP32, DType.FP16}


@lru_cache(maxsize=256)
def priced(epsilon: float, delta: float, sigma: float) -> tuple[int, int]:
    """The account's limit, and what one release costs of it; both rounded against us."""
    limit = merging_differential_privacy_accountant.releases_until(epsilon, _GRAIN, delta)
    return limit, max(1, -int(-((_GRAIN / sigma) ** 2) // 1))


def releases(dp: Dp, share: float = 1.0) -> int:
    """How many noised fields may leave in a period, until a denial; `share`: of the epsilon."""
    return int(dp.limit * share) // dp.each


def merged(first: Dp, second: Dp) -> Dp:
    """The stricter of the two in every number."""
    shares = [each for each in (first.random_ask, second.random_ask) if each is not None]
    units = list(Unit)
    return Dp(
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


def accounts(dp: Dp) -> tuple[Account, ...]:
    """Of a policy's terms: one for all questions, one more for audits, which may use a share of it.

    The period is part of the key: a policy with another period counts anew, beside what it had.
    """
    subject, key = dp.unit is Unit.SUBJECT, f"privacy/{dp.period_days}d"
    whole = Account(key, Coin.PRIVACY, dp.limit, dp.period_days, each=dp.each, subject=subject)
    share = Account(
        f"{key}/audits", Coin.PRIVACY, int(dp.limit * dp.audit_share), dp.period_days,
        audits=True, each=dp.each, subject=subject,
    )  # fmt: skip
    return whole, share


def steps(dp: Dp, dtype: DType) -> tuple[TransformSpec, ...] | None:
    """What makes a field's values private; None for values that no noise can be added to, or too little for their grid.

    Two vectors inside a ball of radius `clip_norm` are at most twice that apart (replace-one neighbours).
    """
    if dtype not in _NUMERIC or (dtype in _WHOLE and 2 * dp.clip_norm * dp.sigma < _LEAST_ON_WHOLE):
        return None
    clip = TransformSpec(TransformKind.CLIP_NORM, high=dp.clip_norm)
    return clip, TransformSpec(TransformKind.NOISE, step=2 * dp.clip_norm * dp.sigma)
