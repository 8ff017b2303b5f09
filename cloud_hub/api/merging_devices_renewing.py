"""`POST /v1/renew` and `POST /v1/retire`: for devices that exist, proven by their identity key; no bearer token.

Rule: these have a gate of their own, so that a flood of enrolments cannot keep devices from renewing.
"""

import time
from collections.abc import Callable

from aiohttp import web

from cloud_hub.api.merging_routing_bodies import answer, read_json
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.enrollment.merging_enrollment_enrol import Rejection
from cloud_hub.enrollment.rate_limit import AttemptLimiter
from cloud_hub.enrollment.renewal import Renewals, RenewRequest, RetireRequest
from cloud_hub.registry.access import Scope
from wire.http.guards import refusal

_NO_STORE = {"Cache-Control": "no-store"}


class Renewing:
    """`now_ms` is hub time; the gate runs on the monotonic clock."""

    def __init__(self, renewals: Renewals, gate: AttemptLimiter, now_ms: Callable[[], int]) -> None:
        self._renewals = renewals
        self._gate = gate
        self._now_ms = now_ms

    def routes(self) -> list[Route]:
        renews, retires = "A device's next certificate", "A device says that it retires"
        scope, tag = Scope.OPERATE, "devices"
        return [
            Route("POST", "/v1/renew", self.renew, renews, Door.OPEN, scope=scope, takes=RenewRequest, tag=tag),
            Route("POST", "/v1/retire", self.retire, retires, Door.OPEN, scope=scope, takes=RetireRequest, tag=tag),
        ]

    async def renew(self, request: web.Request) -> web.Response:
        """200 with the signed reply; 400 bad request, 403 not this device, 429 too many tries."""
        if not self._gate.admit(_address(request), time.monotonic()):
            return _slower()
        asked = await read_json(request, RenewRequest)
        return self._say(request, self._renewals.renew(asked, self._now_ms(), time.monotonic()))

    async def retire(self, request: web.Request) -> web.Response:
        """200 once the device is retired; 403 if it is not this device, or a person has to decide."""
        if not self._gate.admit(_address(request), time.monotonic()):
            return _slower()
        asked = await read_json(request, RetireRequest)
        return self._say(request, self._renewals.retire(asked, self._now_ms()))

    def _say(self, request: web.Request, reply: object) -> web.Response:
        if not isinstance(reply, Rejection):
            return answer(reply, headers=_NO_STORE)
        if reply.invite:
            self._gate.failed(_address(request), time.monotonic())
        if reply.kind == "rate":
            return _slower()
        return refusal(400 if reply.kind == "request" else 403, reply.error)


def _address(request: web.Request) -> str:
    return request.remote or "unix"


def _slower() -> web.Response:
    return refusal(429, "too many requests, wait a minute", {"Retry-After": "60"})
