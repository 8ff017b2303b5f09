"""Egress: an allow-list of fields under a ceiling of labels. Case 102 of the security list."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.egress import CONFIDENCE, DERIVED, LOCAL_ANSWER, LOCAL_VALUE, OPTIONAL, Egress, decide
from policies.model.policy import HARD_CEILING, FieldRule, Terms, TransformKind, TransformSpec
from policies.model.reasons import Denied, Why
from tests.policies.doubles.given import DEMO, FEATURES, JUNK, SCHEMA, policy, spec
from wire.protocol.messages import DType, FieldSpec, Level

CLIP = TransformSpec(TransformKind.CLIP, low=0.0, high=15.0)
LEVELS = st.sampled_from(Level)
NAMES = st.sampled_from(["features", "extra", "image", LOCAL_ANSWER, CONFIDENCE])


def why(schema: tuple[FieldSpec, ...], data_class: str = "open", under: Terms = DEMO) -> Why:
    decision = decide(under, schema, data_class)
    assert isinstance(decision, Denied), decision
    return decision.why


def test_listed_features_leave_with_their_transforms_and_the_rest_stays():
    out = decide(DEMO, SCHEMA, "open")
    assert isinstance(out, Egress)
    assert [(plan.spec, plan.transforms) for plan in out.fields] == [(FEATURES, (CLIP,))]
    assert (out.rule, out.level, out.fixed_size) == ("demo@1", Level.P2, True)


def test_local_answer_and_confidence_leave_only_if_listed():
    rules = DEMO.fields | {each.name: FieldRule(each.name, each.level, ()) for each in DERIVED}
    out = decide(policy(fields=rules), SCHEMA, "open")
    assert isinstance(out, Egress)
    assert [plan.spec.name for plan in out.fields] == ["features", LOCAL_ANSWER, CONFIDENCE, LOCAL_VALUE]


def test_public_features_need_no_fixed_size():
    out = decide(DEMO, (spec(level=Level.P1),), "open")
    assert isinstance(out, Egress)
    assert not out.fixed_size


def test_case_102_extra_field_of_the_model_denies_everything():
    assert why((*SCHEMA, spec("extra", Level.P0))) is Why.DENIED_UNLISTED_FIELD


def test_case_102_label_above_the_rule_denies_everything():
    assert why((spec(level=Level.P3),)) is Why.DENIED_LABEL


def test_case_102_label_above_the_ceiling_denies_although_the_rule_accepts_it():
    rules = {"features": FieldRule("features", Level.P3, ())}
    assert why((spec(level=Level.P3),), under=policy(fields=rules, ceiling=Level.P2)) is Why.DENIED_LABEL


def test_case_102_raw_tensor_never_leaves_whatever_the_document_says():
    rules = {"features": FieldRule("features", Level.P4, ())}
    assert why((spec(level=Level.P4),), under=policy(fields=rules, ceiling=Level.P4)) is Why.DENIED_LABEL


@pytest.mark.parametrize("level", [None, 2, "P2", -1, True, float("nan")])
def test_case_102_field_without_a_proper_label_counts_as_p4(level):
    assert why((msgspec.structs.replace(FEATURES, level=level),)) is Why.DENIED_LABEL


@pytest.mark.parametrize(
    "change",
    [{"dtype": "object"}, {"dtype": None}, {"shape": (None,)}, {"shape": (-1, 4)}, {"shape": ((2, 2),)}],
    ids=str,
)
def test_case_102_wrong_type_or_shape_or_nested_object_denies(change):
    assert why((msgspec.structs.replace(FEATURES, **change),)) is Why.DENIED_UNLISTED_FIELD


def test_schema_that_names_a_field_twice_is_denied():
    assert why((FEATURES, FEATURES)) is Why.DENIED_POLICY_ERROR


def test_nothing_to_send_is_a_denial():
    assert why(DERIVED) is Why.DENIED_UNLISTED_FIELD
    assert why(()) is Why.DENIED_UNLISTED_FIELD


@given(st.text())
def test_unknown_data_class_is_denied(data_class):
    if data_class not in DEMO.data_classes:
        assert why(SCHEMA, data_class) is Why.DENIED_DATA_CLASS


def test_data_class_marked_false_is_denied():
    assert why(SCHEMA, "private") is Why.DENIED_DATA_CLASS


@pytest.mark.parametrize("says", [1, "true", "false", [True], object(), None])
def test_case_103_rule_that_says_something_else_than_true_denies(says):
    assert why(SCHEMA, under=policy(data_classes={"open": says})) is Why.DENIED_DATA_CLASS


SPECS = st.builds(
    FieldSpec, NAMES, st.sampled_from(DType), st.just((4,)), st.just(0.0), st.just(1.0), LEVELS, st.just("")
)
RULES = st.dictionaries(NAMES, LEVELS).map(
    lambda d: {name: FieldRule(name, level, (CLIP,)) for name, level in d.items()}
)


@given(st.lists(SPECS, max_size=5), RULES, LEVELS)
def test_no_field_outside_the_list_or_above_a_ceiling_is_ever_in_an_egress(schema, rules, ceiling):
    out = decide(policy(fields=rules, ceiling=ceiling), tuple(schema), "open")
    if isinstance(out, Denied):
        return
    assert {plan.spec.name for plan in out.fields} >= {each.name for each in schema if each.name not in OPTIONAL}
    for plan in out.fields:
        rule = rules[plan.spec.name]
        assert plan.spec.level <= min(rule.level, ceiling, HARD_CEILING, out.level)
        assert plan.transforms == rule.transforms
        assert plan.spec in schema
    assert out.fixed_size == (out.level >= Level.P2)


@given(st.lists(SPECS, max_size=5), RULES, LEVELS, LEVELS)
def test_a_lower_ceiling_lets_nothing_more_leave(schema, rules, first, second):
    low, high = sorted((first, second))
    narrow = decide(policy(fields=rules, ceiling=low), tuple(schema), "open")
    wide = decide(policy(fields=rules, ceiling=high), tuple(schema), "open")
    if isinstance(narrow, Egress):
        assert isinstance(wide, Egress)
        assert set(map(str, narrow.fields)) <= set(map(str, wide.fields))


@given(field=st.sampled_from(["fields", "ceiling", "data_classes"]), junk=JUNK)
def test_damaged_policy_denies(field, junk):
    assert isinstance(decide(policy(**{field: junk}), SCHEMA, "open"), Denied)


@given(junk=JUNK, part=st.sampled_from(["level", "transforms"]))
def test_damaged_rule_denies(junk, part):
    rule = msgspec.structs.replace(DEMO.fields["features"], **{part: junk})
    if junk != () or part != "transforms":
        assert isinstance(decide(policy(fields={"features": rule}), SCHEMA, "open"), Denied)
