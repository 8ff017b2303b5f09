"""Egress: an allow-list of fields under a ceiling of labels."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.egress import (
    CONFIDENCE_FIELD,
    DERIVED_FIELDS,
    LOCAL_ANSWER_FIELD,
    LOCAL_VALUE_FIELD,
    OPTIONAL_FIELDS,
    REDACTION_PATTERNS,
    EgressPlan,
    decide_egress,
)
from policies.model.policy import HARD_CEILING_LEVEL, FieldRule, Terms, TransformKind, TransformSpec
from policies.model.reasons import DecisionReason, Denied
from tests.policies.doubles.given import DEMO, FEATURES, JUNK, SCHEMA, policy, spec
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

CLIP = TransformSpec(TransformKind.CLIP, low=0.0, high=15.0)
LEVELS = st.sampled_from(SensitivityLevel)
NAMES = st.sampled_from(["features", "extra", "image", LOCAL_ANSWER_FIELD, CONFIDENCE_FIELD])


def why(schema: tuple[FieldSpec, ...], data_class: str = "open", under: Terms = DEMO) -> DecisionReason:
    decision = decide_egress(under, schema, data_class)
    assert isinstance(decision, Denied), decision
    return decision.why


def test_listed_features_leave_with_their_transforms_and_the_rest_stays():
    out = decide_egress(DEMO, SCHEMA, "open")
    assert isinstance(out, EgressPlan)
    assert [(plan.spec, plan.transforms) for plan in out.fields] == [(FEATURES, (CLIP,))]
    assert (out.rule, out.level, out.fixed_size) == ("demo@1", SensitivityLevel.P2, True)
    assert out.releases == 0, "no noise is asked for"


def test_local_answer_and_confidence_leave_only_if_listed():
    rules = DEMO.fields | {each.name: FieldRule(each.name, each.level, ()) for each in DERIVED_FIELDS}
    out = decide_egress(policy(fields=rules), SCHEMA, "open")
    assert isinstance(out, EgressPlan)
    assert [plan.spec.name for plan in out.fields] == [
        "features",
        LOCAL_ANSWER_FIELD,
        CONFIDENCE_FIELD,
        LOCAL_VALUE_FIELD,
    ]


def test_public_features_need_no_fixed_size():
    out = decide_egress(DEMO, (spec(level=SensitivityLevel.P1),), "open")
    assert isinstance(out, EgressPlan)
    assert not out.fixed_size


def test_extra_field_of_the_model_denies_everything():
    assert why((*SCHEMA, spec("extra", SensitivityLevel.P0))) is DecisionReason.DENIED_UNLISTED_FIELD


def test_label_above_the_rule_denies_everything():
    assert why((spec(level=SensitivityLevel.P3),)) is DecisionReason.DENIED_LABEL


def test_label_above_the_ceiling_denies_although_the_rule_accepts_it():
    rules = {"features": FieldRule("features", SensitivityLevel.P3, ())}
    assert (
        why((spec(level=SensitivityLevel.P3),), under=policy(fields=rules, ceiling=SensitivityLevel.P2))
        is DecisionReason.DENIED_LABEL
    )


def test_raw_tensor_never_leaves_whatever_the_document_says():
    rules = {"features": FieldRule("features", SensitivityLevel.P4, ())}
    assert (
        why((spec(level=SensitivityLevel.P4),), under=policy(fields=rules, ceiling=SensitivityLevel.P4))
        is DecisionReason.DENIED_LABEL
    )


@pytest.mark.parametrize("level", [None, 2, "P2", -1, True, float("nan")])
def test_field_without_a_proper_label_counts_as_p4(level):
    assert why((msgspec.structs.replace(FEATURES, level=level),)) is DecisionReason.DENIED_LABEL


@pytest.mark.parametrize(
    "change",
    [{"dtype": "object"}, {"dtype": None}, {"shape": (None,)}, {"shape": (-1, 4)}, {"shape": ((2, 2),)}],
    ids=str,
)
def test_wrong_type_or_shape_or_nested_object_denies(change):
    assert why((msgspec.structs.replace(FEATURES, **change),)) is DecisionReason.DENIED_UNLISTED_FIELD


def test_schema_that_names_a_field_twice_is_denied():
    assert why((FEATURES, FEATURES)) is DecisionReason.DENIED_POLICY_ERROR


def test_nothing_to_send_is_a_denial():
    assert why(DERIVED_FIELDS) is DecisionReason.DENIED_UNLISTED_FIELD
    assert why(()) is DecisionReason.DENIED_UNLISTED_FIELD


@given(st.text())
def test_unknown_data_class_is_denied(data_class):
    if data_class not in DEMO.data_classes:
        assert why(SCHEMA, data_class) is DecisionReason.DENIED_DATA_CLASS


def test_data_class_marked_false_is_denied():
    assert why(SCHEMA, "private") is DecisionReason.DENIED_DATA_CLASS


@pytest.mark.parametrize("says", [1, "true", "false", [True], object(), None])
def test_rule_that_says_something_else_than_true_denies(says):
    assert why(SCHEMA, under=policy(data_classes={"open": says})) is DecisionReason.DENIED_DATA_CLASS


SPECS = st.builds(
    FieldSpec, NAMES, st.sampled_from(TensorDType), st.just((4,)), st.just(0.0), st.just(1.0), LEVELS, st.just("")
)
RULES = st.dictionaries(NAMES, LEVELS).map(
    lambda d: {name: FieldRule(name, level, (CLIP,)) for name, level in d.items()}
)


@given(st.lists(SPECS, max_size=5), RULES, LEVELS)
def test_no_field_outside_the_list_or_above_a_ceiling_is_ever_in_an_egress(schema, rules, ceiling):
    out = decide_egress(policy(fields=rules, ceiling=ceiling), tuple(schema), "open")
    if isinstance(out, Denied):
        return
    assert {plan.spec.name for plan in out.fields} >= {each.name for each in schema if each.name not in OPTIONAL_FIELDS}
    for plan in out.fields:
        rule = rules[plan.spec.name]
        assert plan.spec.level <= min(rule.level, ceiling, HARD_CEILING_LEVEL, out.level)
        assert plan.transforms == rule.transforms
        assert plan.spec in schema
    assert out.fixed_size == (out.level >= SensitivityLevel.P2)


@given(st.lists(SPECS, max_size=5), RULES, LEVELS, LEVELS)
def test_a_lower_ceiling_lets_nothing_more_leave(schema, rules, first, second):
    low, high = sorted((first, second))
    narrow = decide_egress(policy(fields=rules, ceiling=low), tuple(schema), "open")
    wide = decide_egress(policy(fields=rules, ceiling=high), tuple(schema), "open")
    if isinstance(narrow, EgressPlan):
        assert isinstance(wide, EgressPlan)
        assert set(map(str, narrow.fields)) <= set(map(str, wide.fields))


@given(field=st.sampled_from(["fields", "ceiling", "data_classes"]), junk=JUNK)
def test_damaged_policy_denies(field, junk):
    assert isinstance(decide_egress(policy(**{field: junk}), SCHEMA, "open"), Denied)


@given(junk=JUNK, part=st.sampled_from(["level", "transforms"]))
def test_damaged_rule_denies(junk, part):
    rule = msgspec.structs.replace(DEMO.fields["features"], **{part: junk})
    if junk != () or part != "transforms":
        assert isinstance(decide_egress(policy(fields={"features": rule}), SCHEMA, "open"), Denied)


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        ("email", b"ann@site.example"), ("url", b"https://site.example/a"), ("url", b"WWW.site.example"),
        ("iban", b"DE89 3704 0044 0532 0130 00"), ("card", b"4111 1111 1111 1111"), ("ip", b"10.0.0.1"),
        ("ip", b"2001:db8:0:1:2:3:4:5"), ("ip", b"2001:db8::1"), ("ip", b"fe80:1:2::1%eth0"), ("ip", b"::1"),
        ("ip", b"fe80::"), ("ip", b"::ffff:10.0.0.1"), ("phone", b"+49 (30) 123456"),
        ("date", b"31.1.2026"), ("number", b"1234"),
        ("name", b"Dr. Ann Lee"),
    ],
)  # fmt: skip
def test_each_pattern_finds_the_whole_of_what_it_is_to_blot_out(kind, example):
    found = REDACTION_PATTERNS[kind].search(b"see " + example + b" , and go")
    assert found is not None
    assert found.group() == example


def test_the_fields_that_a_device_derives_have_these_ranges_and_labels_on_both_sides_of_the_link():
    largest = 3.4028234663852886e38
    assert [(each.name, each.low, each.high, each.level, each.dtype, each.shape) for each in DERIVED_FIELDS] == [
        (LOCAL_ANSWER_FIELD, -1, 2147483647, SensitivityLevel.P2, TensorDType.INT32, (1,)),
        (CONFIDENCE_FIELD, 0.0, 1.0, SensitivityLevel.P1, TensorDType.FP32, (1,)),
        (LOCAL_VALUE_FIELD, -largest, largest, SensitivityLevel.P2, TensorDType.FP32, (1,)),
    ]
