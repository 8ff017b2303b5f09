"""Whether this process lives (`/healthz`) and whether its models answer right now (`/readyz`).

Rule: ready is measured, never remembered: one fresh engine round trip, shared by all who ask while it runs, so that
asking often costs the engines nothing.
"""

import asyncio

from aiohttp import web

from cloud_hub.api.interface import ApiContext
from cloud_hub.api.merging_routing_bodies import answer
from cloud_hub.api.merging_routing_routes import Door, Route
from cloud_hub.core.merging_web_requests_requests import Probe
from cloud_hub.registry.access import Scope


class Health:
    """`timeout_s`: an engine that takes longer is not ready."""

    def __init__(self, context: ApiContext, timeout_s: float) -> None:
        self._hub = context.hub
        self._engines = context.engines
        self._timeout_s = timeout_s
        self._probing: asyncio.Task[str] | None = None

    def routes(self) -> list[Route]:
        ready = "Whether its models answer right now; 503 with the reason if not"
        return [
            Route(
                "GET", "/healthz", self.live, "Whether this process lives", Door.OPEN, scope=Scope.READ, tag="health"
            ),
            Route("GET", "/readyz", self.ready, ready, Door.HERE, scope=Scope.READ, tag="health"),
        ]

    async def live(self, _request: web.Request) -> web.Response:
        return answer({"live": True})

    async def ready(self, _request: web.Request) -> web.Response:
        """200, or 503 with the reason."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._check(), name="readyz-probe")
        # Shielded: a caller that hangs up must not end the round trip of the others.
        reason = await asyncio.shield(self._probing)
        return answer({"ready": not reason, "reason": reason}, 503 if reason else 200)

    async def close(self, _app: web.Application) -> None:
        if self._probing is not None:
            self._probing.cancel()

    async def _check(self) -> str:
        """Why not, or ""."""
        status = self._hub.status()
        if status.get("draining"):
            return "the hub is stopping"
        for key, reason in (("store_ok", "the database does not answer"), ("link_up", "no link to the broker")):
            if status.get(key) is False:
                return reason
        try:
            async with asyncio.timeout(self._timeout_s):
                probes = await self._engines.probe()
        except TimeoutError:
            return f"the engines did not answer within {self._timeout_s:g} s"
        return _judge(probes)


def _judge(probes: list[Probe]) -> str:
    if not probes:
        return "no model is loaded"
    return next((f"{probe.model} failed" for probe in probes if not probe.ok), "")
