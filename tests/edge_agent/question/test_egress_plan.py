"""Exactly the planned fields leave, changed as planned, or nothing does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.question.seal import TransformError, apply_egress_plan, make_transform_tools
from models.runtime.feature_codec import build_codec
from models.runtime.runner import Inference
from policies.decisions.egress import (
    CONFIDENCE_FIELD,
    LOCAL_ANSWER_FIELD,
    LOCAL_VALUE_FIELD,
    EgressPlan,
    FieldPlan,
    list_derived_fields,
)
from policies.model.policy import TransformKind, TransformSpec
from wire.protocol.messages import FieldSpec, Prediction, SensitivityLevel, TensorDType

FEATURES = FieldSpec("features", TensorDType.UINT8, (6,), 0, 15, SensitivityLevel.P2, "features")
CLIP = TransformSpec(TransformKind.CLIP, 2, 9)
PACK4, PACK8 = (build_codec(name, (FEATURES,)) for name in ("pack4", "pack8"))
COARSE = TransformSpec(TransformKind.QUANTISE, step=4)


TOOLS = make_transform_tools(bytes(32))


def apply(planned, found, codec):
    return apply_egress_plan(planned, found, codec, TOOLS)


def inference(codes: list[int]) -> Inference:
    return Inference(Prediction(3, 0.25, (0.75, 0.25), "m@1"), {"features": np.array(codes, np.uint8)})


def egress(*plans: FieldPlan) -> EgressPlan:
    return EgressPlan(plans, "test@1", SensitivityLevel.P2, fixed_size=True)


@given(st.lists(st.integers(0, 15), min_size=6, max_size=6))
def test_clip_then_quantise_in_the_order_of_the_policy(codes):
    tensors = apply(egress(FieldPlan(FEATURES, (CLIP, COARSE))), inference(codes), PACK4)
    got = PACK4.decode("features", tensors["features"])
    assert got.tolist() == [int(np.rint(min(max(c, 2), 9) / 4) * 4) for c in codes]


def test_the_local_answer_and_its_confidence_leave_only_as_fields():
    plans = [FieldPlan(spec, ()) for spec in (FEATURES, *list_derived_fields(regressor=False))]
    tensors = apply(egress(*plans), inference([1] * 6), PACK8)
    assert set(tensors) == {"features", LOCAL_ANSWER_FIELD, CONFIDENCE_FIELD}
    assert np.frombuffer(tensors[LOCAL_ANSWER_FIELD].data, "<i4").tolist() == [3]
    assert np.frombuffer(tensors[CONFIDENCE_FIELD].data, "<f4").tolist() == [0.25]
    assert set(apply(egress(plans[0]), inference([1] * 6), PACK8)) == {"features"}


@pytest.mark.parametrize(
    "plan",
    [
        FieldPlan(FieldSpec("raw", TensorDType.UINT8, (6,), 0, 15, SensitivityLevel.P2, "x"), ()),
        FieldPlan(FieldSpec("features", TensorDType.UINT8, (7,), 0, 15, SensitivityLevel.P2, "x"), ()),
        FieldPlan(FieldSpec("features", TensorDType.FP32, (6,), 0, 15, SensitivityLevel.P2, "x"), ()),
        FieldPlan(FieldSpec("features", TensorDType.UINT8, (6,), 0, 3, SensitivityLevel.P2, "x"), ()),
        FieldPlan(FEATURES, (TransformSpec("smear"),)),  # type: ignore[arg-type]
        FieldPlan(FEATURES, (TransformSpec(TransformKind.DROP),)),
        *(FieldPlan(FEATURES, (TransformSpec(kind),)) for kind in TransformKind if kind is not TransformKind.CLIP),
    ],
)
def test_what_is_not_as_the_schema_says_stays(plan):
    with pytest.raises(TransformError):
        apply(egress(plan), inference([15] * 6), PACK8)


def test_a_confidence_that_is_no_number_stays():
    bad = Inference(Prediction(0, float("nan"), (), "m@1"), {})
    with pytest.raises(TransformError):
        apply(egress(FieldPlan(list_derived_fields(regressor=False)[1], ())), bad, PACK8)


def test_a_regressor_sends_its_value_and_no_label():
    plans = [FieldPlan(spec, ()) for spec in (FEATURES, *list_derived_fields(regressor=True))]
    answer = Inference(Prediction(-1, 0.5, (-12.25,), "m@1"), inference([1] * 6).features)
    tensors = apply(egress(*plans), answer, PACK8)
    assert set(tensors) == {"features", LOCAL_VALUE_FIELD, CONFIDENCE_FIELD}
    assert (tensors[LOCAL_VALUE_FIELD].dtype, tensors[LOCAL_VALUE_FIELD].shape) == (TensorDType.FP32, (1,))
    assert np.frombuffer(tensors[LOCAL_VALUE_FIELD].data, "<f4").tolist() == [-12.25]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_no_number_stays(value):
    plan = FieldPlan(next(spec for spec in list_derived_fields(regressor=True) if spec.name == LOCAL_VALUE_FIELD), ())
    with pytest.raises(TransformError):
        apply(egress(plan), Inference(Prediction(-1, 0.5, (value,), "m@1"), {}), PACK8)


def test_a_classifier_has_no_value_to_send():
    plan = FieldPlan(list_derived_fields(regressor=True)[-1], ())
    with pytest.raises(TransformError):
        apply(egress(plan), inference([1] * 6), PACK8)
