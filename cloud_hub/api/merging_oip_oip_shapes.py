"""How inference looks to a reader of `openapi.json`: the bodies of Open Inference Protocol v2 as JSON Schema."""

from typing import Any

from wire.http.merging_oip_oip import BINARY, DTYPES, HEADER_LENGTH, JSON

_TEXT: dict[str, Any] = {"type": "string"}
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean")]},
}
_TENSOR: dict[str, Any] = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": _TEXT,
        "datatype": {"type": "string", "enum": sorted(DTYPES)},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 16},
        "parameters": {"type": "object"},
        "data": {"type": "array", "description": "Row-major, flat or nested as the shape says"},
    },
}
_WANTED: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": _TEXT, "parameters": {"type": "object"}},
}
_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": _TEXT,
        "parameters": {
            **_PARAMETERS,
            "description": "priority (1 = highest, 0 = default), timeout (microseconds), binary_data_output",
        },
        "inputs": {"type": "array", "items": _TENSOR, "minItems": 1},
        "outputs": {"type": "array", "items": _WANTED},
    },
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}
INFER_REPLY: dict[str, Any] = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": _TEXT,
        "model_version": _TEXT,
        "id": _TEXT,
        "parameters": _PARAMETERS,
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
INFER_BODY: dict[str, Any] = {
    "required": True,
    "description": f"With `{HEADER_LENGTH}` the body is that much JSON, then the tensors' bytes in their order.",
    "content": {JSON: {"schema": _REQUEST}, BINARY: _BYTES},
}
