"""How an answer looks in the protocol, on a device and on the hub alike: a classifier's outputs and a regressor's.

Law: a classifier has `scores`, `label`, `confidence`, `label_name`; a regressor has `value` and `confidence`. Nobody
has an output that means nothing.
"""

from collections.abc import Sequence

import numpy as np

from wire.http.merging_oip_oip import BYTES, TensorSpec, text_tensor
from wire.http.tensors import Array
from wire.protocol.messages import Prediction


def answer_outputs(labels: Sequence[str], outputs: int) -> tuple[TensorSpec, ...]:
    """For model metadata. No labels = a regressor of `outputs` values."""
    if not labels:
        return TensorSpec("value", "FP32", (-1, outputs)), TensorSpec("confidence", "FP32", (-1,))
    return (
        TensorSpec("scores", "FP32", (-1, len(labels))),
        TensorSpec("label", "INT64", (-1,)),
        TensorSpec("confidence", "FP32", (-1,)),
        TensorSpec("label_name", BYTES, (-1,)),
    )


def answer_tensors(predictions: Sequence[Prediction], labels: Sequence[str]) -> dict[str, Array]:
    """The same, filled: `scores` or `value` [n, k], the others [n]."""
    numbers = np.array([p.scores for p in predictions], np.float32)
    confidence = np.array([p.confidence for p in predictions], np.float32)
    if not labels:
        return {"value": numbers, "confidence": confidence}
    return {
        "scores": numbers,
        "label": np.array([p.label for p in predictions], np.int64),
        "confidence": confidence,
        "label_name": text_tensor(name_of(p.label, labels) for p in predictions),
    }


def name_of(label: int, labels: Sequence[str]) -> str:
    """Empty for what is no label of the model."""
    return labels[label] if 0 <= label < len(labels) else ""
