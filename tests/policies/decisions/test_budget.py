"""Budget accounts of bytes, cost, energy and privacy: none is ever exceeded, and nothing is refunded."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.budget import (
    AccountCharge,
    BudgetSpend,
    ChargeResult,
    MessageCost,
    add_charges,
    charge_accounts,
    list_remaining,
    remove_charges,
    shared_account_key,
)
from policies.model.policy import AccountUnit, BudgetAccount
from policies.model.reasons import DecisionReason, Denied
from tests.policies.doubles.given import JUNK, TODAY, UNSPENT, policy
from wire.protocol.codec import MAX_FRAME_BYTES

DAYS = st.integers(TODAY - 2, TODAY + 2)
SIZES = st.integers(0, MAX_FRAME_BYTES)
BASE = BudgetAccount("bytes", AccountUnit.BYTES, 10_000)


def why(decision: object) -> DecisionReason:
    assert isinstance(decision, Denied), decision
    return decision.why


def spent(decision: object) -> BudgetSpend:
    assert isinstance(decision, ChargeResult), decision
    return decision.spend


def test_the_last_byte_may_be_spent_and_none_more():
    limited = policy(bytes_per_day=1000)
    assert spent(
        charge_accounts(limited, BudgetSpend.spent_bytes(TODAY, 400), MessageCost(600), TODAY)
    ) == BudgetSpend.spent_bytes(TODAY, 1000)
    assert (
        why(charge_accounts(limited, BudgetSpend.spent_bytes(TODAY, 400), MessageCost(601), TODAY))
        is DecisionReason.DENIED_BUDGET
    )


def test_a_new_day_starts_at_zero():
    limited = policy(bytes_per_day=1000)
    assert spent(
        charge_accounts(limited, BudgetSpend.spent_bytes(TODAY, 1000), MessageCost(10), TODAY + 1)
    ) == BudgetSpend.spent_bytes(TODAY + 1, 10)


def test_a_clock_that_goes_back_refunds_nothing():
    limited = policy(bytes_per_day=1000)
    assert (
        why(charge_accounts(limited, BudgetSpend.spent_bytes(TODAY, 1000), MessageCost(10), TODAY - 1))
        is DecisionReason.DENIED_BUDGET
    )


def test_a_question_paid_for_before_is_judged_again_without_charge():
    limited = policy(bytes_per_day=900)
    assert charge_accounts(limited, BudgetSpend.spent_bytes(TODAY, 1000), MessageCost(0), TODAY) == ChargeResult(
        BudgetSpend.spent_bytes(TODAY, 1000), ()
    )


def test_a_message_that_no_broker_takes_is_denied_before_it_is_charged():
    assert spent(charge_accounts(policy(), UNSPENT, MessageCost(MAX_FRAME_BYTES), TODAY)) == BudgetSpend.spent_bytes(
        TODAY, MAX_FRAME_BYTES
    )
    assert (
        why(charge_accounts(policy(), UNSPENT, MessageCost(MAX_FRAME_BYTES + 1), TODAY))
        is DecisionReason.DENIED_TOO_BIG
    )


def test_a_lost_ledger_holds_nothing_until_the_hub_has_told_it():
    lost = BudgetSpend(TODAY, {}, known=False)
    assert why(charge_accounts(policy(), lost, MessageCost(1), TODAY)) is DecisionReason.DENIED_BUDGET
    assert list_remaining(policy().accounts, lost, TODAY)["bytes"][0] == 0


def test_a_rule_has_an_account_of_its_own_beside_the_base():
    two = policy(accounts=(BASE, BudgetAccount("bytes/demo/night", AccountUnit.BYTES, 100)))
    held = spent(charge_accounts(two, UNSPENT, MessageCost(100), TODAY))
    assert why(charge_accounts(two, held, MessageCost(1), TODAY)) is DecisionReason.DENIED_BUDGET
    assert spent(charge_accounts(policy(accounts=(BASE,)), held, MessageCost(1), TODAY)).bytes == 101


def test_one_account_that_is_full_leaves_the_others_untouched():
    two = policy(accounts=(BASE, BudgetAccount("cost", AccountUnit.COST, 5)))
    assert why(charge_accounts(two, UNSPENT, MessageCost(10, price=6), TODAY)) is DecisionReason.DENIED_BUDGET
    assert list_remaining(two.accounts, UNSPENT, TODAY) == {"bytes": (10_000, 10_000), "cost": (5, 5)}


def test_the_energy_of_questions_has_an_account_in_millijoules():
    under = policy(accounts=(BASE, BudgetAccount("energy", AccountUnit.ENERGY, 25_000)))
    held = spent(charge_accounts(under, UNSPENT, MessageCost(700, energy_mj=12_603), TODAY))
    assert held.totals["energy", TODAY] == 12_603
    assert why(charge_accounts(under, held, MessageCost(700, energy_mj=12_603), TODAY)) is DecisionReason.DENIED_BUDGET
    assert isinstance(charge_accounts(under, held, MessageCost(700), TODAY), ChargeResult)  # over a wire
    assert why(charge_accounts(under, held, MessageCost(1, energy_mj=-1), TODAY)) is DecisionReason.DENIED_POLICY_ERROR


@pytest.mark.parametrize(("topic", "limit"), [("q", 100), ("ask", 50)])
def test_a_topic_has_its_own_bytes(topic, limit):
    by_topic = BudgetAccount(f"bytes/{topic}", AccountUnit.BYTES, limit, topic=topic)
    under = policy(accounts=(BASE, by_topic))
    assert (
        spent(charge_accounts(under, UNSPENT, MessageCost(limit, topic=topic), TODAY)).totals[by_topic.key, TODAY]
        == limit
    )
    assert (
        why(charge_accounts(under, UNSPENT, MessageCost(limit + 1, topic=topic), TODAY)) is DecisionReason.DENIED_BUDGET
    )


def test_each_noised_field_is_charged_and_audits_have_a_share_alone():
    whole = BudgetAccount("privacy/30d", AccountUnit.PRIVACY, 100, 30, each=10)
    share = BudgetAccount("privacy/30d/audits", AccountUnit.PRIVACY, 20, 30, audits=True, each=10)
    under = policy(accounts=(BASE, whole, share))
    held = spent(charge_accounts(under, UNSPENT, MessageCost(1, releases=2, audit=True), TODAY))
    assert (
        why(charge_accounts(under, held, MessageCost(1, releases=1, audit=True), TODAY)) is DecisionReason.DENIED_BUDGET
    )
    assert (
        spent(charge_accounts(under, held, MessageCost(1, releases=8), TODAY)).totals["privacy/30d", TODAY // 30] == 100
    )
    assert why(charge_accounts(under, held, MessageCost(1, releases=9), TODAY)) is DecisionReason.DENIED_BUDGET


def test_subjects_have_an_account_each_where_they_are_known():
    under = policy(accounts=(BASE, BudgetAccount("privacy/30d", AccountUnit.PRIVACY, 10, 30, each=10, subject=True)))
    held = spent(charge_accounts(under, UNSPENT, MessageCost(1, releases=1, subject="ab"), TODAY))
    assert (
        why(charge_accounts(under, held, MessageCost(1, releases=1, subject="ab"), TODAY))
        is DecisionReason.DENIED_BUDGET
    )
    assert isinstance(charge_accounts(under, held, MessageCost(1, releases=1, subject="cd"), TODAY), ChargeResult)


def test_a_subject_whose_account_was_lost_has_spent_as_much_as_the_fullest_of_all_subjects():
    """The hub remembers the fullest account and no subject's name: a lost database gives no subject a new budget."""
    under = policy(accounts=(BASE, BudgetAccount("privacy/30d", AccountUnit.PRIVACY, 100, 30, each=10, subject=True)))
    restored = BudgetSpend(TODAY, {("privacy/30d/s/", TODAY // 30): 90})
    one_release = MessageCost(1, releases=1, subject="ab")
    once = spent(charge_accounts(under, restored, one_release, TODAY))
    assert once.totals["privacy/30d/s/ab", TODAY // 30] == 100
    assert why(charge_accounts(under, once, one_release, TODAY)) is DecisionReason.DENIED_BUDGET
    assert why(charge_accounts(under, restored, MessageCost(1, releases=2, subject="cd"), TODAY)) is (
        DecisionReason.DENIED_BUDGET
    )


def test_what_never_left_is_taken_back():
    charged = charge_accounts(policy(), UNSPENT, MessageCost(500), TODAY)
    assert isinstance(charged, ChargeResult)
    assert remove_charges(charged.spend, charged.charges).bytes == 0
    more = charge_accounts(policy(), charged.spend, MessageCost(300), TODAY)
    assert isinstance(more, ChargeResult)
    assert remove_charges(more.spend, charged.charges).bytes == 300
    assert remove_charges(charged.spend, (*charged.charges, *charged.charges)).bytes == 0, "never below nothing"


@pytest.mark.parametrize(("day", "left"), [(TODAY - 1, 9_500), (TODAY, 9_500), (TODAY + 1, 10_000)])
def test_what_remains_is_of_the_latest_day_that_was_ever_charged_also_for_a_clock_that_went_back(day, left):
    under = policy(accounts=(BASE,))
    charged = spent(charge_accounts(under, UNSPENT, MessageCost(500), TODAY))
    assert list_remaining(under.accounts, charged, day)["bytes"] == (left, 10_000)


@given(st.integers(0, 10**6), st.lists(st.tuples(SIZES, DAYS), max_size=30))
def test_no_day_ever_exceeds_its_budget(limit, messages):
    spend, sent = UNSPENT, dict.fromkeys(range(TODAY - 2, TODAY + 3), 0)
    for size, day in messages:
        decision = charge_accounts(policy(bytes_per_day=limit), spend, MessageCost(size), day)
        if isinstance(decision, ChargeResult):
            assert decision.spend.day >= spend.day
            spend = decision.spend
            sent[spend.day] += size
    assert all(total <= limit for total in sent.values())


@given(JUNK)
def test_damaged_policy_denies(junk):
    assert isinstance(charge_accounts(policy(bytes_per_day=junk), UNSPENT, MessageCost(10), TODAY), Denied)
    assert isinstance(charge_accounts(policy(accounts=junk), UNSPENT, MessageCost(10), TODAY), Denied)


@given(JUNK.filter(lambda junk: junk is not True), st.sampled_from(["spend", "totals", "size", "releases"]))
def test_damaged_counts_deny(junk, which):
    noised = policy(accounts=(BASE, BudgetAccount("privacy/30d", AccountUnit.PRIVACY, 100, 30, each=10)))
    spend = {"spend": junk, "totals": BudgetSpend(TODAY, {("bytes", TODAY): junk})}.get(which, UNSPENT)
    cost = MessageCost(10, releases=1)
    if which in {"size", "releases"}:
        cost = msgspec.structs.replace(cost, **{"size_bytes" if which == "size" else which: junk})
    assert isinstance(charge_accounts(noised, spend, cost, TODAY), Denied)


def charge(*accounts: BudgetAccount, cost: MessageCost, totals=None, day: int = TODAY, known: bool = True):
    return charge_accounts(policy(accounts=accounts), BudgetSpend(day, totals or {}, known), cost, day)


ROOMY = BudgetAccount("bytes", AccountUnit.BYTES, 10**9)
MONEY = BudgetAccount("cost", AccountUnit.COST, 100, 7)
POWER = BudgetAccount("energy", AccountUnit.ENERGY, 100)
NOISED = BudgetAccount("privacy/30d", AccountUnit.PRIVACY, 100, 30, each=3)
AUDITS = BudgetAccount("privacy/30d/audits", AccountUnit.PRIVACY, 100, 30, audits=True, each=3)
SUBJECTS = BudgetAccount("privacy/7d", AccountUnit.PRIVACY, 100, 7, each=1, subject=True)
NOTES = BudgetAccount("bytes/report", AccountUnit.BYTES, 100, topic="report")


def test_a_message_is_charged_to_each_account_that_counts_it_in_its_unit_and_period():
    accounts = (ROOMY, MONEY, POWER, NOISED, AUDITS, SUBJECTS, NOTES)
    cost = MessageCost(500, price=7, releases=2, subject="ab", energy_mj=11)
    charges = (
        AccountCharge("bytes", TODAY, 500, 10**9), AccountCharge("cost", TODAY // 7, 7, 100),
        AccountCharge("energy", TODAY, 11, 100), AccountCharge("privacy/30d", TODAY // 30, 6, 100),
        AccountCharge("privacy/7d/s/ab", TODAY // 7, 2, 100),
    )  # fmt: skip
    totals = {(each.key, each.period): each.amount for each in charges}
    assert charge(*accounts, cost=cost) == ChargeResult(BudgetSpend(TODAY, totals), charges)
    audited = charge(*accounts, cost=msgspec.structs.replace(cost, audit=True))
    assert isinstance(audited, ChargeResult)
    assert [each.key for each in audited.charges] == [
        "bytes", "cost", "energy", "privacy/30d", "privacy/30d/audits", "privacy/7d/s/ab",
    ]  # fmt: skip
    nobody = charge(ROOMY, SUBJECTS, cost=MessageCost(500, releases=2))
    assert isinstance(nobody, ChargeResult)
    assert [each.key for each in nobody.charges] == ["bytes", "privacy/7d"]
    small = msgspec.structs.replace(cost, size_bytes=50, topic="report")
    alone = (AccountCharge("bytes/report", TODAY, 50, 100),)
    assert charge(*accounts, cost=small) == ChargeResult(BudgetSpend(TODAY, {("bytes/report", TODAY): 50}), alone)


@pytest.mark.parametrize(
    ("cost", "accounts", "denied"),
    [
        (
            MessageCost(MAX_FRAME_BYTES + 1), (ROOMY,),
            (DecisionReason.DENIED_TOO_BIG, f"{MAX_FRAME_BYTES + 1} bytes, at most {MAX_FRAME_BYTES} in one message"),
        ),
        (
            MessageCost(101, topic="report"), (NOTES,),
            (DecisionReason.DENIED_BUDGET, "account bytes/report: 101 in this period, at most 100"),
        ),
        (MessageCost(1), (MONEY,), (DecisionReason.DENIED_POLICY_ERROR, "budget: TypeError")),
        (
            MessageCost(1, releases=1), (ROOMY, msgspec.structs.replace(NOISED, each=0)),
            (DecisionReason.DENIED_POLICY_ERROR, "budget: TypeError"),
        ),
        (
            MessageCost(1), (ROOMY, msgspec.structs.replace(MONEY, period_days=0)),
            (DecisionReason.DENIED_POLICY_ERROR, "budget: TypeError"),
        ),
    ],
)  # fmt: skip
def test_every_refusal_of_a_charge_is_one_sentence_with_its_reason(cost, accounts, denied):
    assert charge(*accounts, cost=cost) == Denied(*denied)


def test_a_record_that_is_lost_pays_for_nothing_but_what_was_paid_before():
    lost = Denied(DecisionReason.DENIED_BUDGET, "the record of past spending is lost, and the hub has not sent it yet")
    assert charge(ROOMY, cost=MessageCost(1), known=False) == lost
    assert charge(ROOMY, cost=MessageCost(0), known=False) == ChargeResult(BudgetSpend(TODAY, {}, known=False), ())
    assert isinstance(charge(ROOMY, cost=MessageCost(MAX_FRAME_BYTES)), ChargeResult)


def test_a_negative_total_is_no_credit():
    assert isinstance(charge(ROOMY, cost=MessageCost(1), totals={("bytes", TODAY): -5}), Denied)
    assert isinstance(charge(ROOMY, MONEY, cost=MessageCost(1, price=-1)), Denied)


def test_new_charges_drop_older_periods_of_their_own_account_alone():
    totals = {("a", 4): 1, ("a", 5): 2, ("a", 6): 4, ("b", 4): 8}
    assert add_charges(BudgetSpend(9, totals), [AccountCharge("a", 5, 10, 99)], 8) == BudgetSpend(
        9, {("a", 5): 12, ("a", 6): 4, ("b", 4): 8}
    )
    assert add_charges(BudgetSpend(9, {}, known=False), [], 10) == BudgetSpend(10, {}, known=False)
    back = remove_charges(
        BudgetSpend(9, totals, known=False), [AccountCharge("a", 5, 1, 9), AccountCharge("a", 6, 9, 9)]
    )
    assert back == BudgetSpend(9, {**totals, ("a", 5): 1, ("a", 6): 0}, known=False)


def test_a_subjects_account_is_known_by_its_key():
    keys = ["privacy/7d/s/ab", "privacy/7d/s/", "privacy/7d", "a/s/b/s/c"]
    assert [shared_account_key(key) for key in keys] == ["privacy/7d/s/", None, None, "a/s/"]


def test_what_remains_of_each_account_is_never_below_nothing_and_nothing_where_the_past_is_lost():
    spend = BudgetSpend(TODAY, {("bytes", TODAY): 400, ("cost", TODAY // 7): 130})
    accounts = (msgspec.structs.replace(ROOMY, limit=1000), MONEY, POWER)
    assert list_remaining(accounts, spend, TODAY) == {"bytes": (600, 1000), "cost": (0, 100), "energy": (100, 100)}
    lost = msgspec.structs.replace(spend, known=False)
    assert list_remaining(accounts, lost, TODAY) == {"bytes": (0, 1000), "cost": (0, 100), "energy": (0, 100)}


def test_the_bytes_of_the_latest_day_are_named():
    assert BudgetSpend(TODAY, {("bytes", TODAY): 5, ("bytes", TODAY - 1): 9}).bytes == 5
    assert BudgetSpend(TODAY).bytes == 0
    assert BudgetSpend() == BudgetSpend(0, {}, known=True)
