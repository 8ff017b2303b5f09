"""Output tensors of answers by the Open Inference Protocol v2: what a model of each kind gives, on device and hub.

Rule: a classifier answers with `scores`, `label`, `confidence`, `label_name`, a text model with `text_output`
too; a regressor with `value` and `confidence`. Device and hub have the same outputs.
"""

from collections.abc import Sequence

import numpy as np

from wire.http.oip import BYTES_DATATYPE, Array, TensorSpec
from wire.http.tensors import make_text_tensor
from wire.protocol.messages import Prediction

TEXT_OUTPUT = "text_output"  # as servers of language models call it


def list_answer_outputs(labels: Sequence[str], outputs: int, *, text: bool = False) -> tuple[TensorSpec, ...]:
    """Output specs of a model for its metadata. No labels = a regressor of `outputs` values; `text`: a text model."""
    if not labels:
        return TensorSpec("value", "FP32", (-1, outputs)), TensorSpec("confidence", "FP32", (-1,))
    return (
        TensorSpec("scores", "FP32", (-1, len(labels))),
        TensorSpec("label", "INT64", (-1,)),
        TensorSpec("confidence", "FP32", (-1,)),
        TensorSpec("label_name", BYTES_DATATYPE, (-1,)),
        *((TensorSpec(TEXT_OUTPUT, BYTES_DATATYPE, (-1,)),) if text else ()),
    )


def build_answer_tensors(
    predictions: Sequence[Prediction], labels: Sequence[str], *, text: bool = False
) -> dict[str, Array]:
    """Output tensors of predictions: `scores` or `value` [n, k] float32, the others [n].

    `text`: of a text model, with what a language model wrote, "" where none did; such an answer has scores of 0.
    """
    none = (0.0,) * len(labels)
    numbers = np.array([p.scores if p.text is None else none for p in predictions], np.float32)
    confidence = np.array([p.confidence for p in predictions], np.float32)
    if not labels:
        return {"value": numbers, "confidence": confidence}
    return {
        "scores": numbers,
        "label": np.array([p.label for p in predictions], np.int64),
        "confidence": confidence,
        "label_name": make_text_tensor(lookup_label_name(p.label, labels) for p in predictions),
        **({TEXT_OUTPUT: make_text_tensor(p.text or "" for p in predictions)} if text else {}),
    }


def lookup_label_name(label: int, labels: Sequence[str]) -> str:
    """Label text of a class index; "" if it is out of range."""
    return labels[label] if 0 <= label < len(labels) else ""
