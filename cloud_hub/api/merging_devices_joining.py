"""`POST /v1/enrol`: the one route that an invite opens. No bearer token, few bytes, and a gate before any work."""

import time
from collections.abc import Callable

from aiohttp import web

from cloud_hub.api.merging_routing_bodies import answer, read_json
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.enrollment.merging_enrollment_enrol import EnrolRequest, Issuer, Rejection
from cloud_hub.enrollment.rate_limit import AttemptLimiter
from cloud_hub.registry.access import Scope
from wire.http.guards import refusal


class Joining:
    """`now_ms` is hub time; the gate runs on the monotonic clock."""

    def __init__(self, issuer: Issuer, gate: AttemptLimiter, now_ms: Callable[[], int]) -> None:
        self._issuer = issuer
        self._gate = gate
        self._now_ms = now_ms

    def routes(self) -> list[Route]:
        says = "A new device proves its keys and its invite, and gets its certificate"
        return [
            Route(
                "POST", "/v1/enrol", self.enrol, says, Door.OPEN, scope=Scope.OPERATE, takes=EnrolRequest, tag="devices"
            )
        ]

    async def enrol(self, request: web.Request) -> web.Response:
        """200 with the signed reply; 400 bad request, 403 bad invite, 429 too many tries."""
        address = request.remote or "unix"
        if not self._gate.admit(address, time.monotonic()):
            return refusal(429, "too many enrolments are tried, wait a minute", {"Retry-After": "60"})
        asked = await read_json(request, EnrolRequest)
        reply = self._issuer.enrol(asked, self._now_ms())
        if not isinstance(reply, Rejection):
            return answer(reply, headers={"Cache-Control": "no-store"})
        if reply.invite:
            self._gate.failed(address, time.monotonic())
        return refusal(403 if reply.invite else 400, reply.error)
