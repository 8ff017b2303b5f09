"""The local HTTP API as one application behind its door checks.

Law: every route passes the same doors; the only one that ever needs no token is `/healthz`.
"""

from pathlib import Path

from aiohttp import web

from edge_agent.api.answers import HEARTBEAT_S, AnswerRoutes
from edge_agent.api.health import HealthRoutes
from edge_agent.api.oip import InferLimits, OipRoutes
from edge_agent.api.service import AnswerService
from wire.http.guards import ServerAccess, open_site, security_middlewares, token_of

OPEN_ROUTES = frozenset({"/healthz"})
SHUTDOWN_S = 2.0


def build_app(
    service: AnswerService,
    door: ServerAccess,
    *,
    limits: InferLimits | None = None,
    version: str = "0",
    heartbeat_s: float = HEARTBEAT_S,
) -> web.Application:
    """ExitError(CREDENTIALS) if the door's token file is not private."""
    limits = limits or InferLimits()
    app = web.Application(
        middlewares=security_middlewares(door, token_of(door), OPEN_ROUTES), client_max_size=limits.max_body_bytes
    )
    answers = AnswerRoutes(service, heartbeat_s)
    app.add_routes(OipRoutes(service, version, limits).routes())
    app.add_routes(answers.routes())
    app.add_routes(HealthRoutes(service).routes())
    app.on_shutdown.append(answers.close)
    return app


class ApiServer:
    """Serves an application at a door: `start` returns the address, `stop` ends every request within 2 seconds."""

    def __init__(self, app: web.Application, door: ServerAccess) -> None:
        # Bodies are checked by `read_body`; access lines would hold ids of answers, and cost more than the answer.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, auto_decompress=False)
        self._door = door

    async def start(self) -> str:
        """ExitError(PORT, CONFIG or CREDENTIALS) if the door cannot be opened."""
        await self._runner.setup()
        return await open_site(self._runner, self._door)

    async def stop(self) -> None:
        await self._runner.cleanup()
        if self._door.unix:
            Path(self._door.unix).unlink(missing_ok=True)
