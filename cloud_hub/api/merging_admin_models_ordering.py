"""`/v1/admin/deny-all`: orders a person gives for good. Written before anybody is told."""

from typing import Any

import msgspec
from aiohttp import web

from cloud_hub.api.auth import caller_of
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.merging_routing_bodies import answer, read_json
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.registry.access import Scope
from cloud_hub.registry.orders import Notice
from wire.errors import LocalError
from wire.http.merging_oip_oip import OipError


class DenyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`scope`: a device's id, a tenant, or "" for everybody. `why`: one line, shown on the devices."""

    why: str
    scope: str = ""


class Ordering:
    """`context.orders` keeps them, `context.announcer` tells them."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        path, denies = "/v1/admin/deny-all", "From now on nothing leaves the devices of this scope"
        return [
            Route("GET", path, self.notices, "The notices that deny all", Door.KEY, scope=Scope.READ),
            Route("POST", path, self.deny_all, denies, Door.KEY, scope=Scope.OPERATE, takes=DenyRequest, status=201),
        ]

    async def notices(self, request: web.Request) -> web.Response:
        """A tenant's key sees its own, and what concerns everybody."""
        caller = caller_of(request)
        shown = [n for n in self._context.orders.notices if not n.scope or caller.sees(n.scope.partition("--")[0])]
        return answer({"notices": [order_json(notice) for notice in shown]})

    async def deny_all(self, request: web.Request) -> web.Response:
        """201 once it is on disk and the devices that are heard have been told."""
        asked = await read_json(request, DenyRequest)
        if not caller_of(request).sees(asked.scope.partition("--")[0]):
            raise OipError(403, "this key belongs to another tenant")
        try:
            notice = self._context.orders.deny_all(asked.scope, asked.why, self._context.now_ms())
        except LocalError as error:
            raise OipError(400, str(error)) from None
        met = [device.id for device in self._context.registry.devices() if device.heard and notice.meets(device.id)]
        self._context.announcer.announce(notice, met)
        return answer(order_json(notice, len(met)), 201)


def order_json(notice: Notice, told: int | None = None) -> dict[str, Any]:
    """For people: `scope` in words, and to how many devices it was sent just now."""
    facts = {"counter": notice.counter, "scope": notice.scope or "everybody", "why": notice.why}
    return {**facts, "issued_ms": notice.issued_ms, **({} if told is None else {"told": told})}
