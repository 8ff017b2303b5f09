"""A day's bytes: never exceeded, never refunded. Case 106 in spirit."""

from hypothesis import given
from hypothesis import strategies as st

from policies.budget import Spend, charge
from policies.reasons import Denied, Why
from tests.policies.given import JUNK, TODAY, UNSPENT, policy
from wire.codec import MAX_FRAME_BYTES

DAYS = st.integers(TODAY - 2, TODAY + 2)
SIZES = st.integers(0, MAX_FRAME_BYTES)


def why(decision: object) -> Why:
    assert isinstance(decision, Denied), decision
    return decision.why


def test_the_last_byte_may_be_spent_and_none_more():
    limited = policy(bytes_per_day=1000)
    assert charge(limited, Spend(TODAY, 400), 600, TODAY) == Spend(TODAY, 1000)
    assert why(charge(limited, Spend(TODAY, 400), 601, TODAY)) is Why.DENIED_BUDGET


def test_a_new_day_starts_at_zero():
    assert charge(policy(bytes_per_day=1000), Spend(TODAY, 1000), 10, TODAY + 1) == Spend(TODAY + 1, 10)


def test_a_clock_that_goes_back_refunds_nothing():
    assert why(charge(policy(bytes_per_day=1000), Spend(TODAY, 1000), 10, TODAY - 1)) is Why.DENIED_BUDGET


def test_a_question_paid_for_before_is_judged_again_without_charge():
    assert charge(policy(bytes_per_day=900), Spend(TODAY, 1000), 0, TODAY) == Spend(TODAY, 1000)


def test_a_message_that_no_broker_takes_is_denied_before_it_is_charged():
    assert charge(policy(), UNSPENT, MAX_FRAME_BYTES, TODAY) == Spend(TODAY, MAX_FRAME_BYTES)
    assert why(charge(policy(), UNSPENT, MAX_FRAME_BYTES + 1, TODAY)) is Why.DENIED_TOO_BIG


@given(st.integers(0, 10**6), st.lists(st.tuples(SIZES, DAYS), max_size=30))
def test_no_day_ever_exceeds_its_budget(limit, messages):
    spend, sent = UNSPENT, dict.fromkeys(range(TODAY - 2, TODAY + 3), 0)
    for size, day in messages:
        decision = charge(policy(bytes_per_day=limit), spend, size, day)
        if isinstance(decision, Spend):
            assert decision.day >= spend.day
            spend = decision
            sent[spend.day] += size
    assert all(total <= limit for total in sent.values())


@given(JUNK)
def test_damaged_policy_denies(junk):
    assert isinstance(charge(policy(bytes_per_day=junk), UNSPENT, 10, TODAY), Denied)


@given(JUNK.filter(lambda junk: junk is not True), st.sampled_from(["spend", "bytes", "size_bytes"]))
def test_damaged_counts_deny(junk, which):
    spend = {"spend": junk, "bytes": Spend(TODAY, junk)}.get(which, UNSPENT)
    assert isinstance(charge(policy(), spend, junk if which == "size_bytes" else 10, TODAY), Denied)
