"""HTTP routes of the agent's health: liveness, readiness, status, update hint, and Prometheus metrics."""

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from edge_agent.api.service import AnswerService
from wire.http.oip import OipError

if TYPE_CHECKING:
    from edge_agent.api.metrics import AgentMetrics


class HealthRoutes:
    """Routes `/healthz` (the event loop runs), `/readyz` (a sample would be answered now), `/v1/status`, `/metrics`."""

    def __init__(self, service: AnswerService) -> None:
        self._service = service
        self._metrics: AgentMetrics | None = None

    def route_table(self) -> list[web.RouteDef]:
        """All routes with their handlers, for `web.Application.add_routes`."""
        return [
            web.get("/healthz", self.get_live),
            web.get("/readyz", self.get_ready),
            web.get("/v1/status", self.get_status),
            web.post("/v1/refresh", self.post_refresh),
            web.get("/metrics", self.get_metrics),
        ]

    async def get_live(self, _: web.Request) -> web.Response:
        """`GET /healthz`: 200 whenever the event loop runs."""
        return _json_response(200, {"live": True})

    async def get_ready(self, _: web.Request) -> web.Response:
        """`GET /readyz`: 503 in mode `disabled` and without a model.

        A lost link or a full disk does not stop local answers, so the agent stays ready.
        """
        ready = self._service.manifest is not None and self._service.status().get("mode") != "disabled"
        return _json_response(200 if ready else 503, {"ready": ready})

    async def post_refresh(self, _: web.Request) -> web.Response:
        """`POST /v1/refresh`: look for updates soon; the outcome appears in the status.

        409 where this device has no update repository.
        """
        if not self._service.refresh():
            raise OipError(409, _NO_UPDATES)
        return _json_response(202, {"refresh": "asked"})

    async def get_status(self, _: web.Request) -> web.Response:
        """`GET /v1/status`: the agent's whole status as JSON."""
        return _json_response(200, self._service.status())

    async def get_metrics(self, _: web.Request) -> web.Response:
        """`GET /metrics`: counters, gauges and alarms in the Prometheus text format."""
        if self._metrics is None:
            # 1.3 MB, for devices that are scraped
            from edge_agent.api.metrics import AgentMetrics  # noqa: PLC0415

            self._metrics = AgentMetrics(self._service)
        return web.Response(body=self._metrics.encode_text(), headers={"Content-Type": self._metrics.content_type})


_NO_UPDATES = (
    "this device takes no updates: they are switched off, or it was enrolled before its hub had signing keys; then, at"
    " the hub: skerry devices suspend DEVICE; skerry hub invite DEVICE --replace; and enrol it anew"
)


def _json_response(status: int, data: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(data), content_type="application/json")
