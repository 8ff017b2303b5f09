"""`POST /v1/erase`: a device lets a subject be forgotten; `GET /v1/admin/aggregates`: what is left of verdicts.

Rule: an erasure is answered when it is on disk, with a tombstone that the hub signed.
"""

import time

from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.merging_routing_bodies import answer, read_json
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.enrollment.erasure import EraseRequest, Erasures, signed, stone
from cloud_hub.enrollment.merging_enrollment_enrol import Rejection
from cloud_hub.registry.access import Scope
from cloud_hub.storage.merging_retention_aggregates import published
from cloud_hub.storage.store import StoreError
from wire.http.guards import refusal

DAY_MS = 86_400_000


class Erasing:
    """It shares the gate of renewals: both are for devices that exist."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._erasures = Erasures(context.registry)

    def routes(self) -> list[Route]:
        erases, left = "A device lets a subject be forgotten", "Verdicts of each label, model and day that is over"
        return [
            Route(
                "POST",
                "/v1/erase",
                self.erase,
                erases,
                Door.OPEN,
                scope=Scope.OPERATE,
                takes=EraseRequest,
                tag="devices",
            ),
            Route("GET", "/v1/admin/aggregates", self.aggregates, left, Door.WHOLE, scope=Scope.READ),
        ]

    async def erase(self, request: web.Request) -> web.Response:
        """200 with the tombstone; 403 if it is not this device, 429 too many tries, 503 if it could not be written."""
        gate, where = self._context.renewal_gate, request.remote or "unix"
        if not gate.admit(where, time.monotonic()):
            return refusal(429, "too many requests, wait a minute", {"Retry-After": "60"})
        asked = self._erasures.asked(await read_json(request, EraseRequest), self._context.now_ms())
        if isinstance(asked, Rejection):
            if asked.invite:
                gate.failed(where, time.monotonic())
            return refusal(403, asked.error)
        try:
            buried = await self._context.store.erase(asked)
        except StoreError:
            return refusal(503, "nothing was erased: the hub cannot write, ask again", {"Retry-After": "10"})
        facts = self._context.hub.status()
        text = stone(buried, str(facts["hub"]), str(facts["region"]))
        return answer(signed(text, self._context.store.testify(text)), headers={"Cache-Control": "no-store"})

    async def aggregates(self, _request: web.Request) -> web.Response:
        """Rare labels are kept back: see `cloud_hub.storage.merging_retention_aggregates`."""
        tallies = await self._context.store.tallies()
        return answer({"aggregates": published(tallies, self._context.now_ms() // DAY_MS)})
