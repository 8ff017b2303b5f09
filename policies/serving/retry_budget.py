"""Budget of a tenant's retries: a share of its first tries, so that retries never become the load. Pure.

The idea is that of Finagle's `RetryBudget` (a deposit for each request, a withdrawal for each retry, and a small
constant rate for those who ask seldom).
"""

import msgspec


class RetryLimits(msgspec.Struct, frozen=True):
    """`share`: retries for each first try; `per_s`: those that are always allowed; `most`: what can be saved up."""

    share: float = 0.1
    per_s: float = 0.2
    most: float = 100.0


class RetryBudget(msgspec.Struct, frozen=True):
    """What is left of a budget at `at_s`."""

    left: float
    at_s: float


def open_budget(limits: RetryLimits, now: float) -> RetryBudget:
    """Return the budget of a tenant that was never heard of: what ten seconds allow, at least one retry."""
    return RetryBudget(min(limits.most, max(1.0, 10.0 * limits.per_s)), now)


def earn_retries(budget: RetryBudget, limits: RetryLimits, now: float, first_tries: int = 1) -> RetryBudget:
    """Return the budget after so many first tries."""
    left = _refill(budget, limits, now) + limits.share * first_tries
    return RetryBudget(min(limits.most, left), max(now, budget.at_s))


def spend_retry(budget: RetryBudget, limits: RetryLimits, now: float) -> RetryBudget | None:
    """Return the budget after one retry; None if there is none left for it."""
    left = _refill(budget, limits, now)
    return RetryBudget(left - 1.0, max(now, budget.at_s)) if left >= 1.0 else None


def _refill(budget: RetryBudget, limits: RetryLimits, now: float) -> float:
    """What is left, with what the time since has allowed. A clock that went back allows nothing."""
    return min(limits.most, budget.left + limits.per_s * max(0.0, now - budget.at_s))
