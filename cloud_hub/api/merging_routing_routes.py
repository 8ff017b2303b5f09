"""A route of the web API as a value: where it is, who may use it, what it takes and gives.

Rule: the doors (`callers`) and `openapi.json` (`openapi`) are both made from these. A route says who may use it; there
is no default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from cloud_hub.registry.access import Scope


class Door(StrEnum):
    """How a caller gets to a route."""

    OPEN = "open"  # nobody is asked who he is; the route has its own proof, or nothing to hide
    HERE = "here"  # on this machine nobody is asked, from elsewhere as KEY
    KEY = "key"  # the admin token or a key with the route's scope
    WHOLE = "whole"  # as KEY, but never a tenant's key: it concerns the whole hub
    WHOLE_HERE = "whole_here"  # as WHOLE, but on this machine nobody is asked


@dataclass(frozen=True)
class Route:
    """`takes`: the Struct of the JSON body, or a schema of a body in several forms. `gives`: of the answer.

    `status` of success; `plain`: the content type of an answer that is no JSON. `tag` groups routes for a reader.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    door: Door = Door.WHOLE
    scope: Scope = Scope.ADMIN
    takes: Any = None
    gives: Any = None
    status: int = 200
    plain: str = ""
    tag: str = "operate"
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def canonical(self) -> str:
        """As aiohttp names it: without the patterns of its variables."""
        return self.path.replace(":.+}", "}")

    @property
    def served(self) -> web.RouteDef:
        return web.route(self.method, self.path, self.handler, **({"allow_head": True} if self.method == "GET" else {}))
