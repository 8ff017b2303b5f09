"""Routes of the web API as values, strict parsing of JSON bodies, and the OpenAPI document made from the routes.

Rule: the checks of `auth` and `/openapi.json` are both made from a `Route`. A route says who may use it; the default is
the strictest.
Rule: JSON bodies are read strictly: bounded bytes and depth, no duplicate key, no unknown key, one error type.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from cloud_hub.registry.access import Scope
from wire.http.guards import read_body
from wire.http.oip import OipError


class RouteAccess(StrEnum):
    """Who may use a route: everybody, callers of this machine, holders of a key, or keys of the whole hub only."""

    OPEN = "open"  # no authentication; the route has its own proof, or nothing to hide
    HERE = "here"  # no authentication on this machine, from elsewhere as KEY
    KEY = "key"  # the admin token or a key with the route's scope
    WHOLE = "whole"  # as KEY, but never a tenant's key: it concerns the whole hub
    WHOLE_HERE = "whole_here"  # as WHOLE, but no authentication on this machine


@dataclass(frozen=True)
class Route:
    """One route of the web API: method, path, handler, access, and what it takes and returns.

    `takes`: the Struct of the JSON body, or a schema of a body in several forms. `gives`: schema of the answer.
    `status` of success; `plain`: the content type of an answer that is no JSON. `tag` groups routes for a reader.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    door: RouteAccess = RouteAccess.WHOLE
    scope: Scope = Scope.ADMIN
    takes: Any = None
    gives: Any = None
    status: int = 200
    plain: str = ""
    tag: str = "operate"
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def canonical(self) -> str:
        """The path as aiohttp names it: without the patterns of its variables."""
        return self.path.replace(":.+}", "}")

    @property
    def aiohttp_route(self) -> web.RouteDef:
        """The aiohttp route definition."""
        return web.route(self.method, self.path, self.handler, **({"allow_head": True} if self.method == "GET" else {}))


MAX_JSON_BYTES = 16 * 1024
BODY_TIMEOUT_S = 10.0

T = TypeVar("T")


async def read_json(request: web.Request, kind: type[T]) -> T:
    """Read the body as `kind`, a Struct that forbids unknown fields.

    At most 16 KiB, within 10 seconds. OipError 400, 408 or 413 otherwise.
    """
    return parse_json(await read_body(request, MAX_JSON_BYTES, BODY_TIMEOUT_S), kind)


def parse_json(body: bytes, kind: type[T]) -> T:
    """Parse a JSON body as `kind`. OipError(400) says what is wrong, never what was sent.

    Duplicate keys and unknown keys are errors, and so is nesting beyond the parser's depth.
    """
    try:
        json.loads(body, object_pairs_hook=_reject_duplicates)
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise OipError(400, "the JSON is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise OipError(400, str(error)) from None
    except (ValueError, msgspec.DecodeError):  # not UTF-8, not JSON, a key twice
        raise OipError(400, "the body is not valid JSON, or has a duplicate key") from None


def answer_json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a JSON response of `value` (builtins or Structs)."""
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys: two readers that disagree on which of them counts can be played against each other."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


_VARIABLE = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_REF = "#/components/schemas/{name}"
_TEXT: dict[str, Any] = {"type": "string"}
_REFUSAL: dict[str, Any] = {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}
_TAGS = {
    "inference": "Open Inference Protocol v2, with the extensions named in `GET /v2`",
    "health": "Liveness, readiness and metrics",
    "devices": "Devices: enrolment, renewal, life cycle",
    "updates": "The update repository",
    "rollouts": "Rollouts of model versions: start, watch, stop",
    "access": "API keys of tenants, and the audit log",
    "operate": "The hub itself",
}


class OpenApiRoutes:
    """Route `/openapi.json`; the document is made once, at start."""

    def __init__(self, routes: Sequence[Route], version: str) -> None:
        self._body = build_openapi([*routes, *self.routes()], version)

    def routes(self) -> list[Route]:
        """Return the route of this group."""
        says = "This description"
        return [
            Route("GET", "/openapi.json", self.show_document, says, RouteAccess.HERE, scope=Scope.READ, tag="health")
        ]

    async def show_document(self, _request: web.Request) -> web.Response:
        """Answer with the OpenAPI document."""
        return answer_json(self._body)


def build_openapi(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1.0 document of these routes.

    Every path carries its operation id (method and path), scope, access, parameters, body schema and responses. Struct
    bodies become named components. Source: OpenAPI Specification 3.1.0; JSON Schema 2020-12.
    """
    structs = sorted({route.takes for route in routes if _is_struct(route.takes)}, key=lambda kind: kind.__name__)
    shapes, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    named = dict(zip(structs, shapes, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(_VARIABLE.sub(r"{\1}", route.path), {})[route.method.lower()] = _build_operation(route, named)
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


def _build_operation(route: Route, named: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """Return the operation object of a route; `named` maps Structs to their schema references."""
    found = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "description": f"Scope: {route.scope.value}. Door: {route.door.value}.",
        "tags": [route.tag],
        "security": [] if route.door is RouteAccess.OPEN else [{"key": []}],
        "parameters": [_path_parameter(name) for name in _VARIABLE.findall(route.path)],
        "responses": _build_responses(route),
        **route.extra,
    }
    if route.takes is not None:
        found["requestBody"] = _request_body(named[route.takes] if _is_struct(route.takes) else None, route)
    return found


def _request_body(shape: dict[str, Any] | None, route: Route) -> dict[str, Any]:
    """Return the request body object: JSON of a Struct, or the body schema that the route gives."""
    return {"required": True, "content": {"application/json": {"schema": shape}}} if shape else dict(route.takes)


def _build_responses(route: Route) -> dict[str, Any]:
    """Return the response objects: success, 4XX and 5XX with one line of error."""
    kind = route.plain.partition(";")[0] or "application/json"
    shape = _TEXT if route.plain else route.gives or {"type": "object"}
    refused = {"application/json": {"schema": {"$ref": _REF.format(name="Refusal")}}}
    return {
        str(route.status): {"description": route.summary, "content": {kind: {"schema": shape}}},
        "4XX": {"description": "Refused, with the reason in one line", "content": refused},
        "5XX": {"description": "Temporarily unavailable, or a defect of the hub", "content": refused},
    }


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}


def _operation_id(route: Route) -> str:
    """Return the operation id, such as `get_v1_admin_status`."""
    words = re.findall(r"[a-z0-9]+", f"{route.method} {route.path}".lower())
    return "_".join(words)
