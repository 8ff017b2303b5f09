"""The local HTTP API as one aiohttp application behind its access checks, and the server that runs it.

Rule: every route passes the same middlewares (host name, token, TLS); only `/healthz` and the console's
empty page never need a token.
"""

import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from edge_agent.api.answers import HEARTBEAT_S, AnswerRoutes
from edge_agent.api.description import OpenApiRoutes
from edge_agent.api.health import HealthRoutes
from edge_agent.api.oip import OipRoutes
from edge_agent.api.policy import PolicyRoutes
from edge_agent.api.service import AnswerService, InferLimits
from edge_agent.console.pages import PAGE_ROUTES, page_table
from policies.model.policy import Policy
from wire.http.access import ServerAccess, build_tls_context, load_token
from wire.http.guards import IDLE_TIMEOUT_S, BearerToken, open_site, security_middlewares
from wire.http.server import BoundedRunner

OPEN_ROUTES = frozenset({"/healthz"}) | PAGE_ROUTES
SHUTDOWN_S = 2.0
TOKEN = web.AppKey("token", BearerToken)


def build_app(
    service: AnswerService,
    access: ServerAccess,
    *,
    limits: InferLimits | None = None,
    version: str = "0",
    heartbeat_s: float = HEARTBEAT_S,
    policy: Callable[[], Policy | None] = lambda: None,
) -> web.Application:
    """Assemble the application of all routes. `version`: the server version that it reports.

    `access`: who may call, and from where. `limits`: of inference requests. `policy`: returns the one obeyed now.
    ExitError(CREDENTIALS) if the token file is not private.
    """
    limits = limits or InferLimits()
    token = load_token(access)
    held = BearerToken(token) if token else None
    app = web.Application(
        middlewares=security_middlewares(access, held, OPEN_ROUTES), client_max_size=limits.max_body_bytes
    )
    if held:
        app[TOKEN] = held
    answers = AnswerRoutes(service, heartbeat_s)
    app.add_routes(OipRoutes(service, version, limits).route_table())
    app.add_routes(answers.route_table())
    app.add_routes(PolicyRoutes(policy).route_table())
    app.add_routes(page_table())
    app.add_routes(HealthRoutes(service).route_table())
    app.add_routes(OpenApiRoutes(service, version, protected=bool(token)).route_table())
    app.on_shutdown.append(answers.close_streams)
    return app


class ApiServer:
    """Server of one application on one address, TCP or a Unix socket.

    `idle_s`: a connection that sends no whole request head for so long is closed; an open answer or stream is not idle.
    """

    def __init__(self, app: web.Application, access: ServerAccess, idle_s: float = IDLE_TIMEOUT_S) -> None:
        # `read_body` checks the bodies; an access log would hold ids of answers, and cost more than the answer.
        self._runner = BoundedRunner(
            app, access_log=None, shutdown_timeout=SHUTDOWN_S, auto_decompress=False, keepalive_timeout=idle_s
        )
        self._app = app
        self._access = access
        self._tls: ssl.SSLContext | None = None

    def reload_access(self) -> tuple[str, ...]:
        """Read certificate and token files again, for new connections and requests; the names of those that are new.

        ExitError(CREDENTIALS), with nothing changed, if one cannot be used.
        """
        token, fresh = load_token(self._access), build_tls_context(self._access)
        held = self._app.get(TOKEN)
        if self._tls is not None and fresh is not None:
            self._tls.load_cert_chain(self._access.tls_cert, self._access.tls_key)
        return ("api.token_file",) if held is not None and held.replace(token) else ()

    async def start(self) -> str:
        """Begin to listen, and return the server's URL. ExitError(PORT, CONFIG or CREDENTIALS) if it cannot."""
        await self._runner.setup()
        self._tls = build_tls_context(self._access)
        return await open_site(self._runner, self._access, self._tls)

    async def stop(self) -> None:
        """Stop listening; running requests are ended within 2 seconds, and a Unix socket is removed."""
        await self._runner.cleanup()
        if self._access.unix:
            Path(self._access.unix).unlink(missing_ok=True)
