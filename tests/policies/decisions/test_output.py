"""Answers handed to another machine that is no hub: an allow-list as for everything that leaves."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.egress import ANSWERS_FIELD, QUALITY_FIELD, SIGNALS_FIELD, decide_output, may_report
from policies.model.policy import EscalationMode, FieldRule, NoiseTerms, RetentionTerms, TransformKind, TransformSpec
from policies.model.reasons import DecisionReason, Denied
from tests.policies.doubles.given import DEMO, JUNK, TODAY, policy
from wire.protocol.messages import SensitivityLevel

LISTED = FieldRule(ANSWERS_FIELD, SensitivityLevel.P2, ())
FIELDS = DEMO.fields | {ANSWERS_FIELD: LISTED}
ALLOWING = policy(fields=FIELDS, retention=RetentionTerms("alarms"), expires_day=TODAY)
KEYS = ("fields", "ceiling", "data_classes", "expires_day", "denied_by", "retention", "dp")


def why(under, data_class="open", day=TODAY):
    found = decide_output(under, data_class, day)
    return found.why if isinstance(found, Denied) else None


def changed(**changes):
    return msgspec.structs.replace(ALLOWING, **changes)


@pytest.mark.parametrize("expires_day", [float(TODAY), None, str(TODAY)])
def test_a_last_day_that_is_no_whole_number_is_over(expires_day):
    assert why(changed(expires_day=expires_day)) is not None


def test_listed_answers_leave_whatever_the_mode_says_about_hubs():
    for mode in EscalationMode:
        assert why(changed(mode=mode)) is None


def test_the_shipped_policy_of_a_demo_lets_no_answer_leave():
    assert why(DEMO) is DecisionReason.DENIED_UNLISTED_FIELD


DROPPED = FieldRule(ANSWERS_FIELD, SensitivityLevel.P3, (TransformSpec(TransformKind.DROP),))
LOW = FieldRule(ANSWERS_FIELD, SensitivityLevel.P1, ())
NOISE = NoiseTerms("record", 1.0, 1.0, 1e-6, 1.0, 30, 0.0, None, 1, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("under", "reason"),
    [
        (changed(expires_day=TODAY - 1), DecisionReason.DENIED_POLICY_EXPIRED),
        (changed(denied_by="night"), DecisionReason.DENIED_RULE),
        (changed(data_classes={"open": False}), DecisionReason.DENIED_DATA_CLASS),
        (changed(data_classes={}), DecisionReason.DENIED_DATA_CLASS),
        (changed(fields={QUALITY_FIELD: LISTED}), DecisionReason.DENIED_UNLISTED_FIELD),
        (changed(fields={ANSWERS_FIELD: DROPPED}), DecisionReason.DENIED_UNLISTED_FIELD),
        (changed(dp=NOISE), DecisionReason.DENIED_UNLISTED_FIELD),
        (changed(ceiling=SensitivityLevel.P1), DecisionReason.DENIED_LABEL),
        (changed(fields={ANSWERS_FIELD: LOW}), DecisionReason.DENIED_LABEL),
        (changed(retention=None), DecisionReason.DENIED_PURPOSE),
    ],
)  # fmt: skip
def test_each_thing_that_is_not_allowed_keeps_answers_here(under, reason):
    assert why(under) is reason


@given(st.sampled_from(KEYS), JUNK)
def test_a_damaged_policy_never_lets_more_leave(key, junk):
    found = decide_output(changed(**{key: junk}), "open", TODAY)
    harmless = (key == "dp" and junk is None) or (key == "expires_day" and type(junk) is int and junk >= TODAY)
    assert isinstance(found, Denied) or harmless


def test_the_class_of_the_sample_is_what_is_asked_about():
    assert why(ALLOWING, "private") is DecisionReason.DENIED_DATA_CLASS


@pytest.mark.parametrize("name", [QUALITY_FIELD, SIGNALS_FIELD])
def test_a_report_leaves_only_where_it_is_listed_at_p1_or_above_with_nothing_to_change_in_it(name):
    def may(rule: FieldRule | None, **changes: object) -> bool:
        return may_report(policy(**{"fields": {name: rule} if rule else {}, "dp": None} | changes), name)

    listed = FieldRule(name, SensitivityLevel.P1, ())
    assert may(listed)
    assert not may(None)
    assert not may(FieldRule(name, SensitivityLevel.P0, ()))
    assert not may(FieldRule(name, SensitivityLevel.P1, (TransformSpec(TransformKind.DROP),)))
    assert not may(listed, dp=NOISE)
    assert may(listed, ceiling=SensitivityLevel.P1)
    assert not may(listed, ceiling=SensitivityLevel.P0)
    assert not may(listed, fields=None)


@pytest.mark.parametrize("label", [2, "P2", True, None])
def test_a_label_that_is_no_level_denies_an_answer_as_an_error_of_the_policy(label):
    assert why(changed(ceiling=label)) is DecisionReason.DENIED_POLICY_ERROR
    rule = msgspec.structs.replace(LISTED, level=label)
    assert why(changed(fields={ANSWERS_FIELD: rule})) is DecisionReason.DENIED_POLICY_ERROR


@pytest.mark.parametrize(
    ("under", "data_class", "words"),
    [
        (changed(expires="2020-01-01", expires_day=TODAY - 1), "open", "the policy expired on 2020-01-01"),
        (changed(denied_by="night"), "open", "rule 'night' lets nothing leave"),
        (ALLOWING, "x" * 70, f"data class {'x' * 64!r} may not leave"),
        (changed(dp=NOISE), "open", "'answers' is not listed, or is to be changed"),
        (changed(ceiling=SensitivityLevel.P1), "open", "field 'answers' is P2"),
        (changed(retention=RetentionTerms("")), "open", "no purpose is stated: retention.purpose"),
        (changed(fields=None), "open", "output: AttributeError"),
    ],
)
def test_each_denial_of_an_answer_says_what_is_missing(under, data_class, words):
    found = decide_output(under, data_class, TODAY)
    assert isinstance(found, Denied)
    assert found.detail == words


def test_the_first_thing_that_keeps_an_answer_here_is_said():
    all_wrong = changed(
        expires_day=TODAY - 1,
        denied_by="night",
        data_classes={},
        fields={},
        ceiling=SensitivityLevel.P0,
        retention=None,
    )
    mend: list[tuple[dict[str, object], DecisionReason]] = [
        ({"expires_day": TODAY}, DecisionReason.DENIED_POLICY_EXPIRED), ({"denied_by": ""}, DecisionReason.DENIED_RULE),
        ({"data_classes": {"open": True}}, DecisionReason.DENIED_DATA_CLASS),
        ({"fields": FIELDS}, DecisionReason.DENIED_UNLISTED_FIELD),
        ({"ceiling": SensitivityLevel.P2}, DecisionReason.DENIED_LABEL),
        ({"retention": RetentionTerms("alarms")}, DecisionReason.DENIED_PURPOSE),
    ]  # fmt: skip
    for change, reason in mend:
        assert why(all_wrong) is reason
        all_wrong = msgspec.structs.replace(all_wrong, **change)
    assert why(all_wrong) is None
