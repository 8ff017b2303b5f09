"""The Open Inference Protocol v2 as agents and hubs speak it: what a model takes, requests, and what a reply says."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skerry_client.errors import APIResponseValidationError
from skerry_client.exchange.commands import Request, Steps, build_path, encode_json, fetch_object
from skerry_client.reading import read_list, read_value
from skerry_client.samples import BYTES, CODES, ModelInput, encode_sample

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class ServedModel:
    """A model that is served: its name, newest version, and input."""

    name: str
    version: str
    input: ModelInput


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model said of one sample. `label` -1 and `value` a number: of a regressor. `text`: of a language model."""

    label: int
    confidence: float
    scores: tuple[float, ...]
    label_name: str = ""
    value: float | None = None
    text: str | None = None


@dataclass(frozen=True)
class Tensor:
    """An output tensor in a reply's JSON; `data` is flat."""

    name: str
    data: tuple[Any, ...]


@dataclass(frozen=True)
class _InputCard:
    """An input in a model's metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None


def fetch_model(name: str) -> Steps[ServedModel]:
    """Fetch what a model takes. NotFoundError if it is not served."""
    request = Request("GET", build_path("v2", "models", name), safe=True)
    found = yield from fetch_object(request)
    inputs = read_list(_InputCard, found, "inputs", request.where)
    versions = found.get("versions")
    if len(inputs) != 1 or not isinstance(versions, list) or not versions:
        raise APIResponseValidationError(f"{request.where}: {len(inputs)} inputs, one is expected; is this Skerry?")
    card = inputs[0]
    told = card.parameters or {}
    low, high = (float(told[key]) if isinstance(told.get(key), int | float) else None for key in ("low", "high"))
    return ServedModel(name, str(versions[-1]), ModelInput(card.name, card.datatype, card.shape[1:], low, high))


def build_inference(served: ServedModel, samples: Sequence[object], told: Mapping[str, str]) -> Request:
    """Return an inference request, its tensor as bytes behind the JSON (the binary tensor data extension)."""
    data = b"".join(encode_sample(sample, served.input) for sample in samples)
    tensor = {**_head_of(served.input, len(samples)), "parameters": {"binary_data_size": len(data)}}
    head = encode_json({"inputs": [tensor], "parameters": told})
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return Request("POST", build_path("v2", "models", served.name, "infer"), head + data, headers)


def build_json_inference(served: ServedModel, samples: Sequence[object]) -> dict[str, Any]:
    """Return an inference request as JSON alone, as a job holds it."""
    values: list[Any] = []
    for sample in samples:
        data = encode_sample(sample, served.input)
        if served.input.datatype == BYTES:
            values.append(data[4:].decode())
        else:
            code = CODES[served.input.datatype]
            values += struct.unpack(f"<{len(data) // struct.calcsize('<' + code)}{code}", data)
    return {"inputs": [{**_head_of(served.input, len(samples)), "data": values}]}


def _head_of(spec: ModelInput, count: int) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": [count, *spec.shape]}


def read_outputs(found: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the fields of `Prediction` of each sample of a reply. APIResponseValidationError if it is none."""
    tensors = {each.name: each.data for each in read_list(Tensor, found, "outputs", where)}
    count = len(tensors.get("confidence", ()))
    if not count:
        raise APIResponseValidationError(f"{where}: the reply has no answer; is this a Skerry server?")
    return [_read_row(tensors, at, count) for at in range(count)]


def read_predictions(found: Mapping[str, Any], where: str) -> tuple[Prediction, ...]:
    """Return the predictions of a reply's outputs. APIResponseValidationError if they are none."""
    return tuple(read_value(Prediction, row, where) for row in read_outputs(found, where))


def _read_row(tensors: Mapping[str, Sequence[Any]], at: int, count: int) -> dict[str, Any]:
    regressor = "value" in tensors
    flat = tensors["value" if regressor else "scores"] if regressor or "scores" in tensors else ()
    width = len(flat) // count
    scores = [*flat[at * width : (at + 1) * width]]
    row = {name: values[at] for name, values in tensors.items() if len(values) == count}
    return {
        "confidence": row["confidence"],
        "label": -1 if regressor else row.get("label"),
        "label_name": row.get("label_name", ""),
        "scores": scores,
        "value": scores[0] if regressor and scores else None,
        "text": row.get("text_output") or None,
    }
