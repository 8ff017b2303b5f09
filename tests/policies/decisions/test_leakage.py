"""Leakage decision: unmeasured codes are denied, and so are codes above the policy's limits."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions import leakage
from policies.decisions.budget import MessageCost
from policies.decisions.egress import LOCAL_ANSWER_FIELD, FieldPlan
from policies.decisions.leakage import (
    NOT_ASSESSED,
    LeakageCache,
    LeakageEvidence,
    LeakageFinding,
    assess_leakage,
    check_limits,
    decide_leakage,
    needs_measurement,
)
from policies.decisions.permit import Permit, PermitPrice, decide_permit, recheck_question
from policies.language.document import PolicyError, parse_policy
from policies.model.policy import FieldRule, LeakageLimits, Terms, TransformKind, TransformSpec
from policies.model.reasons import DecisionReason, Denied
from tests import ROOT
from tests.policies.doubles.given import DEMO, FEATURES, HUBS, JUNK, SCHEMA, TEXT, TODAY, UNSPENT, policy, spec, with_
from wire.protocol.messages import (
    RAW_SAMPLE_FIELD,
    WHOLE_SAMPLE_CATEGORIES,
    Escalation,
    FieldSpec,
    ModelRef,
    SensitivityLevel,
    Tensor,
    TensorDType,
)


class Row(msgspec.Struct, frozen=True):
    chain: str
    kind: str = "reconstruction"
    metric: str = "ssim"
    upper95: float = 0.3
    subject: str = ""


def name(plans: tuple[FieldPlan, ...]) -> str:
    """Stands for the digest: any change of a transform makes another name."""
    return repr([(plan.spec.name, plan.transforms) for plan in plans])


TEMPLATES = ROOT / "policies" / "templates"
SHIPPED = name((FieldPlan(FEATURES, DEMO.fields["features"].transforms),))
SPEAKER = Row(SHIPPED, "attribute", "advantage", 0.1, "speaker")


def why(denied: object) -> DecisionReason | None:
    return denied.why if isinstance(denied, Denied) else None


def cleared(*rows: Row, under: Terms = DEMO, schema=SCHEMA) -> DecisionReason | None:
    return why(assess_leakage(under, schema, LeakageEvidence(rows, name)).denied)


def limited(**limits) -> Terms:
    return policy(privacy=(LeakageLimits(**limits),))


def test_a_chain_that_was_measured_may_leave():
    assert cleared(Row(SHIPPED)) is None


def test_a_bundle_without_any_measurement_is_denied():
    assert cleared() is DecisionReason.DENIED_UNMEASURED
    assert why(assess_leakage(DEMO, SCHEMA, None).denied) is DecisionReason.DENIED_UNMEASURED


def test_a_policy_with_another_transform_than_was_measured_is_denied():
    coarse = (TransformSpec(TransformKind.QUANTISE, step=4.0),)
    assert cleared(
        Row(SHIPPED), under=policy(fields={"features": FieldRule("features", SensitivityLevel.P2, coarse)})
    ) is (DecisionReason.DENIED_UNMEASURED)


@pytest.mark.parametrize("kind", ["attribute", "membership", "Reconstruction", ""])
def test_a_row_of_another_kind_stands_in_for_no_reconstruction(kind):
    assert cleared(Row(SHIPPED, kind)) is DecisionReason.DENIED_UNMEASURED


def test_features_that_are_operational_need_no_measurement():
    assert cleared(schema=(spec(level=SensitivityLevel.P1),)) is None
    assert cleared(schema=(spec(level=SensitivityLevel.P1), spec("other"))) is not None


@pytest.mark.parametrize("level", list(SensitivityLevel)[:3])
def test_a_limit_holds_whatever_the_label_of_the_field(level):
    """A sample labelled P1 is still the sample: a limit is not passed by a label."""
    under, schema = limited(max_leakage=0.97), (spec(level=level),)
    assert cleared(Row(SHIPPED, upper95=1.0), under=under, schema=schema) is DecisionReason.DENIED_LEAKAGE
    assert cleared(under=under, schema=schema) is DecisionReason.DENIED_UNMEASURED
    assert why(assess_leakage(under, schema, None).denied) is DecisionReason.DENIED_UNMEASURED
    assert cleared(Row(SHIPPED, upper95=0.9), under=under, schema=schema) is None


def whole_sample(name: str = RAW_SAMPLE_FIELD, level: SensitivityLevel = SensitivityLevel.P1) -> FieldSpec:
    return FieldSpec(name, TensorDType.UINT8, (32,), 0.0, 15.0, level, name)


def letting(field: str, **limits) -> Terms:
    return policy(fields={field: FieldRule(field, SensitivityLevel.P2, ())}, privacy=(LeakageLimits(**limits),))


@pytest.mark.parametrize("field", sorted(WHOLE_SAMPLE_CATEGORIES))
def test_a_sample_itself_that_was_not_measured_counts_as_all_of_it(field):
    under, schema = letting(field, max_leakage=0.97), (whole_sample(field),)
    decibels = Row(name((FieldPlan(schema[0], ()),)), metric="psnr_db", upper95=19.0)
    for evidence in (None, LeakageEvidence((), name), LeakageEvidence((decibels,), name)):
        denied = assess_leakage(under, schema, evidence).denied
        assert isinstance(denied, Denied)
        assert denied.why is DecisionReason.DENIED_LEAKAGE
        assert denied.detail == (
            f"field {field!r} is the sample itself and was not measured, which counts as 1, max_leakage is 0.97"
        )
    measured = Row(decibels.chain, upper95=0.9)
    assert cleared(measured, under=under, schema=schema) is None
    assert cleared(under=letting(field, max_leakage=1.0), schema=schema) is DecisionReason.DENIED_UNMEASURED
    only_attributes = letting(field, max_attribute_advantage=0.1)
    assert cleared(under=only_attributes, schema=schema) is DecisionReason.DENIED_UNMEASURED


def test_a_sample_itself_does_not_leave_as_features():
    """A policy that lists `features` alone has not let the sample itself leave, whatever its label."""
    for level in list(SensitivityLevel)[:3]:
        assert cleared(schema=(whole_sample(level=level),)) is DecisionReason.DENIED_UNLISTED_FIELD


SHIPPED_TEMPLATES = sorted(path.name for path in TEMPLATES.glob("*.toml") if ".probes" not in path.name)


@pytest.mark.parametrize("template", SHIPPED_TEMPLATES)
@pytest.mark.parametrize("level", list(SensitivityLevel)[:4])
def test_no_shipped_template_lets_a_sample_itself_leave(template, level):
    """None of them lists it; listed beside the features, it leaves only where nothing measures or limits it."""
    terms = parse_policy((TEMPLATES / template).read_text(encoding="utf-8")).compile().base
    schema = (whole_sample(level=level),)
    harmless = LeakageEvidence((Row("harmless", upper95=0.0),), lambda _: "harmless")
    assert RAW_SAMPLE_FIELD not in terms.fields
    assert why(assess_leakage(terms, schema, harmless).denied) is DecisionReason.DENIED_UNLISTED_FIELD
    listed = {RAW_SAMPLE_FIELD: FieldRule(RAW_SAMPLE_FIELD, SensitivityLevel.P1, ())}
    widened = msgspec.structs.replace(terms, fields=terms.fields | listed)
    if level is SensitivityLevel.P1 and any(each.max_leakage is not None for each in terms.privacy):
        assert why(assess_leakage(widened, schema, None).denied) is DecisionReason.DENIED_LEAKAGE


@pytest.mark.parametrize("template", SHIPPED_TEMPLATES)
@pytest.mark.parametrize("level", [SensitivityLevel.P1, SensitivityLevel.P2])
def test_no_shipped_template_lets_features_that_are_the_sample_past_a_limit_it_sets(template, level):
    compiled = parse_policy((TEMPLATES / template).read_text(encoding="utf-8")).compile()
    terms = compiled.base
    schema = (spec(level=level),)
    whole = LeakageEvidence((Row("whole", upper95=1.0),), lambda _: "whole")
    limits = [each.max_leakage for each in terms.privacy if each.max_leakage is not None]
    found = why(assess_leakage(terms, schema, whole).denied)
    unmeasured = why(assess_leakage(terms, schema, None).denied)
    if limits:
        assert found in {DecisionReason.DENIED_LEAKAGE, DecisionReason.DENIED_UNMEASURED}, found
    if limits or level >= SensitivityLevel.P2:
        assert unmeasured is not None


def test_the_upper_bound_is_what_a_limit_is_compared_with():
    assert cleared(Row(SHIPPED, upper95=0.3), under=limited(max_leakage=0.3)) is None
    assert cleared(Row(SHIPPED, upper95=0.301), under=limited(max_leakage=0.3)) is DecisionReason.DENIED_LEAKAGE
    assert cleared(Row(SHIPPED, upper95=float("nan")), under=limited(max_leakage=1.0)) is DecisionReason.DENIED_LEAKAGE


def test_the_strongest_of_several_attacks_counts():
    assert cleared(Row(SHIPPED, upper95=0.1), Row(SHIPPED, upper95=0.9), under=limited(max_leakage=0.5)) is (
        DecisionReason.DENIED_LEAKAGE
    )


def test_decibels_are_never_compared_with_a_share():
    loud = Row(SHIPPED, metric="psnr_db", upper95=19.0)
    assert cleared(Row(SHIPPED), loud, under=limited(max_leakage=0.5)) is None
    assert cleared(loud) is DecisionReason.DENIED_UNMEASURED


def test_a_named_figure_must_be_there():
    assert cleared(Row(SHIPPED), under=limited(max_leakage=0.5, metric="token_f1")) is DecisionReason.DENIED_UNMEASURED
    assert cleared(Row(SHIPPED), under=limited(max_leakage=0.5, metric="ssim")) is None


def test_a_limit_on_attributes_wants_them_measured_and_small():
    strict = limited(max_attribute_advantage=0.1)
    assert cleared(Row(SHIPPED), under=strict) is DecisionReason.DENIED_UNMEASURED
    assert cleared(Row(SHIPPED), SPEAKER, under=strict) is None
    bad = msgspec.structs.replace(SPEAKER, upper95=0.2, subject="patient")
    assert cleared(Row(SHIPPED), SPEAKER, bad, under=strict) is DecisionReason.DENIED_LEAKAGE


def test_a_finding_for_another_policy_is_none():
    assert why(decide_leakage(DEMO, LeakageFinding("f" * 32, None))) is DecisionReason.DENIED_UNMEASURED
    assert why(decide_leakage(DEMO, assess_leakage(None, SCHEMA, None))) is DecisionReason.DENIED_UNMEASURED


def test_the_device_and_the_hub_judge_by_it():
    unmeasured = assess_leakage(DEMO, SCHEMA, None)
    price = PermitPrice(UNSPENT, MessageCost(10), TODAY)
    assert why(decide_permit(DEMO, SCHEMA, HUBS, "open", price, unmeasured)) is DecisionReason.DENIED_UNMEASURED
    assert isinstance(decide_permit(DEMO, SCHEMA, HUBS, "open", price, LeakageFinding(DEMO.hash, None)), Permit)
    codes = {"features": Tensor(TensorDType.UINT8, (16,), bytes(16))}
    asked = Escalation("id", ModelRef("m", 1, "c", "pack4"), DEMO.hash, "local", codes, 2.0, audit=False, trace="")
    assert why(recheck_question(DEMO, SCHEMA, asked, HUBS[0], TODAY, unmeasured)) is DecisionReason.DENIED_UNMEASURED
    assert recheck_question(DEMO, SCHEMA, asked, HUBS[0], TODAY, LeakageFinding(DEMO.hash, None)) is None


@given(field=st.sampled_from(["fields", "ceiling", "privacy"]), junk=JUNK.filter(lambda junk: junk != ()))
def test_a_damaged_policy_is_denied(field, junk):
    assert cleared(Row(SHIPPED), under=policy(**{field: junk})) is not None


def test_a_digest_that_fails_denies():
    def broken(_: object) -> str:
        raise ValueError

    assert assess_leakage(DEMO, SCHEMA, LeakageEvidence((Row(SHIPPED),), broken)).denied is not None


PRIVACY = '\n[privacy]\nmax_leakage = 0.3\nmetric = "ssim"\nmax_attribute_advantage = 0.05\n'


def test_the_limits_are_part_of_the_language_and_of_the_hash():
    found = parse_policy(TEXT + PRIVACY).compile()
    assert found.base.privacy == (LeakageLimits(0.3, "ssim", 0.05),)
    assert found.hash != DEMO.hash
    assert DEMO.privacy == ()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("max_leakage = 0.3", "max_leakage = 1.5"), "privacy.max_leakage"),
        (("max_leakage = 0.3", ""), "limits nothing without max_leakage"),
        (('"ssim"', '"psnr_db"'), "privacy.metric"),
        (("max_leakage", "max_leakages"), "did you mean 'max_leakage'?"),
    ],
)
def test_limits_that_cannot_be_meant_are_refused_in_one_line(edit, words):
    with pytest.raises(PolicyError) as refused:
        parse_policy(TEXT + with_(PRIVACY, edit))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_findings_are_worked_out_once_for_each_set_of_terms():
    asked: list[str] = []

    def counted(plans: tuple[FieldPlan, ...]) -> str:
        asked.append(name(plans))
        return asked[-1]

    clearance = LeakageCache(SCHEMA, LeakageEvidence((Row(SHIPPED),), counted))
    assert clearance.finding_for(DEMO) is clearance.finding_for(DEMO)
    assert clearance.finding_for(DEMO).denied is None
    coarse = {
        "features": FieldRule("features", SensitivityLevel.P2, (TransformSpec(TransformKind.QUANTISE, step=4.0),))
    }
    under_a_rule = policy(fields=coarse, key=f"{DEMO.key}/1")
    assert why(clearance.finding_for(under_a_rule).denied) is DecisionReason.DENIED_UNMEASURED
    assert len(asked) == 2
    for number in range(2000):
        clearance.finding_for(policy(key=str(number)))
    assert clearance.finding_for(DEMO).denied is None


UNMEASURED, LEAKS = DecisionReason.DENIED_UNMEASURED, DecisionReason.DENIED_LEAKAGE
NO_FIGURE = "the bundle has no measurement of what its codes so changed give away"


@pytest.mark.parametrize(
    ("limits", "rows", "denied"),
    [
        ({}, (), (UNMEASURED, NO_FIGURE)),
        ({"metric": "ssim", "max_leakage": 0.5}, (), (UNMEASURED, NO_FIGURE)),
        ({"metric": "ssim", "max_leakage": 0.5}, (SPEAKER,), (UNMEASURED, NO_FIGURE)),
        ({}, (Row("", metric="psnr_db"),), (UNMEASURED, NO_FIGURE)),
        (
            {"metric": "token_f1", "max_leakage": 0.5}, (Row(""),),
            (UNMEASURED, "the bundle has no measurement by token_f1 of what its codes so changed give away"),
        ),
        (
            {"max_attribute_advantage": 0.1}, (Row(""),),
            (UNMEASURED, "the bundle has no measurement of what its codes tell of a sensitive column"),
        ),
        ({"max_leakage": 0.25}, (Row(""),), (LEAKS, "ssim up to 0.3, max_leakage is 0.25")),
        (
            {"max_attribute_advantage": 0.05}, (Row(""), SPEAKER),
            (LEAKS, "advantage of 'speaker' up to 0.1, max_attribute_advantage is 0.05"),
        ),
        (
            {"max_leakage": 0.25, "max_attribute_advantage": 0.05}, (SPEAKER, Row("")),
            (LEAKS, "ssim up to 0.3, max_leakage is 0.25"),
        ),
        ({}, (Row(""),), None),
        ({}, (Row("", metric="token_f1", upper95=1.0),), None),
        ({"max_leakage": 0.3, "metric": "ssim"}, (Row(""), Row("", metric="token_f1", upper95=0.9)), None),
        ({"max_attribute_advantage": 0.1}, (Row(""), SPEAKER), None),
    ],
)  # fmt: skip
def test_measurements_are_within_limits_or_denied_in_one_sentence(limits, rows, denied):
    found = check_limits(LeakageLimits(**limits), rows)
    assert found == (Denied(*denied) if denied else None)


def test_a_field_is_measured_from_p2_on_or_where_any_limit_is_set():
    def needs(level: SensitivityLevel, *limits: LeakageLimits, field: str = "features") -> bool:
        return needs_measurement(policy(privacy=limits), (spec(field, level),))

    public, private = SensitivityLevel.P1, SensitivityLevel.P2
    assert [needs(public), needs(private), needs(SensitivityLevel.P3)] == [False, True, True]
    assert [needs(public, LeakageLimits()), needs(public, LeakageLimits(0.5))] == [False, True]
    assert needs(public, LeakageLimits(), LeakageLimits(max_attribute_advantage=0.0))
    assert needs(public, LeakageLimits(max_leakage=0.0))
    assert not needs(private, field=LOCAL_ANSWER_FIELD)


def test_a_finding_holds_for_its_own_terms_and_says_why_for_no_others():
    unmeasured = Denied(UNMEASURED, "the bundle says nothing of what its codes give away")
    other = Denied(UNMEASURED, "what the codes give away was not judged under these terms")
    assert assess_leakage(DEMO, SCHEMA, None) == LeakageFinding(DEMO.key, unmeasured)
    assert NOT_ASSESSED == assess_leakage(None, SCHEMA, None) == LeakageFinding("", other)
    assert decide_leakage(DEMO, LeakageFinding(DEMO.key, unmeasured)) == unmeasured
    assert decide_leakage(DEMO, LeakageFinding("f" * 32, unmeasured)) == unmeasured
    assert decide_leakage(DEMO, LeakageFinding("f" * 32, None)) == other
    assert decide_leakage(DEMO, LeakageFinding(DEMO.key, None)) is None


def test_every_limit_of_a_policy_counts_and_the_first_that_is_passed_is_said():
    limits = (LeakageLimits(0.5), LeakageLimits(0.2), LeakageLimits(0.1))
    denied = assess_leakage(policy(privacy=limits), SCHEMA, LeakageEvidence((Row(SHIPPED),), name)).denied
    assert denied == Denied(LEAKS, "ssim up to 0.3, max_leakage is 0.2")


def test_a_full_cache_of_findings_begins_anew_and_forgets_none_before(monkeypatch):
    monkeypatch.setattr(leakage, "_MAX_FINDINGS", 2)
    asked: list[str] = []

    def counted(plans: tuple[FieldPlan, ...]) -> str:
        asked.append("")
        return name(plans)

    cache = LeakageCache(SCHEMA, LeakageEvidence((Row(SHIPPED),), counted))
    one, two, three = (policy(key=key) for key in ("1", "2", "3"))
    for terms in (one, two, one, two):
        cache.finding_for(terms)
    assert len(asked) == 2
    for terms in (three, three, one, three):
        assert cache.finding_for(terms) == LeakageFinding(terms.key, None)
    assert len(asked) == 4
