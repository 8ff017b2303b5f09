"""`/v1/admin/keys` and `/v1/admin/audit`: keys of tenants are made, listed and revoked with the admin token alone."""

from typing import Any

import msgspec
from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.merging_routing_bodies import answer, read_json
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.registry.access import AccessError, Key, Scope, Wanted
from wire.http.merging_oip_oip import OipError

SHOWN_ENTRIES = 200
_PATH = "/v1/admin/keys"


class Granting:
    """`context.keys` keeps them, `context.audit` tells what was done with them."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        whole, admin, tag = Door.WHOLE, Scope.ADMIN, "access"
        makes, takes_back = "A new key; the answer alone shows its token", "Revoke a key: from now on it opens nothing"
        return [
            Route("GET", _PATH, self.keys, "Every key, without its token", whole, scope=admin, tag=tag),
            Route("POST", _PATH, self.create, makes, whole, scope=admin, takes=Wanted, status=201, tag=tag),
            Route("DELETE", _PATH + "/{key}", self.revoke, takes_back, whole, scope=admin, tag=tag),
            Route(
                "GET", "/v1/admin/audit", self.audit, "The last changes and refusals", whole, scope=Scope.READ, tag=tag
            ),
        ]

    async def keys(self, _request: web.Request) -> web.Response:
        now_ms = self._context.now_ms()
        return answer({"keys": [key_json(key, now_ms) for key in self._context.keys.all()]})

    async def create(self, request: web.Request) -> web.Response:
        wanted = await read_json(request, Wanted)
        now_ms = self._context.now_ms()
        try:
            key, token = self._context.keys.create(wanted, now_ms)
        except AccessError as error:
            raise OipError(400, str(error)) from None
        return answer({**key_json(key, now_ms), "token": token}, 201, {"Cache-Control": "no-store"})

    async def revoke(self, request: web.Request) -> web.Response:
        now_ms = self._context.now_ms()
        try:
            return answer(key_json(self._context.keys.revoke(request.match_info["key"], now_ms), now_ms))
        except AccessError as error:
            raise OipError(404, str(error)) from None

    async def audit(self, _request: web.Request) -> web.Response:
        """Oldest first."""
        return answer({"entries": [msgspec.to_builtins(entry) for entry in self._context.audit.last(SHOWN_ENTRIES)]})


def key_json(key: Key, now_ms: int) -> dict[str, Any]:
    """For people and programs; `tenant` "" is the whole hub."""
    state = "good" if key.good(now_ms) else "revoked" if key.revoked_ms else "ended"
    facts = {"key": key.id, "name": key.name, "tenant": key.tenant, "scopes": [scope.value for scope in key.scopes]}
    return {**facts, "state": state, "made_ms": key.made_ms, "ends_ms": key.ends_ms, "revoked_ms": key.revoked_ms}
