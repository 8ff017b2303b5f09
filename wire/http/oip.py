"""Open Inference Protocol v2 over HTTP: inference requests and replies in JSON and the binary tensor extension.

Rule: bytes in, values out, one error type (`OipError`). Tensors are little-endian numpy arrays in C order; text tensors
(BYTES) are object arrays of `bytes`. Sources: KServe "Open Inference Protocol" v2 (REST), Triton "Binary Tensor Data
Extension".

Rule: a request whose JSON names a key twice is refused: two readers that disagree on which one counts could be played
against each other.

Rule: a classifier answers with `scores`, `label`, `confidence`, `label_name`; a regressor with `value` and
`confidence`. Device and hub have the same outputs.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from wire.http.tensors import (
    BYTES,
    DTYPES,
    Array,
    OipError,
    TensorHead,
    binary_size,
    count_of,
    datatype_of,
    from_bytes,
    from_json,
    input_error,
    shape_text,
    short,
    to_bytes,
)
from wire.protocol.messages import DType, Prediction

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+(:)?')


class _Shape(msgspec.Struct):
    """Parts of a request that may hold objects."""

    inputs: list[dict[str, msgspec.Raw]] = []
    outputs: list[dict[str, msgspec.Raw]] = []
    parameters: dict[str, msgspec.Raw] = {}


_shape = msgspec.json.Decoder(_Shape)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def named_twice(text: bytes) -> bool:
    """Whether a JSON request names a key twice.

    Decoding keeps the last of equal keys, so fewer are left than stand in the text; strings before a colon are counted.
    `text` is a request that was decoded without an error.
    """
    shape = _shape.decode(text)
    tensors = [*shape.inputs, *shape.outputs]
    kept = len(_object.decode(text)) + len(shape.parameters) + sum(len(tensor) for tensor in tensors)
    kept += sum(len(_object.decode(tensor["parameters"])) for tensor in tensors if "parameters" in tensor)
    return sum(1 for found in _STRING.finditer(text) if found[1]) > kept


__all__ = [
    "BINARY",
    "BYTES",
    "DTYPES",
    "HEADER_LENGTH",
    "JSON",
    "MAX_TENSORS",
    "Array",
    "Encoded",
    "InferRequest",
    "InferResponse",
    "ModelCard",
    "OipError",
    "Parameter",
    "TensorSpec",
    "Wanted",
    "check_wanted",
    "datatype_of",
    "encode_infer",
    "encode_request",
    "model_metadata",
    "numpy_dtype",
    "parse_infer",
    "require",
    "server_metadata",
    "short",
    "text_tensor",
]

HEADER_LENGTH = "Inference-Header-Content-Length"
JSON = "application/json"
BINARY = "application/octet-stream"
MAX_TENSORS = 64

Parameter = bool | int | float | str


class TensorSpec(msgspec.Struct, frozen=True):
    """An input or output in model metadata. A size of -1 is free (the batch). `datatype` as in `DTYPES`."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelCard(msgspec.Struct, frozen=True):
    """Model metadata: what `GET /v2/models/{name}` answers."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Wanted(msgspec.Struct, frozen=True):
    """One output the caller asks for, as binary data or as JSON."""

    name: str
    binary: bool


class InferRequest(msgspec.Struct, frozen=True):
    """A parsed inference request; `wanted` empty = every output, in binary if `binary_default`."""

    id: str
    inputs: dict[str, Array]
    wanted: tuple[Wanted, ...]
    binary_default: bool
    parameters: dict[str, Parameter]


class InferResponse(msgspec.Struct, frozen=True):
    """An inference response before encoding.

    `outputs`: whole arrays (any byte order, any memory order); `parameters` go into the reply as they are.
    """

    model: str
    version: str
    id: str
    outputs: dict[str, Array]
    parameters: dict[str, Parameter]


class Encoded(NamedTuple):
    """A body with its content type; `header_length` > 0 goes into the `HEADER_LENGTH` header."""

    body: bytes
    content_type: str
    header_length: int

    def headers(self) -> dict[str, str]:
        """HTTP headers of this body."""
        length = {HEADER_LENGTH: str(self.header_length)} if self.header_length else {}
        return {"Content-Type": self.content_type, **length}


class _Output(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct, frozen=True):
    inputs: list[TensorHead]
    id: str = ""
    outputs: list[_Output] = []
    parameters: dict[str, Parameter] = {}


_decoder = msgspec.json.Decoder(_Request)


def parse_infer(body: bytes, header_length: str | None = None) -> InferRequest:
    """Parse the body of an inference request.

    `header_length`: the `HEADER_LENGTH` header, if it came. Raises OipError(400) that names what is wrong.
    """
    head, tail = _split(body, header_length)
    request = _decode_request(head)
    if named_twice(head):
        raise OipError(400, "the request names a key twice")
    if len(request.inputs) > MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise OipError(400, f"more than {MAX_TENSORS} tensors")
    inputs = _inputs(request.inputs, tail)
    parameters = dict(request.parameters)
    binary = parameters.pop("binary_data_output", False) is True
    wanted = tuple(Wanted(o.name, _wants_binary(o, default=binary)) for o in request.outputs)
    return InferRequest(request.id, inputs, wanted, binary, parameters)


def require(request: InferRequest, specs: Sequence[TensorSpec], max_batch: int) -> dict[str, Array]:
    """Return the inputs if they are exactly what `specs` names: names, types, shapes, one batch size, finite numbers.

    Raises OipError(400) that names the first that is not. The batch is the first axis of a spec that begins with -1;
    its size is 1 to `max_batch`.
    """
    names = [spec.name for spec in specs]
    for name in request.inputs:
        if name not in names:
            raise OipError(400, f"unknown input '{short(name)}', this model takes {', '.join(names)}")
    for spec in specs:
        _require_one(request.inputs, spec, max_batch)
    sizes = {request.inputs[spec.name].shape[0] for spec in specs if spec.shape[:1] == (-1,)}
    if len(sizes) > 1:
        raise OipError(400, f"the inputs have different batch sizes: {sorted(sizes)}")
    return request.inputs


def check_wanted(request: InferRequest, outputs: Collection[str]) -> None:
    """Refuse an unknown output before any work. Raises OipError(400)."""
    for want in request.wanted:
        if want.name not in outputs:
            raise OipError(400, f"unknown output '{short(want.name)}', there are {', '.join(outputs)}")


def encode_infer(response: InferResponse, request: InferRequest) -> Encoded:
    """Encode a reply in the form that `request` asks for. Raises OipError(400) for an output that does not exist."""
    wanted = request.wanted or tuple(Wanted(name, request.binary_default) for name in response.outputs)
    check_wanted(request, response.outputs)
    outputs: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    for want in wanted:
        entry, chunk = _output(want, response.outputs[want.name])
        outputs.append(entry)
        chunks += [chunk] if want.binary else []
    head = msgspec.json.encode(_reply_head(response, outputs))
    if not any(want.binary for want in wanted):
        return Encoded(head, JSON, 0)
    return Encoded(b"".join((head, *chunks)), BINARY, len(head))


def encode_request(inputs: Mapping[str, Array], parameters: Mapping[str, Parameter] | None = None) -> Encoded:
    """Encode a request with binary inputs that asks for binary outputs."""
    heads, chunks = [], []
    for name, array in inputs.items():
        entry, chunk = _output(Wanted(name, binary=True), array)
        heads.append(entry)
        chunks.append(chunk)
    head = msgspec.json.encode({"inputs": heads, "parameters": {"binary_data_output": True, **(parameters or {})}})
    return Encoded(b"".join((head, *chunks)), BINARY, len(head))


def server_metadata(name: str, version: str, extensions: Sequence[str] = ()) -> dict[str, Any]:
    """Server metadata: what `GET /v2` answers. `extensions`: beside binary_tensor_data."""
    return {"name": name, "version": version, "extensions": ["binary_tensor_data", *extensions]}


def model_metadata(card: ModelCard) -> dict[str, Any]:
    """JSON form of model metadata."""
    return {
        "name": card.name,
        "versions": list(card.versions),
        "platform": card.platform,
        "inputs": [msgspec.to_builtins(spec) for spec in card.inputs],
        "outputs": [msgspec.to_builtins(spec) for spec in card.outputs],
    }


def text_tensor(values: Iterable[str]) -> Array:
    """One-axis BYTES tensor of UTF-8 texts."""
    return np.array([value.encode() for value in values], dtype=object)


def numpy_dtype(dtype: DType) -> "np.dtype[Any]":
    """Numpy type of a link tensor's element type."""
    return DTYPES[dtype.value]


def _split(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
    """Split a body into JSON and binary data by the header's length."""
    if header_length is None:
        return body, b""
    if not header_length.isascii() or not header_length.isdigit() or len(header_length) > 12:
        raise OipError(400, f"{HEADER_LENGTH} is not a number")
    size = int(header_length)
    if size > len(body):
        raise OipError(400, f"{HEADER_LENGTH} says {size} bytes, the body has {len(body)}")
    return body[:size], body[size:]


def _decode_request(head: bytes) -> _Request:
    try:
        return _decoder.decode(head)
    except RecursionError:
        raise OipError(400, "the JSON is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise OipError(400, f"the request is not inference JSON: {error}") from None
    except UnicodeDecodeError:
        raise OipError(400, "the request is not UTF-8") from None


def _inputs(heads: list[TensorHead], tail: bytes) -> dict[str, Array]:
    """Inputs of a request by name, from JSON or from the binary data."""
    inputs: dict[str, Array] = {}
    offset = 0
    for head in heads:
        if head.name in inputs:
            raise input_error(head, "is named twice")
        size = binary_size(head)
        count = count_of(head)
        if size is None:
            inputs[head.name] = from_json(head, count)
            continue
        inputs[head.name] = from_bytes(head, tail[offset : offset + size], count)
        offset += size
    if offset != len(tail):
        raise OipError(400, f"{len(tail)} bytes of binary data came, the inputs name {offset}")
    return inputs


def _require_one(inputs: Mapping[str, Array], spec: TensorSpec, max_batch: int) -> None:
    """Check one input against its spec. Raises OipError(400)."""
    if spec.name not in inputs:
        raise OipError(400, f"input '{spec.name}' is missing")
    array = inputs[spec.name]
    if array.dtype != DTYPES[spec.datatype]:
        raise OipError(400, f"input '{spec.name}': datatype {datatype_of(array)}, expected {spec.datatype}")
    fits = array.ndim == len(spec.shape) and all(w in (-1, g) for w, g in zip(spec.shape, array.shape, strict=True))
    if not fits:
        raise OipError(400, f"input '{spec.name}': shape {shape_text(array.shape)}, expected {shape_text(spec.shape)}")
    if spec.shape[:1] == (-1,) and not 1 <= array.shape[0] <= max_batch:
        raise OipError(400, f"input '{spec.name}': a batch of {array.shape[0]}, accepted are 1 to {max_batch}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise OipError(400, f"input '{spec.name}': a value is not a finite number")


def _wants_binary(output: _Output, *, default: bool) -> bool:
    """Whether a requested output is wanted as binary data. Raises OipError(400) for extensions not offered."""
    if "classification" in output.parameters:
        raise OipError(400, f"output '{short(output.name)}': the classification extension is not offered here")
    if any(key.startswith("shared_memory") for key in output.parameters):
        raise OipError(400, f"output '{short(output.name)}': shared memory is not offered here")
    wanted = output.parameters.get("binary_data", default)
    if not isinstance(wanted, bool):
        raise OipError(400, f"output '{short(output.name)}': binary_data is true or false")
    return wanted


def _reply_head(response: InferResponse, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """JSON head of a reply, without its outputs' binary data."""
    head: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        head["id"] = response.id
    return {**head, "parameters": response.parameters, "outputs": outputs}


def _output(want: Wanted, array: Array) -> tuple[dict[str, Any], bytes]:
    """JSON entry of an output, and its binary data if it is wanted so."""
    datatype = datatype_of(array)
    entry: dict[str, Any] = {"name": want.name, "datatype": datatype, "shape": list(array.shape)}
    if not want.binary:
        values = array.ravel().tolist()
        return {**entry, "data": [v.decode() for v in values] if datatype == BYTES else values}, b""
    chunk = to_bytes(array, datatype)
    return {**entry, "parameters": {"binary_data_size": len(chunk)}}, chunk


def answer_outputs(labels: Sequence[str], outputs: int) -> tuple[TensorSpec, ...]:
    """Output specs of a model for its metadata. No labels = a regressor of `outputs` values."""
    if not labels:
        return TensorSpec("value", "FP32", (-1, outputs)), TensorSpec("confidence", "FP32", (-1,))
    return (
        TensorSpec("scores", "FP32", (-1, len(labels))),
        TensorSpec("label", "INT64", (-1,)),
        TensorSpec("confidence", "FP32", (-1,)),
        TensorSpec("label_name", BYTES, (-1,)),
    )


def answer_tensors(predictions: Sequence[Prediction], labels: Sequence[str]) -> dict[str, Array]:
    """Output tensors of predictions: `scores` or `value` [n, k] float32, the others [n]."""
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
    """Label text of a class index; "" if it is out of range."""
    return labels[label] if 0 <= label < len(labels) else ""
