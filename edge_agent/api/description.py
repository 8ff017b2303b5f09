"""HTTP route of the agent's own description: `/openapi.json`.

Rule: what makes the document is imported when somebody asks: most agents are never asked.
"""

from aiohttp import web

from edge_agent.api.service import AnswerService


class OpenApiRoutes:
    """Route `/openapi.json`. `version`: of the server; `protected`: it asks for a token, but for `/healthz`."""

    def __init__(self, service: AnswerService, version: str, *, protected: bool) -> None:
        self._service = service
        self._version = version
        self._protected = protected

    def route_table(self) -> list[web.RouteDef]:
        """The route with its handler, for `web.Application.add_routes`."""
        return [web.get("/openapi.json", self.get_document)]

    async def get_document(self, _: web.Request) -> web.Response:
        """`GET /openapi.json`: what this agent takes and gives."""
        from edge_agent.api.openapi import encode_document  # noqa: PLC0415 - see the rule above

        document = encode_document(self._service.manifest, self._version, protected=self._protected)
        return web.Response(body=document, content_type="application/json")
