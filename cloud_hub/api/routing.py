"""Routes of the web API as values, strict parsing of JSON bodies, and the OpenAPI document made from the routes.

Rule: the checks of `auth` and `/openapi.json` are both made from a `Route`. A route says who may use it; the default is
the strictest.
Rule: JSON bodies are read strictly: bounded bytes and depth, no duplicate key, no unknown key, one error type.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from cloud_hub.llm.errors import LLM_ERROR
from cloud_hub.registry.access import Scope
from wire.http.guards import read_body
from wire.http.oip import OipError
from wire.http.openapi import (
    REF,
    TEXT,
    ApiLink,
    ApiOperation,
    Schema,
    TokenNeed,
    build_openapi,
    describe_json_body,
)
from wire.http.strict_json import parse_strict_json
from wire.text import strip_mark


class RouteAccess(StrEnum):
    """Which callers a route serves; the value is what its description in the OpenAPI document says."""

    OPEN = "everybody"  # no authentication; the route has its own proof, or nothing to hide
    OPEN_IN_PART = "everybody; this machine and keys see more"
    LOCAL_OR_KEY = "this machine, or a key"  # no authentication on this machine, from elsewhere as KEY
    KEY = "a key"  # the admin token or a key with the route's scope
    HUB_KEY = "a key of the whole hub"  # as KEY, but never a tenant's key
    LOCAL_OR_HUB_KEY = "this machine, or a key of the whole hub"  # as HUB_KEY, but no authentication on this machine
    HIDDEN = "a key of the whole hub; 404 for all others"  # as if there were nothing
    PAGE = "a key, or a session of a browser"  # a browser without a session is sent to sign in


ROUTE_SUMMARIES = web.AppKey("ROUTE_SUMMARIES", dict[str, str])  # by "METHOD PATH", the path as aiohttp names it
LOCAL_OPEN = frozenset({RouteAccess.OPEN_IN_PART, RouteAccess.LOCAL_OR_KEY, RouteAccess.LOCAL_OR_HUB_KEY})


@dataclass(frozen=True)
class Route:
    """One route of the web API: method, path, handler, access, and what it takes and returns.

    `takes`: the Struct of the JSON body, or the body object of a body in several forms; `needs_body` False: it may be
    left out. `gives`: schema of the answer; `status` of success; `plain`: the content type of an answer that is no
    JSON. `refusal`: name of the schema of its errors. `tag` groups routes for a reader. `parameters`, `links`: as in
    `wire.http.openapi.ApiOperation`. `ignores_strange_keys`: where it needs no token, a key that is none of a hub's
    counts as none.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    access: RouteAccess = RouteAccess.HUB_KEY
    scope: Scope = Scope.ADMIN
    takes: Any = None
    gives: Any = None
    status: int = 200
    plain: str = ""
    tag: str = "operate"
    needs_body: bool = True
    refusal: str = "Refusal"
    parameters: Schema = field(default_factory=dict)
    links: tuple[ApiLink, ...] = ()
    ignores_strange_keys: bool = False

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

    Duplicate keys and unknown keys are errors, and so is nesting beyond the parser's depth. `3.0` is a whole number, as
    JSON Schema has it.
    """
    try:
        read = parse_strict_json(strip_mark(body))
        return msgspec.json.decode(msgspec.json.encode(read), type=kind)
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


_TAGS = {
    "inference": "Open Inference Protocol v2, with the extensions named in `GET /v2`",
    "jobs": "Work that outlives its request: hand it over, come back for it",
    "language": "Language models, in the form of OpenAI's interface",
    "health": "Liveness, readiness and metrics",
    "devices": "Devices: enrolment, renewal, life cycle",
    "updates": "The update repository",
    "rollouts": "Rollouts of model versions: start, watch, stop",
    "access": "API keys of tenants, and the audit log",
    "operate": "The hub itself",
}


class OpenApiRoutes:
    """Route `/openapi.json`; the document is made when it is first asked for. `local`: as in `describe_routes`."""

    def __init__(self, routes: Sequence[Route], version: str, *, local: bool) -> None:
        self._routes, self._version, self._local = [*routes, *self.routes()], version, local

    @cached_property
    def _document(self) -> dict[str, Any]:
        return describe_routes(self._routes, self._version, local=self._local)

    def routes(self) -> list[Route]:
        """Return the route of this group."""
        says = "This description"
        return [
            Route(
                "GET",
                "/openapi.json",
                self.show_document,
                says,
                RouteAccess.LOCAL_OR_KEY,
                scope=Scope.READ,
                tag="health",
            )
        ]

    async def show_document(self, _request: web.Request) -> web.Response:
        """Answer with the OpenAPI document."""
        return answer_json(self._document)


def describe_routes(routes: Sequence[Route], version: str, *, local: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1.0 document of these routes; Struct bodies become named components.

    `local`: the server is reached from this machine alone, so that some routes need no token.
    """
    structs = sorted({route.takes for route in routes if _is_struct(route.takes)}, key=lambda kind: kind.__name__)
    shapes, schemas = msgspec.json.schema_components(structs, ref_template=REF)
    for schema in schemas.values():
        if "description" in schema:  # a docstring, which is indented before Python 3.13
            schema["description"] = inspect.cleandoc(schema["description"])
    named = dict(zip(structs, shapes, strict=True))
    operations = [_describe_route(route, named, local=local) for route in routes]
    return build_openapi("Skerry hub", version, _TAGS, operations, {**schemas, "LlmError": LLM_ERROR})


def _is_struct(takes: object) -> bool:
    return isinstance(takes, type) and issubclass(takes, msgspec.Struct)


def _describe_route(route: Route, named: Mapping[Any, dict[str, Any]], *, local: bool) -> ApiOperation:
    """Return the operation of a route; `named` maps Structs to their schema references."""
    body = describe_json_body(named[route.takes], required=route.needs_body) if _is_struct(route.takes) else route.takes
    return ApiOperation(
        method=route.method,
        path=route.path,
        summary=route.summary,
        tag=route.tag,
        token=_token_need(route, local=local),
        description=f"Scope: {route.scope.value}. Callers: {route.access.value}.",
        parameters=route.parameters,
        refusal=route.refusal,
        body=body,
        gives=TEXT if route.plain else route.gives or {"type": "object"},
        content_type=route.plain.partition(";")[0] or "application/json",
        status=route.status,
        links=route.links,
    )


def _token_need(route: Route, *, local: bool) -> TokenNeed:
    if route.access is RouteAccess.OPEN:
        return TokenNeed.NEVER
    free = route.access is RouteAccess.OPEN_IN_PART or (local and route.access in LOCAL_OPEN)
    return TokenNeed.OPTIONAL if free else TokenNeed.ALWAYS
