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
    FieldPlan,
    count_raw_bytes,
    decide_egress,
    find_highest_level,
    list_derived_fields,
    plan_egress,
    redact_text,
)
from policies.model.policy import (
    HARD_CEILING_LEVEL,
    FieldRule,
    NoiseTerms,
    PrivacyUnit,
    RetentionTerms,
    Terms,
    TransformKind,
    TransformSpec,
)
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


P0, P1, P2, P3, P4 = SensitivityLevel
UNLISTED, LABEL = DecisionReason.DENIED_UNLISTED_FIELD, DecisionReason.DENIED_LABEL
NOISE = NoiseTerms(PrivacyUnit.RECORD, 2.0, 5.0, 1e-6, 1.0, 30, 0.0, None, 100, 1)


def listed(*names: str, level: SensitivityLevel = P2) -> dict[str, FieldRule]:
    return {name: FieldRule(name, level, ()) for name in names}


@pytest.mark.parametrize(
    ("schema", "changes", "data_class", "denied"),
    [
        (SCHEMA, {}, "x" * 70, (DecisionReason.DENIED_DATA_CLASS, f"data class {'x' * 64!r} may not leave")),
        ((spec(), spec()), {}, "open", (DecisionReason.DENIED_POLICY_ERROR, "the model's schema names a field twice")),
        ((), {}, "open", (UNLISTED, "no field of the model is listed in egress.field")),
        ((spec("extra"),), {}, "open", (UNLISTED, "field 'extra' is not listed in egress.field")),
        ((spec(level=P3),), {}, "open", (LABEL, "field 'features' is P3, at most P2 may leave")),
        ((spec(),), {"ceiling": P1}, "open", (LABEL, "field 'features' is P2, at most P1 may leave")),
        (
            (spec(),), {"fields": listed("features", level=P1)}, "open",
            (LABEL, "field 'features' is P2, at most P1 may leave"),
        ),
        (
            (spec(),), {"retention": None}, "open",
            (DecisionReason.DENIED_PURPOSE, "no purpose is stated, and P2 needs one: retention.purpose"),
        ),
        (
            (msgspec.structs.replace(FEATURES, dtype=TensorDType.INT32),), {"dp": NOISE}, "open",
            (UNLISTED, "field 'features' cannot be noised, and the policy lets only noised fields leave"),
        ),
        (SCHEMA, {"fields": None}, "open", (DecisionReason.DENIED_POLICY_ERROR, "egress: AttributeError")),
    ],
)  # fmt: skip
def test_every_denial_is_one_sentence_with_its_reason(schema, changes, data_class, denied):
    assert decide_egress(policy(**changes), schema, data_class) == Denied(*denied)


@pytest.mark.parametrize(
    ("change", "denied"),
    [
        ({"level": None}, (LABEL, "field 'features' has no label, which counts as P4")),
        ({"shape": (0,)}, (UNLISTED, "field 'features' has no element type or no fixed shape")),
        ({"shape": (4, -1)}, (UNLISTED, "field 'features' has no element type or no fixed shape")),
        ({"dtype": None}, (UNLISTED, "field 'features' has no element type or no fixed shape")),
    ],
)
def test_a_field_without_label_type_or_shape_is_denied_by_that(change, denied):
    assert decide_egress(DEMO, (msgspec.structs.replace(FEATURES, **change),), "open") == Denied(*denied)


def test_a_plan_says_which_fields_leave_how_and_under_which_label():
    public = (msgspec.structs.replace(FEATURES, shape=(1,), level=P1),)
    assert decide_egress(DEMO, public, "open") == EgressPlan((FieldPlan(public[0], (CLIP,)),), "demo@1", P1, False, 0)
    no_purpose = policy(retention=None)
    assert isinstance(decide_egress(no_purpose, public, "open"), EgressPlan)
    assert why((spec(),), under=policy(retention=RetentionTerms(""))) is DecisionReason.DENIED_PURPOSE
    both = decide_egress(
        policy(fields=DEMO.fields | listed(CONFIDENCE_FIELD)), (spec(level=P1), *DERIVED_FIELDS), "open"
    )
    assert isinstance(both, EgressPlan)
    assert ([each.spec.name for each in both.fields], both.level) == (["features", CONFIDENCE_FIELD], P1)


def test_each_field_that_leaves_under_noise_is_a_release_and_an_answer_that_cannot_be_noised_stays():
    under = policy(dp=NOISE, fields=DEMO.fields | listed(*OPTIONAL_FIELDS))
    floats = msgspec.structs.replace(FEATURES, dtype=TensorDType.FP32)
    plan = decide_egress(under, (floats, *DERIVED_FIELDS), "open")
    assert isinstance(plan, EgressPlan)
    assert [each.spec.name for each in plan.fields] == ["features", CONFIDENCE_FIELD, LOCAL_VALUE_FIELD]
    assert plan.releases == 3
    steps = (TransformSpec(TransformKind.CLIP_NORM, high=2.0), TransformSpec(TransformKind.NOISE, step=20.0))
    assert [each.transforms for each in plan.fields] == [(CLIP, *steps), steps, steps]


def test_a_derived_field_with_too_high_a_label_stays_and_the_rest_leaves():
    plan = plan_egress(policy(fields=DEMO.fields | listed(*OPTIONAL_FIELDS, level=P1)), SCHEMA)
    assert isinstance(plan, EgressPlan)
    assert [each.spec.name for each in plan.fields] == ["features", CONFIDENCE_FIELD]


def test_the_highest_label_is_that_of_the_features_alone():
    def label(*levels: object) -> SensitivityLevel:
        return find_highest_level(tuple(spec(f"f{n}", level) for n, level in enumerate(levels)) + DERIVED_FIELDS)  # type: ignore[arg-type]

    assert [label(P1, P3, P0), label(P0), label(P0, P1)] == [P3, P0, P1]
    assert [label(), label(P1, None), label(1)] == [P4, P4, P4]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("FP32", 4), ("FP16", 2), ("INT64", 8), ("INT32", 4), ("INT8", 1), ("UINT8", 1), ("BOOL", 1)],
)
def test_the_size_of_a_field_is_that_of_its_elements(dtype, size):
    field = msgspec.structs.replace(FEATURES, dtype=TensorDType[dtype], shape=(3, 5))
    assert count_raw_bytes(field) == 15 * size
    assert {each.name for each in TensorDType} == {"FP32", "FP16", "INT64", "INT32", "INT8", "UINT8", "BOOL"}


def test_a_classifier_answers_with_a_label_and_a_regressor_with_a_value():
    for regressor, names in (
        (False, [LOCAL_ANSWER_FIELD, CONFIDENCE_FIELD]),
        (True, [CONFIDENCE_FIELD, LOCAL_VALUE_FIELD]),
    ):
        assert [each.name for each in list_derived_fields(regressor=regressor)] == names


def test_a_text_is_blotted_by_the_patterns_that_are_always_used_and_those_that_are_named():
    text = b"Dr. Ann Lee, 3.1.26, ann@site.example, 10.0.0.1, 123456 and 12"
    always = redact_text(text, [])
    assert always == b"Dr. Ann Lee, 3.1.26, ****************, ********, ****** and 12"
    assert redact_text(text, ["name"]) == b"***********" + always[11:]
    assert redact_text(text, ["date", "name"]) == b"***********, ******" + always[19:]
    assert redact_text("1234é5678 ü".encode(), []) == "****é**** ü".encode()
    with pytest.raises(KeyError):
        redact_text(text, ["names"])


def test_a_character_whose_first_bytes_were_found_goes_as_a_whole():
    """A URL may have 500 bytes: the last of them may be the first of a character that has two, three or four."""
    for character in ("é", "€", "😀"):
        for cut in range(len(character.encode())):
            text = b"www." + b"a" * (500 - cut) + character.encode() + b" b"
            found = redact_text(text, [])
            assert len(found) == len(text)
            assert found.decode().endswith((" b", f"{character} b"))
            assert found == b"*" * (len(text) - 2) + b" b" or cut == 0
