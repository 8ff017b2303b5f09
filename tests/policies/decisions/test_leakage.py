"""Leakage decision: unmeasured codes are denied, and so are codes above the policy's limits."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.budget import Cost
from policies.decisions.egress import FieldPlan
from policies.decisions.leakage import Clearance, Cleared, Evidence, clear, decide
from policies.decisions.permit import Permit, Price, judge, recheck
from policies.language.document import PolicyError, parse
from policies.model.policy import FieldRule, Privacy, Terms, TransformKind, TransformSpec
from policies.model.reasons import Denied, Why
from tests.policies.doubles.given import DEMO, FEATURES, HUBS, JUNK, SCHEMA, TEXT, TODAY, UNSPENT, policy, spec, with_
from wire.protocol.messages import DType, Escalation, Level, ModelRef, Tensor


class Row(msgspec.Struct, frozen=True):
    chain: str
    kind: str = "reconstruction"
    metric: str = "ssim"
    upper95: float = 0.3
    subject: str = ""


def name(plans: tuple[FieldPlan, ...]) -> str:
    """Stands for the digest: any change of a transform makes another name."""
    return repr([(plan.spec.name, plan.transforms) for plan in plans])


SHIPPED = name((FieldPlan(FEATURES, DEMO.fields["features"].transforms),))
SPEAKER = Row(SHIPPED, "attribute", "advantage", 0.1, "speaker")


def why(denied: object) -> Why | None:
    return denied.why if isinstance(denied, Denied) else None


def cleared(*rows: Row, under: Terms = DEMO, schema=SCHEMA) -> Why | None:
    return why(clear(under, schema, Evidence(rows, name)).denied)


def limited(**limits) -> Terms:
    return policy(privacy=(Privacy(**limits),))


def test_a_chain_that_was_measured_may_leave():
    assert cleared(Row(SHIPPED)) is None


def test_a_bundle_without_any_measurement_is_denied():
    assert cleared() is Why.DENIED_UNMEASURED
    assert why(clear(DEMO, SCHEMA, None).denied) is Why.DENIED_UNMEASURED


def test_a_policy_with_another_transform_than_was_measured_is_denied():
    coarse = (TransformSpec(TransformKind.QUANTISE, step=4.0),)
    assert cleared(Row(SHIPPED), under=policy(fields={"features": FieldRule("features", Level.P2, coarse)})) is (
        Why.DENIED_UNMEASURED
    )


@pytest.mark.parametrize("kind", ["attribute", "membership", "Reconstruction", ""])
def test_a_row_of_another_kind_stands_in_for_no_reconstruction(kind):
    assert cleared(Row(SHIPPED, kind)) is Why.DENIED_UNMEASURED


def test_features_that_are_operational_need_no_measurement():
    assert cleared(schema=(spec(level=Level.P1),)) is None
    assert cleared(schema=(spec(level=Level.P1), spec("other"))) is not None


def test_the_upper_bound_is_what_a_limit_is_compared_with():
    assert cleared(Row(SHIPPED, upper95=0.3), under=limited(max_leakage=0.3)) is None
    assert cleared(Row(SHIPPED, upper95=0.301), under=limited(max_leakage=0.3)) is Why.DENIED_LEAKAGE
    assert cleared(Row(SHIPPED, upper95=float("nan")), under=limited(max_leakage=1.0)) is Why.DENIED_LEAKAGE


def test_the_strongest_of_several_attacks_counts():
    assert cleared(Row(SHIPPED, upper95=0.1), Row(SHIPPED, upper95=0.9), under=limited(max_leakage=0.5)) is (
        Why.DENIED_LEAKAGE
    )


def test_decibels_are_never_compared_with_a_share():
    loud = Row(SHIPPED, metric="psnr_db", upper95=19.0)
    assert cleared(Row(SHIPPED), loud, under=limited(max_leakage=0.5)) is None
    assert cleared(loud) is Why.DENIED_UNMEASURED


def test_a_named_figure_must_be_there():
    assert cleared(Row(SHIPPED), under=limited(max_leakage=0.5, metric="token_f1")) is Why.DENIED_UNMEASURED
    assert cleared(Row(SHIPPED), under=limited(max_leakage=0.5, metric="ssim")) is None


def test_a_limit_on_attributes_wants_them_measured_and_small():
    strict = limited(max_attribute_advantage=0.1)
    assert cleared(Row(SHIPPED), under=strict) is Why.DENIED_UNMEASURED
    assert cleared(Row(SHIPPED), SPEAKER, under=strict) is None
    bad = msgspec.structs.replace(SPEAKER, upper95=0.2, subject="patient")
    assert cleared(Row(SHIPPED), SPEAKER, bad, under=strict) is Why.DENIED_LEAKAGE


def test_a_finding_for_another_policy_is_none():
    assert why(decide(DEMO, Cleared("f" * 32, None))) is Why.DENIED_UNMEASURED
    assert why(decide(DEMO, clear(None, SCHEMA, None))) is Why.DENIED_UNMEASURED


def test_the_device_and_the_hub_judge_by_it():
    unmeasured = clear(DEMO, SCHEMA, None)
    price = Price(UNSPENT, Cost(10), TODAY)
    assert why(judge(DEMO, SCHEMA, HUBS, "open", price, unmeasured)) is Why.DENIED_UNMEASURED
    assert isinstance(judge(DEMO, SCHEMA, HUBS, "open", price, Cleared(DEMO.hash, None)), Permit)
    codes = {"features": Tensor(DType.UINT8, (16,), bytes(16))}
    asked = Escalation("id", ModelRef("m", 1, "c", "pack4"), DEMO.hash, "local", codes, 2.0, audit=False, trace="")
    assert why(recheck(DEMO, SCHEMA, asked, HUBS[0], TODAY, unmeasured)) is Why.DENIED_UNMEASURED
    assert recheck(DEMO, SCHEMA, asked, HUBS[0], TODAY, Cleared(DEMO.hash, None)) is None


@given(field=st.sampled_from(["fields", "ceiling", "privacy"]), junk=JUNK.filter(lambda junk: junk != ()))
def test_a_damaged_policy_is_denied(field, junk):
    assert cleared(Row(SHIPPED), under=policy(**{field: junk})) is not None


def test_a_digest_that_fails_denies():
    def broken(_: object) -> str:
        raise ValueError

    assert clear(DEMO, SCHEMA, Evidence((Row(SHIPPED),), broken)).denied is not None


PRIVACY = '\n[privacy]\nmax_leakage = 0.3\nmetric = "ssim"\nmax_attribute_advantage = 0.05\n'


def test_the_limits_are_part_of_the_language_and_of_the_hash():
    found = parse(TEXT + PRIVACY).compile()
    assert found.base.privacy == (Privacy(0.3, "ssim", 0.05),)
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
        parse(TEXT + with_(PRIVACY, edit))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_findings_are_worked_out_once_for_each_set_of_terms():
    asked: list[str] = []

    def counted(plans: tuple[FieldPlan, ...]) -> str:
        asked.append(name(plans))
        return asked[-1]

    clearance = Clearance(SCHEMA, Evidence((Row(SHIPPED),), counted))
    assert clearance.of(DEMO) is clearance.of(DEMO)
    assert clearance.of(DEMO).denied is None
    coarse = {"features": FieldRule("features", Level.P2, (TransformSpec(TransformKind.QUANTISE, step=4.0),))}
    under_a_rule = policy(fields=coarse, key=f"{DEMO.key}/1")
    assert why(clearance.of(under_a_rule).denied) is Why.DENIED_UNMEASURED
    assert len(asked) == 2
    for number in range(2000):
        clearance.of(policy(key=str(number)))
    assert clearance.of(DEMO).denied is None
