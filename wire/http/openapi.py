"""OpenAPI 3.1 documents of the two web servers, made from values that describe their routes. Pure.

Sources: OpenAPI Specification 3.1.0; JSON Schema 2020-12; Open Inference Protocol v2 (the inference body and reply).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from wire.http.oip import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE, MAX_TENSORS
from wire.http.tensors import NUMPY_DTYPES

Schema = Mapping[str, Any]
REF = "#/components/schemas/{name}"
TEXT: Schema = {"type": "string"}
_VARIABLE = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_REFUSAL: Schema = {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}


class TokenNeed(StrEnum):
    """Whether a call needs the bearer token."""

    NEVER = "never"
    OPTIONAL = "optional"  # callers of this machine need none
    ALWAYS = "always"


_SECURITY: Mapping[TokenNeed, list[dict[str, list[str]]]] = {
    TokenNeed.NEVER: [],
    TokenNeed.OPTIONAL: [{}, {"key": []}],
    TokenNeed.ALWAYS: [{"key": []}],
}


@dataclass(frozen=True)
class ApiLink:
    """A link: what an answer names is a path variable of another operation.

    `values`: by variable, where it stands in the answer, as a JSON pointer. `operation`: method and path.
    """

    operation: str
    values: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ApiOperation:
    """One operation as a client may call it.

    `parameters`: schemas by name; a name in the path refines that variable, any other is a query parameter, required
    unless its schema has a `default`. `body`: the request body object; `gives`: schema of the answer's body;
    `content_type` of an answer that is no JSON; `refusal`: name of the schema of its errors. `status` of success.
    """

    method: str
    path: str
    summary: str
    tag: str
    token: TokenNeed = TokenNeed.ALWAYS
    description: str = ""
    parameters: Schema = field(default_factory=dict)
    body: Schema | None = None
    gives: Schema = field(default_factory=lambda: {"type": "object"})
    content_type: str = JSON_TYPE
    refusal: str = "Refusal"
    status: int = 200
    links: tuple[ApiLink, ...] = ()

    @property
    def shown_path(self) -> str:
        """The path without the patterns of its variables."""
        return _VARIABLE.sub(r"{\1}", self.path)

    @property
    def id(self) -> str:
        """The operation id, such as `get_v1_admin_status`."""
        return make_operation_id(self.method, self.path)


def make_operation_id(method: str, path: str) -> str:
    """Return the operation id of a method and a path, such as `get_v1_admin_status`."""
    return "_".join(re.findall(r"[a-z0-9]+", f"{method} {path}".lower()))


def build_openapi(
    title: str, version: str, tags: Mapping[str, str], operations: Iterable[ApiOperation], schemas: Schema
) -> dict[str, Any]:
    """Return the OpenAPI 3.1.0 document of these operations.

    `tags`: by name, what they say; `schemas`: named components that the operations refer to.
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.shown_path, {})[operation.method.lower()] = _build_operation(operation)
    key = {"type": "http", "scheme": "bearer", "description": "The server's token, or a key that it has given out"}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "tags": [{"name": name, "description": says} for name, says in tags.items()],
        "paths": paths,
        "components": {"schemas": {"Refusal": _REFUSAL, **schemas}, "securitySchemes": {"key": key}},
    }


def describe_json_body(schema: Schema, *, required: bool = True) -> dict[str, Any]:
    """Return the request body object of JSON of this schema."""
    return {"required": required, "content": {JSON_TYPE: {"schema": schema}}}


def _build_operation(operation: ApiOperation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "description": operation.description,
        "tags": [operation.tag],
        "security": _SECURITY[operation.token],
        "parameters": _list_parameters(operation),
        "responses": _build_responses(operation),
    }
    return found if operation.body is None else {**found, "requestBody": operation.body}


def _list_parameters(operation: ApiOperation) -> list[dict[str, Any]]:
    """Return the parameter objects: the path's variables in their order, then the query's."""
    variables = _VARIABLE.findall(operation.path)
    found = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": operation.parameters.get(name, {**TEXT, "minLength": 1}),
        }
        for name in variables
    ]
    for name, schema in operation.parameters.items():
        if name not in variables:
            found.append({"name": name, "in": "query", "required": "default" not in schema, "schema": schema})
    return found


def _build_responses(operation: ApiOperation) -> dict[str, Any]:
    """Return the response objects: success with its links, 4XX and 5XX with one line of error."""
    done: dict[str, Any] = {
        "description": operation.summary,
        "content": {operation.content_type: {"schema": operation.gives}},
    }
    if operation.links:
        done["links"] = {make_operation_id(*link.operation.split()): _build_link(link) for link in operation.links}
    refused = {JSON_TYPE: {"schema": {"$ref": REF.format(name=operation.refusal)}}}
    return {
        str(operation.status): done,
        "4XX": {"description": "Refused, with the reason in one line", "content": refused},
        "5XX": {"description": "Temporarily unavailable, or a defect of the server", "content": refused},
    }


def _build_link(link: ApiLink) -> dict[str, Any]:
    return {
        "operationId": make_operation_id(*link.operation.split()),
        "parameters": {name: f"$response.body#{pointer}" for name, pointer in link.values.items()},
    }


# Open Inference Protocol v2

_PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean")]},
}
_TENSOR: Schema = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": TEXT,
        "datatype": {"type": "string", "enum": sorted(NUMPY_DTYPES)},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 16},
        "parameters": {"type": "object"},
        "data": {"type": "array", "description": "Row-major, flat or nested as the shape says"},
    },
}
_WANTED: Schema = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": TEXT, "parameters": {"type": "object"}},
}
INFER_REPLY: Schema = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": TEXT,
        "model_version": TEXT,
        "id": TEXT,
        "parameters": _PARAMETERS,
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
MODEL_METADATA: Schema = {
    "type": "object",
    "required": ["name", "versions", "platform", "inputs", "outputs"],
    "properties": {
        "name": TEXT,
        "versions": {"type": "array", "items": TEXT},
        "platform": TEXT,
        "inputs": {"type": "array", "items": {"type": "object", "required": ["name", "datatype", "shape"]}},
        "outputs": {"type": "array", "items": {"type": "object", "required": ["name", "datatype", "shape"]}},
    },
}
SERVER_METADATA: Schema = {
    "type": "object",
    "required": ["name", "version", "extensions"],
    "properties": {"name": TEXT, "version": TEXT, "extensions": {"type": "array", "items": TEXT}},
}


def describe_infer_body(parameters: str) -> dict[str, Any]:
    """Return the request body object of an inference. `parameters`: which parameters this server takes, in words."""
    request = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": TEXT,
            "parameters": {**_PARAMETERS, "description": parameters},
            "inputs": {"type": "array", "items": _TENSOR, "minItems": 1, "maxItems": MAX_TENSORS},
            "outputs": {"type": "array", "items": _WANTED, "maxItems": MAX_TENSORS},
        },
    }
    return {
        "required": True,
        "description": "Inputs by name, as the model's metadata lists them; a model of texts takes `text_input` "
        "(BYTES, one text a row) and gives `text_output` beside its classifier's outputs. "
        f"With `{HEADER_LENGTH}` the body is that much JSON, then the tensors' bytes in their order.",
        "content": {
            JSON_TYPE: {"schema": request},
            BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    }
