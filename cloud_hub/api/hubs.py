"""Route `GET /v1/admin/hubs`: the hubs of the region, who holds what, since when, and how late each is."""

import asyncio
from collections.abc import Sequence

from aiohttp import web
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.routing import Route, RouteAccess, answer_json
from cloud_hub.database.errors import explain_fault
from cloud_hub.region.overview import HubEntry, describe_alone
from cloud_hub.registry.access import Scope
from wire.http.oip import OipError


class HubRoutes:
    """The route. `release`: version of this program."""

    def __init__(self, context: ApiContext, release: str) -> None:
        self._context = context
        self._release = release

    def routes(self) -> list[Route]:
        """Return the route of this group."""
        says = "The hubs of the region, with the shards and tasks of each"
        return [Route("GET", "/v1/admin/hubs", self.list_hubs, says, RouteAccess.HUB_KEY, scope=Scope.READ)]

    async def list_hubs(self, _request: web.Request) -> web.Response:
        """Answer with every hub: 200; 503 while the database of the region does not answer."""
        return answer_json({"hubs": await self.read_hubs()})

    async def read_hubs(self) -> Sequence[HubEntry]:
        """Return every hub of the region. OipError(503) while its database does not answer."""
        overview = self._context.overview
        if overview is None:
            return [self._describe_alone()]
        try:
            return await asyncio.to_thread(overview.read)
        except SQLAlchemyError as error:
            raise OipError(503, f"of the region: {explain_fault(error)}") from None

    def _describe_alone(self) -> HubEntry:
        status = self._context.hub.status()
        now_ms = int(status["time_ms"])
        since_ms = now_ms - int(status["uptime_s"] * 1000)
        return describe_alone(status["member"], since_ms, now_ms, self._release, draining=status["draining"])
