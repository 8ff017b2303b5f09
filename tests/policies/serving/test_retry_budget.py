"""Budget of retries: in whatever order things come, retries stay a share of first tries and a small constant rate."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.retry_budget import RetryBudget, RetryLimits, earn_retries, open_budget, spend_retry

LIMITS = RetryLimits(share=0.1, per_s=0.5, most=20.0)
STEPS = st.lists(st.tuples(st.sampled_from(["first", "retry"]), st.floats(0.0, 5.0)), max_size=300)


@given(STEPS)
def test_retries_are_a_share_of_first_tries_and_a_constant_rate_at_most(steps):
    now, first, retries = 100.0, 0, 0
    budget = open_budget(LIMITS, now)
    opening = budget.left
    for what, passed_s in steps:
        now += passed_s
        if what == "first":
            budget, first = earn_retries(budget, LIMITS, now), first + 1
        else:
            spent = spend_retry(budget, LIMITS, now)
            budget, retries = spent or budget, retries + (spent is not None)
        assert 0.0 <= budget.left <= LIMITS.most
    assert retries <= opening + LIMITS.share * first + LIMITS.per_s * (now - 100.0) + 1e-6


def test_who_never_asks_may_retry_once_and_then_again_after_a_while():
    budget = open_budget(RetryLimits(per_s=0.0), 0.0)
    spent = spend_retry(budget, RetryLimits(per_s=0.0), 0.0)
    assert spent is not None
    assert spend_retry(spent, RetryLimits(per_s=0.0), 1e9) is None
    assert spend_retry(spent, RetryLimits(per_s=0.1), 10.0) is not None


def test_a_clock_that_goes_back_allows_nothing():
    budget = open_budget(LIMITS, 1_000.0)
    while (spent := spend_retry(budget, LIMITS, 1_000.0)) is not None:
        budget = spent
    assert spend_retry(budget, LIMITS, 10.0) is None


def test_a_new_tenant_may_retry_as_often_as_ten_seconds_allow_at_least_once_and_never_beyond_the_most():
    limits = [RetryLimits(per_s=0.5), RetryLimits(per_s=0.05), RetryLimits(per_s=5.0, most=20.0)]
    assert [open_budget(each, 7.0) for each in limits] == [RetryBudget(left, 7.0) for left in (5.0, 1.0, 20.0)]


def test_first_tries_and_seconds_add_up_and_a_retry_takes_one():
    budget = earn_retries(RetryBudget(2.0, 100.0), LIMITS, 104.0, first_tries=30)
    assert budget == RetryBudget(2.0 + 4 * 0.5 + 30 * 0.1, 104.0)
    assert earn_retries(budget, LIMITS, 104.0) == RetryBudget(budget.left + 0.1, 104.0)
    assert spend_retry(budget, LIMITS, 106.0) == RetryBudget(budget.left + 1.0 - 1.0, 106.0)
    assert earn_retries(budget, LIMITS, 50.0, 0) == budget  # a clock that goes back
    assert spend_retry(RetryBudget(2.0, 100.0), LIMITS, 50.0) == RetryBudget(1.0, 100.0)
    assert spend_retry(RetryBudget(1.0, 0.0), LIMITS, 0.0) == RetryBudget(0.0, 0.0)
    assert earn_retries(RetryBudget(19.0, 0.0), LIMITS, 0.0, 100) == RetryBudget(20.0, 0.0)
    assert spend_retry(RetryBudget(19.0, 0.0), LIMITS, 1e9) == RetryBudget(19.0, 1e9)
