"""Permit: routing, egress, leakage and budget together; any failure denies."""

from typing import Any, Never

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.budget import BudgetSpend, MessageCost
from policies.decisions.egress import CONFIDENCE_FIELD, DERIVED_FIELDS, EgressPlan
from policies.decisions.leakage import LeakageFinding
from policies.decisions.permit import (
    Permit,
    PermitPrice,
    charge_permit,
    decide_permit,
    decide_scope,
    expired_or_denied,
    permits_at_least,
    recheck_question,
)
from policies.decisions.routing import HubSite
from policies.model.policy import (
    AccountUnit,
    BudgetAccount,
    EscalationMode,
    FieldRule,
    Terms,
    TransformKind,
    TransformSpec,
)
from policies.model.reasons import DecisionReason, Denied
from tests.policies.doubles.given import (
    DEMO,
    FEATURES,
    HUBS,
    JUNK,
    MEASURED,
    SCHEMA,
    TODAY,
    UNSPENT,
    cleared,
    policy,
    spec,
)
from wire.protocol.messages import Escalation, ModelRef, SensitivityLevel, Tensor, TensorDType

CODED = Tensor(TensorDType.UINT8, (16,), bytes(16))  # 32 codes of 4 bits
SITE = HUBS[0]


def ask(under: Any, data_class: str = "open", size_bytes: int = 500, day: int = TODAY) -> Permit | Denied:
    return decide_permit(
        under, SCHEMA, HUBS, data_class, PermitPrice(UNSPENT, MessageCost(size_bytes), day), cleared(under)
    )


def why(decision: object) -> DecisionReason:
    assert isinstance(decision, Denied), decision
    return decision.why


def egress_of(under: Terms) -> EgressPlan:
    permit = ask(under)
    assert isinstance(permit, Permit)
    return permit.egress


def question(**changes: Any) -> Escalation:
    model = ModelRef("digits", 1, "cut", "pack4")
    whole = Escalation("id", model, DEMO.hash, "local", {"features": CODED}, 2.0, audit=False, trace="")
    return msgspec.structs.replace(whole, **changes)


def check(asked: Escalation, schema: Any = SCHEMA, site: HubSite = SITE, known: Terms | None = DEMO) -> Denied | None:
    return recheck_question(known, schema, asked, site, TODAY, cleared(known))


def test_permit_names_policy_targets_fields_and_the_new_total():
    permit = ask(DEMO)
    assert isinstance(permit, Permit)
    assert permit.policy == DEMO.hash
    assert permit.targets == HUBS
    assert [plan.spec for plan in permit.egress.fields] == [FEATURES]
    assert permit.spend == BudgetSpend.spent_bytes(TODAY, 500)


def test_missing_policy_denies():
    assert why(ask(None)) is DecisionReason.DENIED_POLICY_ERROR


def test_expired_policy_denies_from_the_day_after():
    dated = policy(expires="2024-10-04", expires_day=TODAY)
    assert isinstance(ask(dated, day=TODAY), Permit)
    assert why(ask(dated, day=TODAY + 1)) is DecisionReason.DENIED_POLICY_EXPIRED


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(EscalationMode.LOCAL_ONLY, DecisionReason.LOCAL_ONLY), (EscalationMode.DISABLED, DecisionReason.DISABLED)],
)
def test_a_row_of_yesterday_may_not_leave_once_the_mode_asks_no_more(mode, reason):
    assert why(ask(policy(mode=mode), size_bytes=0)) is reason


def test_first_reason_is_told():
    assert (
        why(decide_permit(DEMO, SCHEMA, (), "private", PermitPrice(UNSPENT, MessageCost(10), TODAY), MEASURED))
        is DecisionReason.DENIED_HUB
    )
    assert why(ask(DEMO, data_class="private")) is DecisionReason.DENIED_DATA_CLASS
    assert why(ask(policy(bytes_per_day=499))) is DecisionReason.DENIED_BUDGET


DECISIVE = ["mode", "ceiling", "fields", "data_classes", "hubs", "regions", "bytes_per_day"]


@given(field=st.sampled_from(DECISIVE), junk=JUNK)
def test_any_damaged_value_denies(field, junk):
    assert isinstance(ask(policy(**{field: junk})), Denied)


@given(junk=JUNK)
def test_damaged_expiry_denies(junk):
    assert isinstance(ask(policy(expires_day=junk)), Denied)


@pytest.mark.parametrize(
    "thing", [object(), "policy", 7, {}, DEMO.fields["features"]], ids=["object", "text", "number", "dict", "field"]
)
def test_something_else_than_a_policy_denies(thing):
    assert why(ask(thing)) is DecisionReason.DENIED_POLICY_ERROR


class _Explosive(dict[str, bool]):
    """A rule whose evaluation raises."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def get(self, *_: object) -> Never:
        raise self.error


@pytest.mark.parametrize("error", [ValueError, KeyError, TypeError, RecursionError, ZeroDivisionError, UnicodeError])
def test_rule_that_raises_denies(error):
    assert why(ask(policy(data_classes=_Explosive(error)))) is DecisionReason.DENIED_POLICY_ERROR


def test_prepared_under_the_same_rules_is_covered():
    assert permits_at_least(egress_of(policy(threshold=0.5, version=2)), egress_of(DEMO))


def test_prepared_with_another_transform_is_not_covered():
    coarse = (TransformSpec(TransformKind.QUANTISE, step=4.0),)
    coarser = policy(fields={"features": FieldRule("features", SensitivityLevel.P2, coarse)})
    assert not permits_at_least(egress_of(coarser), egress_of(DEMO))


def test_prepared_with_a_field_that_stays_now_is_not_covered_but_the_other_way_round_is():
    wider = policy(fields=DEMO.fields | {CONFIDENCE_FIELD: FieldRule(CONFIDENCE_FIELD, SensitivityLevel.P1, ())})
    assert not permits_at_least(egress_of(DEMO), egress_of(wider))
    assert permits_at_least(egress_of(wider), egress_of(DEMO))


def test_hub_lets_in_what_the_policy_lets_out():
    assert check(question()) is None


def test_hub_knows_no_such_policy():
    assert why(check(question(), known=None)) is DecisionReason.DENIED_POLICY_ERROR


def test_hub_of_another_region_refuses():
    assert why(check(question(region="eu"))) is DecisionReason.DENIED_REGION
    assert why(check(question(region="us"), site=HubSite("hub-1", "us"))) is DecisionReason.DENIED_REGION
    assert why(check(question(), site=HubSite("hub-2", "local"))) is DecisionReason.DENIED_HUB


def test_hub_refuses_under_an_expired_policy():
    assert why(check(question(), known=policy(expires_day=TODAY - 1))) is DecisionReason.DENIED_POLICY_EXPIRED


@pytest.mark.parametrize("name", ["extra", CONFIDENCE_FIELD, "", "x" * 1000])
def test_hub_refuses_a_field_that_may_not_leave(name):
    tensor = Tensor(TensorDType.FP32, (1,), bytes(4))
    assert why(check(question(fields={"features": CODED, name: tensor}))) is DecisionReason.DENIED_UNLISTED_FIELD


def test_hub_refuses_a_payload_larger_than_the_field():
    big = Tensor(TensorDType.UINT8, (33,), bytes(33))
    assert why(check(question(fields={"features": big}))) is DecisionReason.DENIED_UNLISTED_FIELD


def test_hub_refuses_a_derived_field_of_another_shape():
    wider = policy(fields=DEMO.fields | {CONFIDENCE_FIELD: FieldRule(CONFIDENCE_FIELD, SensitivityLevel.P1, ())})
    good, bad = Tensor(TensorDType.FP32, (1,), bytes(4)), Tensor(TensorDType.FP16, (2,), bytes(4))
    assert check(question(fields={"features": CODED, CONFIDENCE_FIELD: good}), known=wider) is None
    denied = check(question(fields={"features": CODED, CONFIDENCE_FIELD: bad}), known=wider)
    assert why(denied) is DecisionReason.DENIED_UNLISTED_FIELD


def test_hub_refuses_when_the_model_itself_has_a_label_too_high():
    assert (
        why(check(question(), schema=(spec(level=SensitivityLevel.P3), *DERIVED_FIELDS))) is DecisionReason.DENIED_LABEL
    )


@given(field=st.sampled_from(DECISIVE), junk=JUNK)
def test_hub_with_a_damaged_policy_refuses(field, junk):
    if field not in {"data_classes", "bytes_per_day"}:  # the device's business: the class does not travel
        assert isinstance(check(question(), known=policy(**{field: junk})), Denied)


def test_a_permit_is_charged_by_its_dearest_hub_and_its_noised_fields_and_names_its_terms():
    hubs = (HubSite("hub-1", "local", 7), HubSite("hub-2", "local", 9), HubSite("hub-3", "local", 99))
    accounts = (*DEMO.accounts, BudgetAccount("cost", AccountUnit.COST, 10))
    under = policy(hubs=("hub-2", "hub-1"), accounts=accounts, key=f"{DEMO.hash}/1")
    permit = decide_permit(under, SCHEMA, hubs, "open", PermitPrice(UNSPENT, MessageCost(500), TODAY), cleared(under))
    assert isinstance(permit, Permit)
    assert (permit.policy, permit.terms, permit.targets) == (DEMO.hash, f"{DEMO.hash}/1", (hubs[1], hubs[0]))
    assert [(each.key, each.amount) for each in permit.charges] == [("bytes", 500), ("cost", 9)]
    assert permit.spend == BudgetSpend(TODAY, {("bytes", TODAY): 500, ("cost", TODAY): 9})


@pytest.mark.parametrize(
    ("terms", "denied"),
    [
        (None, (DecisionReason.DENIED_POLICY_ERROR, "there is no policy: nothing may leave")),
        (policy(mode=EscalationMode.LOCAL_ONLY), (DecisionReason.LOCAL_ONLY, "escalation.mode is local_only")),
        (policy(mode=EscalationMode.DISABLED), (DecisionReason.DISABLED, "escalation.mode is disabled")),
        (
            policy(expires="2020-01-01", expires_day=TODAY - 1),
            (DecisionReason.DENIED_POLICY_EXPIRED, "the policy expired on 2020-01-01"),
        ),
        (policy(denied_by="night"), (DecisionReason.DENIED_RULE, "rule 'night' lets nothing leave")),
        (policy(expires_day=TODAY), None),
    ],
)
def test_terms_that_are_not_in_force_deny_by_their_own_reason(terms, denied):
    expected = Denied(*denied) if denied else None
    assert expired_or_denied(terms, TODAY) == expected
    if terms is not None and expected:
        assert ask(terms) == check(question(), known=terms) == expected
        price = PermitPrice(UNSPENT, MessageCost(500), TODAY)
        other = Denied(DecisionReason.DENIED_HUB, "")
        assert charge_permit(terms, other, price) == expected
        assert charge_permit(DEMO, other, price) == other


def test_a_question_is_refused_by_the_first_thing_that_does_not_hold_in_one_sentence():
    error = Denied(DecisionReason.DENIED_POLICY_ERROR, "recheck: AttributeError")
    assert recheck_question(DEMO, SCHEMA, object(), SITE, TODAY, MEASURED) == error  # type: ignore[arg-type]
    assert check(question(region="x" * 70)) == Denied(
        DecisionReason.DENIED_REGION, f"meant for region {'x' * 64!r}, this is 'local'"
    )
    extra = question(fields={"x" * 70: CODED})
    assert check(extra) == Denied(
        DecisionReason.DENIED_UNLISTED_FIELD, f"field {'x' * 64!r} may not leave under this policy"
    )
    big = question(fields={"features": Tensor(TensorDType.UINT8, (33,), bytes(33))})
    assert check(big) == Denied(
        DecisionReason.DENIED_UNLISTED_FIELD, "field 'features' carries more than the schema's type and shape"
    )
    assert check(question(fields={"features": Tensor(TensorDType.UINT8, (32,), bytes(32))})) is None
    denied = Denied(DecisionReason.DENIED_LEAKAGE, "x")
    assert recheck_question(denied, SCHEMA, question(), SITE, TODAY, MEASURED) == denied


@pytest.mark.parametrize(
    "tensor",
    [
        (TensorDType.FP32, (1,), 3),
        (TensorDType.FP32, (1,), 5),
        (TensorDType.INT32, (1,), 4),
        (TensorDType.FP32, (2,), 4),
    ],
)
def test_a_derived_field_matches_in_type_shape_and_size(tensor):
    dtype, shape, size = tensor
    wider = policy(fields=DEMO.fields | {CONFIDENCE_FIELD: FieldRule(CONFIDENCE_FIELD, SensitivityLevel.P1, ())})
    asked = question(fields={CONFIDENCE_FIELD: Tensor(dtype, shape, bytes(size))})
    assert why(check(asked, known=wider)) is DecisionReason.DENIED_UNLISTED_FIELD


def test_a_scope_is_denied_by_hub_then_fields_then_leakage():
    leaks = LeakageFinding(DEMO.key, Denied(DecisionReason.DENIED_LEAKAGE, "x"))
    high = (spec(level=SensitivityLevel.P3),)
    rows = [
        ((HubSite("x", "local"),), high, "closed", leaks, DecisionReason.DENIED_HUB),
        (HUBS, high, "closed", leaks, DecisionReason.DENIED_DATA_CLASS),
        (HUBS, high, "open", leaks, DecisionReason.DENIED_LABEL),
        (HUBS, SCHEMA, "open", leaks, DecisionReason.DENIED_LEAKAGE),
    ]
    for hubs, schema, data_class, finding, reason in rows:
        assert why(decide_scope(DEMO, schema, hubs, data_class, finding)) is reason
    failed = decide_scope(DEMO, SCHEMA, HUBS, "open", None)  # type: ignore[arg-type]
    assert failed == Denied(DecisionReason.DENIED_POLICY_ERROR, "judge: AttributeError")
