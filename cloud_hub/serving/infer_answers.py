"""Requests and answers of the Open Inference Protocol over a model's samples, for web callers and jobs."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from cloud_hub.engine.types import ModelCard
from models.bundle.manifest import is_text_input
from models.runtime.runner import SampleError
from models.runtime.text import parse_samples
from wire.http import oip
from wire.http.answer_tensors import build_answer_tensors, list_answer_outputs
from wire.http.oip import OipError
from wire.http.tensors import name_domain
from wire.protocol.messages import Prediction

MAX_ROWS = 256  # of one request; larger batches are several requests


def read_samples(asked: oip.InferRequest, card: ModelCard) -> npt.NDArray[Any]:
    """Return the samples of a request. OipError(400) if they, or the outputs asked for, are not the model's."""
    named = list_answer_outputs(card.labels, card.outputs, text=is_text_input(card.input))
    oip.validate_wanted_outputs(asked, [spec.name for spec in named])
    try:
        return parse_samples(asked, card.input, MAX_ROWS)
    except SampleError as error:
        raise OipError(400, str(error)) from None


def encode_answer(asked: oip.InferRequest, card: ModelCard, predictions: Sequence[Prediction]) -> oip.EncodedBody:
    """Encode predictions as the protocol's response: JSON, with binary tensors if asked for."""
    version = str(card.ref.version)
    facts: dict[str, oip.OipParameter] = {"source": "hub", "model_version": version}
    facts["in_domain"] = ",".join(name_domain(each.in_domain) for each in predictions)
    outputs = build_answer_tensors(predictions, card.labels, text=is_text_input(card.input))
    return oip.encode_infer_response(oip.InferResponse(card.ref.name, version, asked.id, outputs, facts), asked)
