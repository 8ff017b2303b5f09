"""The hub's web API as one aiohttp application: routes, middlewares, TLS, start and stop.

Rule: a handler that is not described by a `Route` is not served. The order of the checks is: count, one-line errors,
host and origin, no compressed bodies, then authentication.
"""

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from cloud_hub.api.admin import AdminRoutes
from cloud_hub.api.admin_models import DenyRoutes, KeyRoutes, ModelRoutes
from cloud_hub.api.aging import AgingCollector
from cloud_hub.api.alarms import AlarmRoutes
from cloud_hub.api.auth import Authenticator, auth_middleware
from cloud_hub.api.batches import list_job_routes
from cloud_hub.api.browser import SessionRoutes
from cloud_hub.api.costs import CostRoutes
from cloud_hub.api.devices import EnrollRoutes, ErasureRoutes, RenewRoutes
from cloud_hub.api.hubs import HubRoutes
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.language_models import LanguageModelRoutes, error_form_middleware
from cloud_hub.api.llm_operation import LlmAdminRoutes, LlmCollector
from cloud_hub.api.monitoring import HealthRoutes, MetricsRoutes, RolloutCollector
from cloud_hub.api.oip import OipRoutes
from cloud_hub.api.oip_repository import ModelRepositoryRoutes
from cloud_hub.api.policies import PolicyRoutes
from cloud_hub.api.public import LedgerRoutes, TufRoutes
from cloud_hub.api.rollouts import RolloutRoutes
from cloud_hub.api.routing import ROUTE_SUMMARIES, OpenApiRoutes, Route
from wire.http.access import Network, ServerAccess, build_tls_context, load_token
from wire.http.callers import make_caller_middleware
from wire.http.guards import IDLE_TIMEOUT_S, open_site, security_middlewares
from wire.http.path_prefix import PathPrefix
from wire.http.server import NO_PREFIX, BoundedRunner
from wire.process.exit_codes import ExitCode, ExitError

SHUTDOWN_S = 2.0


@dataclass(frozen=True)
class ApiLimits:
    """Limits of the web API.

    `version`: of the program, as reported; `max_body_bytes`: of an inference request; `ready_timeout_s`: for the
    engines to answer a readiness probe; `body_s`: for a body to arrive; `idle_s`: for the next request head on an open
    connection. `trusted_proxies`: networks of the proxies that say who called; `prefix`: the path
    below which a proxy serves the hub.
    """

    version: str = "0"
    max_body_bytes: int = 16 * 1024 * 1024
    ready_timeout_s: float = 2.0
    body_s: float = 30.0  # a body has to be here within this time
    idle_s: float = IDLE_TIMEOUT_S
    trusted_proxies: tuple[Network, ...] = ()
    prefix: PathPrefix = NO_PREFIX


class WebPages(Protocol):
    """Pages for people that the same server serves beside the API; no part of its description."""

    def routes(self) -> list[Route]:
        """Return the pages' routes."""

    def make_middleware(self) -> Middleware:
        """Return the middleware that answers a person who opened an address that there is not."""

    async def open(self, app: web.Application) -> None:
        """Begin what goes on beside the requests."""

    async def close(self, app: web.Application) -> None:
        """End what is still open, at shutdown."""


PagesMaker = Callable[[Authenticator], WebPages]


class ApiServer:
    """The web server: `start` returns the address opened, `stop` ends every request within 2 seconds.

    `context` is what the routes need of the hub, `access` where to listen, `make_pages`: of what people see, beside it.
    `routes` are all described routes, `app` the aiohttp application. There is no access log; every change and refusal
    is audited instead.
    """

    def __init__(
        self, context: ApiContext, access: ServerAccess, limits: ApiLimits, make_pages: PagesMaker | None = None
    ) -> None:
        self._access = access
        self._tls: ssl.SSLContext | None = None
        self._context = context
        self._admin = AdminRoutes(context, access)
        others = (
            RolloutCollector(context.rollouts, context.now_ms),
            AgingCollector(context, access.tls_cert),
            LlmCollector(context.language_models),
        )
        metrics = MetricsRoutes(context, *others)
        health = HealthRoutes(context, limits.ready_timeout_s)
        rooms = [
            ModelRepositoryRoutes(context).routes(),
            OipRoutes(context, limits.version, (limits.max_body_bytes, limits.body_s)).routes(),
            list_job_routes(context, context.jobs, (limits.max_body_bytes, limits.body_s)) if context.jobs else [],
            LanguageModelRoutes(context.language_models, context.observer, limits.body_s).routes(),
            health.routes(),
            metrics.routes(),
        ]
        self.entrance = entrance = _make_entrance(context, access, limits.prefix)
        rooms += [*self._build_routes(context, limits.version), SessionRoutes(entrance).routes()]
        self.routes = [route for room in rooms for route in room]
        self.routes += OpenApiRoutes(self.routes, limits.version, local=access.local).routes()
        pages = make_pages(entrance) if make_pages else None
        served = [*self.routes, *(pages.routes() if pages else [])]
        _check_prefix(limits.prefix, served)
        checks = [
            make_caller_middleware(limits.trusted_proxies),
            metrics.counting_middleware(),
            *([pages.make_middleware()] if pages else []),
            error_form_middleware(),
            *security_middlewares(access, None, frozenset()),
            auth_middleware(entrance, served),
        ]
        self.app = web.Application(middlewares=checks, client_max_size=limits.max_body_bytes)
        self.app[ROUTE_SUMMARIES] = {f"{route.method} {route.canonical}": route.summary for route in served}
        self.app.add_routes([route.aiohttp_route for route in served])
        self.app.on_shutdown.append(health.close)
        if pages:
            self.app.on_startup.append(pages.open)
            self.app.on_shutdown.append(pages.close)
        # No access log: paths hold device names, and a line costs more than most answers.
        self._runner = BoundedRunner(
            self.app,
            prefix=limits.prefix,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
            auto_decompress=False,
            keepalive_timeout=limits.idle_s,
            handler_cancellation=True,  # work for a caller that has gone is thrown away
        )

    def _build_routes(self, context: ApiContext, release: str) -> list[list[Route]]:
        """Return the routes for devices, operators and mirrors."""
        return [
            EnrollRoutes(context).routes(),
            RenewRoutes(context).routes(),
            TufRoutes(context.repository).routes() if context.repository else [],
            self._admin.routes(),
            KeyRoutes(context).routes(),
            DenyRoutes(context).routes(),
            ErasureRoutes(context).routes(),
            LedgerRoutes(context.ledger).routes(),
            ModelRoutes(context).routes(),
            CostRoutes(context).routes(),
            HubRoutes(context, release).routes(),
            AlarmRoutes(context).routes(),
            PolicyRoutes(context).routes(),
            LlmAdminRoutes(context.language_models).routes(),
            RolloutRoutes(context).routes(),
        ]

    async def start(self, public_url: Callable[[int], str]) -> str:
        """Listen; `public_url` turns the opened port into what invites carry. Returns the address.

        ExitError(PORT, CONFIG or CREDENTIALS). ValueError if no token file is set.
        """
        if not self._access.token_file:
            raise ValueError("the hub's web API needs a token file: its admin routes are never open")
        await self._runner.setup()
        self._tls = build_tls_context(self._access)
        address = await open_site(self._runner, self._access, self._tls)
        opened = self._runner.addresses[0]  # a path for a Unix socket
        url = public_url(0 if isinstance(opened, str) else int(opened[1]))
        self._admin.set_url(url)
        self._context.issuer.set_url(url)
        self._context.renewals.set_url(url)
        return address

    async def reload_certificate(self) -> None:
        """Load the certificate files again, for new connections."""
        if self._tls is not None:
            self._tls.load_cert_chain(self._access.tls_cert, self._access.tls_key)

    async def stop(self) -> None:
        """Close the server and end open requests."""
        await self._runner.cleanup()


def _check_prefix(prefix: PathPrefix, routes: Iterable[Route]) -> None:
    """ExitError(CONFIG) if the prefix begins as a path of the hub: behind a proxy that strips it both would be one."""
    if prefix.text and any(route.path.split("/")[1] == prefix.first_segment for route in routes):
        line = f"api.path_prefix: the hub has paths of its own below /{prefix.first_segment}: take another one"
        raise ExitError(ExitCode.CONFIG, line)


def _make_entrance(context: ApiContext, access: ServerAccess, prefix: PathPrefix) -> Authenticator:
    return Authenticator(
        _token_digest(load_token(access)),
        access.local,
        context.keys,
        context.audit,
        context.now_ms,
        context.hears_region,
        context.sessions,
        prefix,
    )


def _token_digest(token: str) -> bytes:
    """Return the SHA-256 of the admin token, or a value that no token has where there is none."""
    return sha256(token.encode()).digest() if token else bytes(32)
