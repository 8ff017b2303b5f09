"""Exactly the planned fields leave, changed as planned, or nothing does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.uplink.transforms import TransformError, tools_of
from edge_agent.uplink.transforms import apply as apply_with
from models.runtime.codec import codec_of
from models.runtime.runner import Inference
from policies.decisions.egress import CONFIDENCE, LOCAL_ANSWER, LOCAL_VALUE, Egress, FieldPlan, derived
from policies.model.policy import TransformKind, TransformSpec
from wire.protocol.messages import DType, FieldSpec, Level, Prediction

FEATURES = FieldSpec("features", DType.UINT8, (6,), 0, 15, Level.P2, "features")
CLIP = TransformSpec(TransformKind.CLIP, 2, 9)
PACK4, PACK8 = (codec_of(name, (FEATURES,)) for name in ("pack4", "pack8"))
COARSE = TransformSpec(TransformKind.QUANTISE, step=4)


TOOLS = tools_of(bytes(32))


def apply(planned, found, codec):
    return apply_with(planned, found, codec, TOOLS)


def inference(codes: list[int]) -> Inference:
    return Inference(Prediction(3, 0.25, (0.75, 0.25), "m@1"), {"features": np.array(codes, np.uint8)})


def egress(*plans: FieldPlan) -> Egress:
    return Egress(plans, "test@1", Level.P2, fixed_size=True)


@given(st.lists(st.integers(0, 15), min_size=6, max_size=6))
def test_clip_then_quantise_in_the_order_of_the_policy(codes):
    tensors = apply(egress(FieldPlan(FEATURES, (CLIP, COARSE))), inference(codes), PACK4)
    got = PACK4.decode("features", tensors["features"])
    assert got.tolist() == [int(np.rint(min(max(c, 2), 9) / 4) * 4) for c in codes]


def test_the_local_answer_and_its_confidence_leave_only_as_fields():
    plans = [FieldPlan(spec, ()) for spec in (FEATURES, *derived(regressor=False))]
    tensors = apply(egress(*plans), inference([1] * 6), PACK8)
    assert set(tensors) == {"features", LOCAL_ANSWER, CONFIDENCE}
    assert np.frombuffer(tensors[LOCAL_ANSWER].data, "<i4").tolist() == [3]
    assert np.frombuffer(tensors[CONFIDENCE].data, "<f4").tolist() == [0.25]
    assert set(apply(egress(plans[0]), inference([1] * 6), PACK8)) == {"features"}


@pytest.mark.parametrize(
    "plan",
    [
        FieldPlan(FieldSpec("raw", DType.UINT8, (6,), 0, 15, Level.P2, "x"), ()),
        FieldPlan(FieldSpec("features", DType.UINT8, (7,), 0, 15, Level.P2, "x"), ()),
        FieldPlan(FieldSpec("features", DType.FP32, (6,), 0, 15, Level.P2, "x"), ()),
        FieldPlan(FieldSpec("features", DType.UINT8, (6,), 0, 3, Level.P2, "x"), ()),
        FieldPlan(FEATURES, (TransformSpec("smear"),)),  # type: ignore[arg-type]
        FieldPlan(FEATURES, (TransformSpec(TransformKind.DROP),)),
        *(FieldPlan(FEATURES, (TransformSpec(kind),)) for kind in TransformKind if kind is not TransformKind.CLIP),
    ],
)
def test_case_102_what_is_not_as_the_schema_says_stays(plan):
    with pytest.raises(TransformError):
        apply(egress(plan), inference([15] * 6), PACK8)


def test_a_confidence_that_is_no_number_stays():
    bad = Inference(Prediction(0, float("nan"), (), "m@1"), {})
    with pytest.raises(TransformError):
        apply(egress(FieldPlan(derived(regressor=False)[1], ())), bad, PACK8)


def test_a_regressor_sends_its_value_and_no_label():
    plans = [FieldPlan(spec, ()) for spec in (FEATURES, *derived(regressor=True))]
    answer = Inference(Prediction(-1, 0.5, (-12.25,), "m@1"), inference([1] * 6).features)
    tensors = apply(egress(*plans), answer, PACK8)
    assert set(tensors) == {"features", LOCAL_VALUE, CONFIDENCE}
    assert (tensors[LOCAL_VALUE].dtype, tensors[LOCAL_VALUE].shape) == (DType.FP32, (1,))
    assert np.frombuffer(tensors[LOCAL_VALUE].data, "<f4").tolist() == [-12.25]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_no_number_stays(value):
    plan = FieldPlan(next(spec for spec in derived(regressor=True) if spec.name == LOCAL_VALUE), ())
    with pytest.raises(TransformError):
        apply(egress(plan), Inference(Prediction(-1, 0.5, (value,), "m@1"), {}), PACK8)


def test_a_classifier_has_no_value_to_send():
    plan = FieldPlan(derived(regressor=True)[-1], ())
    with pytest.raises(TransformError):
        apply(egress(plan), inference([1] * 6), PACK8)
