"""Open Inference Protocol v2 over HTTP: inference requests and replies in JSON and the binary tensor extension.

Rule: bytes in, values out, one error type (`OipError`). Tensors are little-endian numpy arrays in C order; text tensors
(BYTES) are object arrays of `bytes`. Sources: KServe "Open Inference Protocol" v2 (REST), Triton "Binary Tensor Data
Extension".

Rule: a request whose JSON names a key twice is refused: two readers that disagree on which one counts could be played
against each other.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from wire.http.tensors import (
    BYTES_DATATYPE,
    NUMPY_DTYPES,
    Array,
    OipError,
    TensorHead,
    count_elements,
    format_shape,
    input_error,
    name_datatype,
    parse_binary_tensor,
    parse_json_tensor,
    read_binary_size,
    serialise_array,
    shorten_name,
    to_numpy_dtype,
)
from wire.text import strip_mark

MAX_KEYS = 4096  # of a request, in all its objects: each takes about 200 bytes as an object, however short it is
# Every repeat is possessive and a string without an end matches up to the end: no byte is read twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)[ \t\r\n]*+(:)?', re.DOTALL)


class _RequestShape(msgspec.Struct):
    """Parts of a request that may hold objects."""

    inputs: list[dict[str, msgspec.Raw]] = []
    outputs: list[dict[str, msgspec.Raw]] = []
    parameters: dict[str, msgspec.Raw] = {}


_shape = msgspec.json.Decoder(_RequestShape)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _count_keys(text: bytes) -> int:
    """Count the keys of a JSON text: the strings before a colon. OipError(400) for more than `MAX_KEYS`."""
    keys = sum(1 for found in _STRING.finditer(text) if found[1])
    if keys > MAX_KEYS:
        raise OipError(400, f"the request has {keys} keys, at most {MAX_KEYS} are taken")
    return keys


def _count_kept_keys(text: bytes) -> int:
    """Count the keys of a request that are left when it is decoded: of equal ones the last.

    `text` is a request that was decoded without an error.
    """
    shape = _shape.decode(text)
    tensors = [*shape.inputs, *shape.outputs]
    kept = len(_object.decode(text)) + len(shape.parameters) + sum(len(tensor) for tensor in tensors)
    return kept + sum(len(_object.decode(tensor["parameters"])) for tensor in tensors if "parameters" in tensor)


__all__ = [
    "BINARY_TYPE",
    "BYTES_DATATYPE",
    "HEADER_LENGTH",
    "JSON_TYPE",
    "MAX_KEYS",
    "MAX_TENSORS",
    "NUMPY_DTYPES",
    "SEQUENCE_PARAMETERS",
    "Array",
    "EncodedBody",
    "InferRequest",
    "InferResponse",
    "ModelMetadata",
    "OipError",
    "OipParameter",
    "TensorSpec",
    "WantedOutput",
    "build_model_metadata",
    "build_server_metadata",
    "encode_infer_request",
    "encode_infer_response",
    "name_datatype",
    "parse_infer_request",
    "refuse_sequences",
    "shorten_name",
    "to_numpy_dtype",
    "validate_inputs",
    "validate_wanted_outputs",
]

HEADER_LENGTH = "Inference-Header-Content-Length"
JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"
MAX_TENSORS = 64
SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")

OipParameter = bool | int | float | str


class TensorSpec(msgspec.Struct, frozen=True):
    """An input or output in model metadata. A size of -1 is free (the batch). `datatype` as in `NUMPY_DTYPES`.

    `parameters`: what the protocol has no field for, such as the range of an input's values.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, float] | None = None


class ModelMetadata(msgspec.Struct, frozen=True):
    """Model metadata: what `GET /v2/models/{name}` answers."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class WantedOutput(msgspec.Struct, frozen=True):
    """One output the caller asks for, as binary data or as JSON."""

    name: str
    binary: bool


class InferRequest(msgspec.Struct, frozen=True):
    """A parsed inference request; `wanted` empty = every output, in binary if `binary_default`."""

    id: str
    inputs: dict[str, Array]
    wanted: tuple[WantedOutput, ...]
    binary_default: bool
    parameters: dict[str, OipParameter]


class InferResponse(msgspec.Struct, frozen=True):
    """An inference response before encoding.

    `outputs`: whole arrays (any byte order, any memory order); `parameters` go into the reply as they are.
    """

    model: str
    version: str
    id: str
    outputs: dict[str, Array]
    parameters: dict[str, OipParameter]


class EncodedBody(NamedTuple):
    """A body with its content type; `header_length` > 0 goes into the `HEADER_LENGTH` header."""

    body: bytes
    content_type: str
    header_length: int

    def headers(self) -> dict[str, str]:
        """HTTP headers of this body."""
        length = {HEADER_LENGTH: str(self.header_length)} if self.header_length else {}
        return {"Content-Type": self.content_type, **length}


class _RequestedOutput(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct, frozen=True):
    inputs: list[TensorHead]
    id: str = ""
    outputs: list[_RequestedOutput] = []
    parameters: dict[str, OipParameter] = {}


_decoder = msgspec.json.Decoder(_Request)


def refuse_sequences(parameters: Mapping[str, OipParameter]) -> None:
    """Refuse a request that belongs to a sequence (0, "" and false: to none). Raises OipError(400)."""
    for key in SEQUENCE_PARAMETERS:
        if parameters.get(key):
            raise OipError(400, f"parameter '{key}': sequences are not offered, the models keep no state")


def parse_infer_request(body: bytes, header_length: str | None = None) -> InferRequest:
    """Parse the body of an inference request.

    `header_length`: the `HEADER_LENGTH` header, if it came. Raises OipError(400) that names what is wrong.
    """
    head, tail = _split_body(body, header_length)
    head = strip_mark(head)
    keys = _count_keys(head)
    request = _decode_request(head)
    if keys > _count_kept_keys(head):
        raise OipError(400, "the request names a key twice")
    if len(request.inputs) > MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise OipError(400, f"more than {MAX_TENSORS} tensors")
    inputs = _parse_inputs(request.inputs, tail)
    parameters = dict(request.parameters)
    binary = parameters.pop("binary_data_output", False) is True
    wanted = tuple(WantedOutput(o.name, _wants_binary(o, default=binary)) for o in request.outputs)
    return InferRequest(request.id, inputs, wanted, binary, parameters)


def validate_inputs(request: InferRequest, specs: Sequence[TensorSpec], max_batch: int) -> dict[str, Array]:
    """Return the inputs if they are exactly what `specs` names: names, types, shapes, one batch size, finite numbers.

    Raises OipError(400) that names the first that is not. The batch is the first axis of a spec that begins with -1;
    its size is 1 to `max_batch`.
    """
    names = [spec.name for spec in specs]
    for name in request.inputs:
        if name not in names:
            raise OipError(400, f"unknown input '{shorten_name(name)}', this model takes {', '.join(names)}")
    for spec in specs:
        _validate_input(request.inputs, spec, max_batch)
    sizes = {request.inputs[spec.name].shape[0] for spec in specs if spec.shape[:1] == (-1,)}
    if len(sizes) > 1:
        raise OipError(400, f"the inputs have different batch sizes: {sorted(sizes)}")
    return request.inputs


def validate_wanted_outputs(request: InferRequest, outputs: Collection[str]) -> None:
    """Refuse an unknown output before any work. Raises OipError(400)."""
    for want in request.wanted:
        if want.name not in outputs:
            raise OipError(400, f"unknown output '{shorten_name(want.name)}', there are {', '.join(outputs)}")


def encode_infer_response(response: InferResponse, request: InferRequest) -> EncodedBody:
    """Encode a reply in the form that `request` asks for. Raises OipError(400) for an output that does not exist."""
    wanted = request.wanted or tuple(WantedOutput(name, request.binary_default) for name in response.outputs)
    validate_wanted_outputs(request, response.outputs)
    outputs: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    for want in wanted:
        entry, chunk = _encode_output(want, response.outputs[want.name])
        outputs.append(entry)
        chunks += [chunk] if want.binary else []
    head = msgspec.json.encode(_build_reply_head(response, outputs))
    if not any(want.binary for want in wanted):
        return EncodedBody(head, JSON_TYPE, 0)
    return EncodedBody(b"".join((head, *chunks)), BINARY_TYPE, len(head))


def encode_infer_request(
    inputs: Mapping[str, Array], parameters: Mapping[str, OipParameter] | None = None
) -> EncodedBody:
    """Encode a request with binary inputs that asks for binary outputs."""
    heads, chunks = [], []
    for name, array in inputs.items():
        entry, chunk = _encode_output(WantedOutput(name, binary=True), array)
        heads.append(entry)
        chunks.append(chunk)
    head = msgspec.json.encode({"inputs": heads, "parameters": {"binary_data_output": True, **(parameters or {})}})
    return EncodedBody(b"".join((head, *chunks)), BINARY_TYPE, len(head))


def build_server_metadata(name: str, version: str, extensions: Sequence[str] = ()) -> dict[str, Any]:
    """Server metadata: what `GET /v2` answers. `extensions`: beside binary_tensor_data."""
    return {"name": name, "version": version, "extensions": ["binary_tensor_data", *extensions]}


def build_model_metadata(card: ModelMetadata) -> dict[str, Any]:
    """JSON form of model metadata."""
    return {
        "name": card.name,
        "versions": list(card.versions),
        "platform": card.platform,
        "inputs": [_describe_tensor(spec) for spec in card.inputs],
        "outputs": [_describe_tensor(spec) for spec in card.outputs],
    }


def _describe_tensor(spec: TensorSpec) -> dict[str, Any]:
    facts = {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}
    return facts if spec.parameters is None else {**facts, "parameters": spec.parameters}


def _split_body(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
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
        if not head.isascii():
            head.decode()  # msgspec looks only at the texts that it returns, not at the keys it skips
        return _decoder.decode(head)
    except RecursionError:
        raise OipError(400, "the JSON is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise OipError(400, f"the request is not inference JSON: {error}") from None
    except UnicodeDecodeError:
        raise OipError(400, "the request is not UTF-8") from None


def _parse_inputs(heads: list[TensorHead], tail: bytes) -> dict[str, Array]:
    """Inputs of a request by name, from JSON or from the binary data."""
    inputs: dict[str, Array] = {}
    offset = 0
    for head in heads:
        if head.name in inputs:
            raise input_error(head, "is named twice")
        size = read_binary_size(head)
        count = count_elements(head)
        if size is None:
            inputs[head.name] = parse_json_tensor(head, count)
            continue
        inputs[head.name] = parse_binary_tensor(head, tail[offset : offset + size], count)
        offset += size
    if offset != len(tail):
        raise OipError(400, f"{len(tail)} bytes of binary data came, the inputs name {offset}")
    return inputs


def _validate_input(inputs: Mapping[str, Array], spec: TensorSpec, max_batch: int) -> None:
    """Check one input against its spec. Raises OipError(400)."""
    if spec.name not in inputs:
        raise OipError(400, f"input '{spec.name}' is missing")
    array = inputs[spec.name]
    if array.dtype != NUMPY_DTYPES[spec.datatype]:
        raise OipError(400, f"input '{spec.name}': datatype {name_datatype(array)}, expected {spec.datatype}")
    fits = array.ndim == len(spec.shape) and all(w in (-1, g) for w, g in zip(spec.shape, array.shape, strict=True))
    if not fits:
        raise OipError(
            400, f"input '{spec.name}': shape {format_shape(array.shape)}, expected {format_shape(spec.shape)}"
        )
    if spec.shape[:1] == (-1,) and not 1 <= array.shape[0] <= max_batch:
        raise OipError(400, f"input '{spec.name}': a batch of {array.shape[0]}, accepted are 1 to {max_batch}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise OipError(400, f"input '{spec.name}': a value is not a finite number")


def _wants_binary(output: _RequestedOutput, *, default: bool) -> bool:
    """Whether a requested output is wanted as binary data. Raises OipError(400) for extensions not offered."""
    if "classification" in output.parameters:
        raise OipError(400, f"output '{shorten_name(output.name)}': the classification extension is not offered here")
    if any(key.startswith("shared_memory") for key in output.parameters):
        raise OipError(400, f"output '{shorten_name(output.name)}': shared memory is not offered here")
    wanted = output.parameters.get("binary_data", default)
    if not isinstance(wanted, bool):
        raise OipError(400, f"output '{shorten_name(output.name)}': binary_data is true or false")
    return wanted


def _build_reply_head(response: InferResponse, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """JSON head of a reply, without its outputs' binary data."""
    head: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        head["id"] = response.id
    return {**head, "parameters": response.parameters, "outputs": outputs}


def _encode_output(want: WantedOutput, array: Array) -> tuple[dict[str, Any], bytes]:
    """JSON entry of an output, and its binary data if it is wanted so."""
    datatype = name_datatype(array)
    entry: dict[str, Any] = {"name": want.name, "datatype": datatype, "shape": list(array.shape)}
    if not want.binary:
        values = array.ravel().tolist()
        return {**entry, "data": [v.decode() for v in values] if datatype == BYTES_DATATYPE else values}, b""
    chunk = serialise_array(array, datatype)
    return {**entry, "parameters": {"binary_data_size": len(chunk)}}, chunk
