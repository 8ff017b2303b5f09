"""Does to a sample's fields what egress chose (clip, quantise), and packs them for the link.

Law: exactly the planned fields come out, each in its specification's type, shape and range; else nothing does.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from models.codec import NUMPY_DTYPES, FeatureCodec
from models.runner import Inference
from policies.egress import CONFIDENCE, LOCAL_ANSWER, LOCAL_VALUE, Egress, FieldPlan
from policies.policy import TransformKind, TransformSpec
from wire.messages import Tensor

Values = npt.NDArray[Any]


class TransformError(ValueError):
    """A field cannot be made what the policy says it must be: nothing leaves."""


def apply(egress: Egress, inference: Inference, codec: FeatureCodec) -> dict[str, Tensor]:
    """The tensors that leave, by field name. The model's features pass through its codec; the rest travels plain."""
    tensors: dict[str, Tensor] = {}
    derived = _derived(inference)
    for plan in egress.fields:
        name = plan.spec.name
        source = inference.features if name in inference.features else derived
        values = _transformed(plan, source)
        tensors[name] = codec.encode(name, values) if source is inference.features else _plain(plan, values)
    return tensors


def _derived(inference: Inference) -> dict[str, Values]:
    prediction = inference.prediction
    confidence = {CONFIDENCE: np.array([prediction.confidence], np.float32)}
    if prediction.label < 0:  # a regressor's
        return confidence | {LOCAL_VALUE: np.array(prediction.scores[:1], np.float32)}
    return confidence | {LOCAL_ANSWER: np.array([prediction.label], np.int32)}


def _transformed(plan: FieldPlan, source: Mapping[str, Values]) -> Values:
    spec = plan.spec
    values = source.get(spec.name)
    if values is None:
        raise TransformError(f"the model gave no field {spec.name!r}")
    dtype = NUMPY_DTYPES[spec.dtype]
    if values.shape != spec.shape or values.dtype != dtype:
        raise TransformError(f"field {spec.name!r} is {values.dtype} {list(values.shape)}, not as the schema says")
    for step in plan.transforms:
        values = _step(values, step).astype(dtype)
    if values.size and not (spec.low <= values.min() and values.max() <= spec.high):  # false for NaN too
        raise TransformError(f"field {spec.name!r} is outside {spec.low:g}..{spec.high:g}")
    return values


def _step(values: Values, step: TransformSpec) -> Values:
    if step.kind is TransformKind.CLIP:
        return np.clip(values, step.low, step.high)
    if step.kind is TransformKind.QUANTISE and step.step > 0:
        rounded: Values = np.rint(values / step.step) * step.step
        return rounded
    raise TransformError(f"transform {step.kind!r} is not one this device can do")


def _plain(plan: FieldPlan, values: Values) -> Tensor:
    return Tensor(plan.spec.dtype, plan.spec.shape, np.ascontiguousarray(values).tobytes())
