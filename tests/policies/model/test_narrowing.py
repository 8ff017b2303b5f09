"""Terms narrowed: one thing at a time, and of two sets of accounts all of both, each with the smaller numbers."""

import msgspec
import pytest

from policies.model.differential_privacy import merge_noise_terms
from policies.model.narrowing import meet_accounts, narrow_terms
from policies.model.policy import (
    AccountUnit,
    BudgetAccount,
    EscalationMode,
    FieldRule,
    LeakageLimits,
    Narrowing,
    NoiseTerms,
    NoveltyAction,
    PrivacyUnit,
    RetentionTerms,
    Terms,
    TransformKind,
    TransformSpec,
)
from wire.protocol.messages import SensitivityLevel

BYTES = next(iter(AccountUnit))


@pytest.mark.parametrize("field", ["limit", "each"])
@pytest.mark.parametrize("pair", [(3, 5), (5, 3), (4, 4), (0, 2)])
def test_of_two_accounts_of_one_key_each_number_is_the_smaller_one(field, pair):
    accounts = [BudgetAccount("a", BYTES, **{"limit": 10, "each": 7, field: number}) for number in pair]
    (met,) = meet_accounts(accounts)
    assert met == BudgetAccount("a", BYTES, **{"limit": 10, "each": 7, field: min(pair)})


@pytest.mark.parametrize("pair", [(True, True), (True, False), (False, True), (False, False)])
def test_an_account_is_per_subject_only_where_both_say_so(pair):
    (met,) = meet_accounts([BudgetAccount("a", BYTES, 10, subject=subject) for subject in pair])
    assert met.subject is all(pair)


def test_accounts_of_different_keys_all_hold_in_the_order_of_their_keys():
    accounts = [BudgetAccount(key, BYTES, limit) for key, limit in (("b", 3), ("a", 9), ("b", 2))]
    assert meet_accounts(accounts) == (BudgetAccount("a", BYTES, 9), BudgetAccount("b", BYTES, 2))


DROP, STEP, CLIP = (TransformSpec(kind) for kind in (TransformKind.DROP, TransformKind.COARSEN, TransformKind.CLIP))
P1, P2, P3 = SensitivityLevel.P1, SensitivityLevel.P2, SensitivityLevel.P3
NOISE = NoiseTerms(PrivacyUnit.SUBJECT, 2.0, 5.0, 1e-6, 1.0, 30, 0.25, 0.5, 1000, 4)
WIDE = Terms(
    hash="h", key="k", name="n", version=1, mode=EscalationMode.WAIT, threshold=0.5, audit_share=0.25, budget_s=2.0,
    max_open=10, ceiling=P2, fields={"a": FieldRule("a", P2, (STEP,)), "b": FieldRule("b", P1, ())},
    data_classes={"open": True, "shut": False}, hubs=("h1", "h2"), regions=("r1", "r2"),
    accounts=(BudgetAccount("bytes", BYTES, 10),), expires="2026-06-30", expires_day=20_634,
    privacy=(LeakageLimits(0.5),), novel=NoveltyAction.FLAG,
)  # fmt: skip


@pytest.mark.parametrize(
    ("by", "changed"),
    [
        ({}, {}),
        ({"mode": EscalationMode.LOCAL_ONLY}, {"mode": EscalationMode.LOCAL_ONLY}),
        ({"mode": EscalationMode.HUB_FIRST}, {}),
        ({"threshold": 0.4}, {"threshold": 0.4}), ({"threshold": 0.6}, {}), ({"threshold": 0.0}, {"threshold": 0.0}),
        ({"audit_share": 0.0}, {"audit_share": 0.0}), ({"audit_share": 0.5}, {}),
        ({"budget_s": 0.0}, {"budget_s": 0.0}), ({"budget_s": 3.0}, {}),
        ({"max_open": 0}, {"max_open": 0}), ({"max_open": 11}, {}),
        ({"ceiling": P1}, {"ceiling": P1}), ({"ceiling": P3}, {}),
        ({"data_classes": {"open": True, "shut": True, "new": True}}, {}),
        ({"data_classes": {"open": False}}, {"data_classes": {"open": False}}),
        ({"data_classes": {}}, {"data_classes": {}}),
        ({"hubs": ("h3", "h2")}, {"hubs": ("h2",)}), ({"hubs": ()}, {"hubs": ()}),
        ({"hubs": tuple(f"h{number}" for number in range(20))}, {}),
        ({"regions": ("r2", "r1")}, {}), ({"regions": ("r2",)}, {"regions": ("r2",)}),
        ({"accounts": (BudgetAccount("bytes", BYTES, 5),)}, {"accounts": (BudgetAccount("bytes", BYTES, 5),)}),
        ({"accounts": (BudgetAccount("bytes", BYTES, 50),)}, {}),
        ({"expires": "2026-06-29"}, {"expires": "2026-06-29", "expires_day": 20_633}),
        ({"expires": "2026-07-01"}, {}),
        ({"privacy": (LeakageLimits(0.5), LeakageLimits(0.1))}, {"privacy": (LeakageLimits(0.5), LeakageLimits(0.1))}),
        ({"retention": RetentionTerms("p", 3)}, {"retention": RetentionTerms("p", 3)}),
        ({"novel": NoveltyAction.REJECT}, {"novel": NoveltyAction.REJECT}), ({"novel": NoveltyAction.ASK}, {}),
        ({"denied_by": "r"}, {"denied_by": "r"}),
        ({"drop": ("b", "x")}, {"fields": {"a": FieldRule("a", P2, (STEP,))}}),
        ({"transforms": {"b": (DROP,)}}, {"fields": {"a": FieldRule("a", P2, (STEP,))}}),
        ({"transforms": {"a": (CLIP, CLIP, STEP, STEP)}},
         {"fields": {"a": FieldRule("a", P2, (STEP, CLIP, STEP, STEP)), "b": FieldRule("b", P1, ())}}),
        ({"fields": {}}, {"fields": {}}),
        ({"fields": {"a": FieldRule("a", P1, (CLIP,)), "c": FieldRule("c", P1, ())}},
         {"fields": {"a": FieldRule("a", P1, (STEP, CLIP))}}),
        ({"fields": {"b": FieldRule("b", P3, ())}, "transforms": {"b": (STEP,)}},
         {"fields": {"b": FieldRule("b", P1, (STEP,))}}),
    ],
)  # fmt: skip
def test_what_one_thing_takes_away_changes_that_and_nothing_else(by, changed):
    assert narrow_terms(WIDE, Narrowing(**by)) == msgspec.structs.replace(WIDE, **changed)


def test_noise_of_one_side_is_in_force_with_its_accounts_and_of_two_the_stricter_numbers():
    under = narrow_terms(WIDE, Narrowing(dp=NOISE))
    accounts = [(each.key, each.limit) for each in under.accounts]
    assert (under.dp, accounts) == (NOISE, [("bytes", 10), ("privacy/30d", 1000), ("privacy/30d/audits", 250)])
    assert narrow_terms(under, Narrowing()) == under
    other = NoiseTerms(PrivacyUnit.DEVICE, 1.0, 3.0, 1e-5, 2.0, 7, 0.125, None, 900, 8)
    both = narrow_terms(under, Narrowing(dp=other)).dp
    assert both == NoiseTerms(PrivacyUnit.DEVICE, 1.0, 5.0, 1e-6, 1.0, 30, 0.125, 0.5, 900, 4)
    assert narrow_terms(narrow_terms(WIDE, Narrowing(dp=other)), Narrowing(dp=NOISE)).dp == both
    without = msgspec.structs.replace(other, random_ask=None)
    assert merge_noise_terms(without, without).random_ask is None
    assert merge_noise_terms(NOISE, msgspec.structs.replace(NOISE, random_ask=0.0)).random_ask == 0.0


def test_of_two_retentions_the_shorter_time_holds_every_purpose_stands_and_the_outer_subject():
    held = msgspec.structs.replace(WIDE, retention=RetentionTerms("a|b", 5, "patient"))

    def both(purpose: str, days: int, subject: str = "") -> RetentionTerms | None:
        return narrow_terms(held, Narrowing(retention=RetentionTerms(purpose, days, subject))).retention

    assert both("b|c", 3, "guest") == RetentionTerms("a|b|c", 3, "patient")
    assert both("a", 6) == RetentionTerms("a|b", 5, "patient")
    assert narrow_terms(held, Narrowing()) == held
    bare = msgspec.structs.replace(WIDE, retention=RetentionTerms("a", 5))
    assert narrow_terms(bare, Narrowing(retention=RetentionTerms("a", 5, "guest"))).retention == RetentionTerms(
        "a", 5, "guest"
    )


def test_a_denial_of_either_side_stays_and_the_first_is_named():
    denied = narrow_terms(WIDE, Narrowing(denied_by="one"))
    assert narrow_terms(denied, Narrowing(denied_by="two")).denied_by == "one"
    assert narrow_terms(denied, Narrowing()).denied_by == "one"
