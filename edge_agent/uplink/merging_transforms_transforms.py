"""Does to a sample's fields what egress chose, and packs them for the link.

Law: exactly the planned fields come out, each in its specification's type, shape and range; else nothing does.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_agent.uplink import merging_transforms_noise
from models.runtime.codec import NUMPY_DTYPES, FeatureCodec
from models.runtime.runner import Inference
from models.runtime.transforms import StepError, Tools, changed
from policies.decisions.merging_egress_egress import CONFIDENCE, LOCAL_ANSWER, LOCAL_VALUE, Egress, FieldPlan
from policies.decisions.merging_egress_redaction import redacted
from policies.model.policy import TransformKind, TransformSpec
from wire.protocol.messages import Tensor

TEXT = "text"  # the category of a field that holds text: UTF-8 bytes, zeros after its end
Values = npt.NDArray[Any]
_REDACT = TransformSpec(TransformKind.REDACT)


class TransformError(ValueError):
    """A field cannot be made what the policy says it must be: nothing leaves."""


def tools_of(key: bytes) -> Tools:
    """A device's: noise from the secure source, and its own `key` for keyed hashes."""
    return Tools(merging_transforms_noise.draw, key, redacted)


def apply(egress: Egress, inference: Inference, codec: FeatureCodec, tools: Tools) -> dict[str, Tensor]:
    """The tensors that leave, by field name. The model's features pass through its codec; the rest travels plain."""
    tensors: dict[str, Tensor] = {}
    derived = _derived(inference)
    for plan in egress.fields:
        name = plan.spec.name
        source = inference.features if name in inference.features else derived
        values = _transformed(plan, source, tools)
        tensors[name] = codec.encode(name, values) if source is inference.features else _plain(plan, values)
    return tensors


def _derived(inference: Inference) -> dict[str, Values]:
    prediction = inference.prediction
    confidence = {CONFIDENCE: np.array([prediction.confidence], np.float32)}
    if prediction.label < 0:  # a regressor's
        return confidence | {LOCAL_VALUE: np.array(prediction.scores[:1], np.float32)}
    return confidence | {LOCAL_ANSWER: np.array([prediction.label], np.int32)}


def _transformed(plan: FieldPlan, source: Mapping[str, Values], tools: Tools) -> Values:
    spec = plan.spec
    values = source.get(spec.name)
    if values is None:
        raise TransformError(f"the model gave no field {spec.name!r}")
    dtype = NUMPY_DTYPES[spec.dtype]
    if values.shape != spec.shape or values.dtype != dtype:
        raise TransformError(f"field {spec.name!r} is {values.dtype} {list(values.shape)}, not as the schema says")
    steps = (*plan.transforms, _REDACT) if spec.category == TEXT else plan.transforms
    try:
        values = changed(values[None], steps, spec, tools)[0] if steps else values
    except (StepError, KeyError) as error:
        raise TransformError(f"field {spec.name!r}: {error}") from None
    if values.size and not (spec.low <= values.min() and values.max() <= spec.high):  # false for NaN too
        raise TransformError(f"field {spec.name!r} is outside {spec.low:g}..{spec.high:g}")
    return values


def _plain(plan: FieldPlan, values: Values) -> Tensor:
    return Tensor(plan.spec.dtype, plan.spec.shape, np.ascontiguousarray(values).tobytes())
