"""`/openapi.json`: every route as OpenAPI 3.1, made from the routes themselves."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from cloud_hub.api.merging_routing_bodies import answer
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.registry.access import Scope

_VARIABLE = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_REF = "#/components/schemas/{name}"
_TEXT: dict[str, Any] = {"type": "string"}
_REFUSAL: dict[str, Any] = {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}
_TAGS = {
    "inference": "Open Inference Protocol v2, with the extensions named in `GET /v2`",
    "health": "Whether the hub lives and is ready, and its figures",
    "devices": "Devices: enrolment, renewal, their life",
    "updates": "The update repository",
    "rollouts": "Who gets which version next, and what stops it",
    "access": "Keys of tenants, and what was done with them",
    "operate": "The hub itself",
}


class Described:
    """The document is made once, at start."""

    def __init__(self, routes: Sequence[Route], version: str) -> None:
        self._body = document([*routes, *self.routes()], version)

    def routes(self) -> list[Route]:
        says = "This description"
        return [Route("GET", "/openapi.json", self.document, says, Door.HERE, scope=Scope.READ, tag="health")]

    async def document(self, _request: web.Request) -> web.Response:
        return answer(self._body)


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """OpenAPI 3.1.0 of these routes."""
    structs = sorted({route.takes for route in routes if _is_struct(route.takes)}, key=lambda kind: kind.__name__)
    shapes, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    named = dict(zip(structs, shapes, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(_VARIABLE.sub(r"{\1}", route.path), {})[route.method.lower()] = _operation(route, named)
    key = {"type": "http", "scheme": "bearer", "description": "The admin token, or a key of `skerry hub key create`"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Skerry hub", "version": version},
        "tags": [{"name": name, "description": says} for name, says in _TAGS.items()],
        "paths": paths,
        "components": {"schemas": {"Refusal": _REFUSAL, **schemas}, "securitySchemes": {"key": key}},
    }


def _is_struct(takes: object) -> bool:
    return isinstance(takes, type) and issubclass(takes, msgspec.Struct)


def _operation(route: Route, named: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    found = {
        "operationId": _name(route),
        "summary": route.summary,
        "description": f"Scope: {route.scope.value}. Door: {route.door.value}.",
        "tags": [route.tag],
        "security": [] if route.door is Door.OPEN else [{"key": []}],
        "parameters": [_parameter(name) for name in _VARIABLE.findall(route.path)],
        "responses": _responses(route),
        **route.extra,
    }
    if route.takes is not None:
        found["requestBody"] = _body(named[route.takes] if _is_struct(route.takes) else None, route)
    return found


def _body(shape: dict[str, Any] | None, route: Route) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": shape}}} if shape else dict(route.takes)


def _responses(route: Route) -> dict[str, Any]:
    kind = route.plain.partition(";")[0] or "application/json"
    shape = _TEXT if route.plain else route.gives or {"type": "object"}
    refused = {"application/json": {"schema": {"$ref": _REF.format(name="Refusal")}}}
    return {
        str(route.status): {"description": route.summary, "content": {kind: {"schema": shape}}},
        "4XX": {"description": "Refused: what is wrong, in one line", "content": refused},
        "5XX": {"description": "Not now, or a defect of the hub", "content": refused},
    }


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}


def _name(route: Route) -> str:
    words = re.findall(r"[a-z0-9]+", f"{route.method} {route.path}".lower())
    return "_".join(words)
