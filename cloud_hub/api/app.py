"""The hub's web API as one aiohttp application: routes, middlewares, TLS, start and stop.

Rule: a handler that is not described by a `Route` is not served. The order of the checks is: count, one-line errors,
host and origin, no compressed bodies, then authentication.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from aiohttp import web

from cloud_hub.api.admin import Admin
from cloud_hub.api.admin_models import Granting, Ordering, Retiring
from cloud_hub.api.auth import Entrance, guarding
from cloud_hub.api.devices import Erasing, Joining, Renewing
from cloud_hub.api.interface import ApiContext
from cloud_hub.api.monitoring import Health, Metrics, RolloutCollector
from cloud_hub.api.oip import Models
from cloud_hub.api.oip_repository import RepositoryRoutes
from cloud_hub.api.public import Ledger, Mirror
from cloud_hub.api.rollouts import Rolling
from cloud_hub.api.routing import Described, Route
from wire.http.guards import ServerAccess, open_site, security_middlewares, tls_context, token_of

SHUTDOWN_S = 2.0


@dataclass(frozen=True)
class Limits:
    """Limits of the web API.

    `version`: of the program, as reported; `max_body_bytes`: of an inference request; `ready_timeout_s`: for the
    engines to answer a readiness probe; `body_s`: for a body to arrive; `idle_s`: for the next request head on an open
    connection.
    """

    version: str = "0"
    max_body_bytes: int = 16 * 1024 * 1024
    ready_timeout_s: float = 2.0
    body_s: float = 30.0  # a body has to be here within this time
    idle_s: float = 30.0  # a connection that sends no whole request head for so long is closed


class Api:
    """The web server: `start` returns the address opened, `stop` ends every request within 2 seconds.

    `context` is what the routes need of the hub, `door` where to listen. `routes` are all described routes, `app` the
    aiohttp application. There is no access log; every change and refusal is audited instead.
    """

    def __init__(self, context: ApiContext, door: ServerAccess, limits: Limits) -> None:
        self._door = door
        self._tls: ssl.SSLContext | None = None
        self._context = context
        self._admin = Admin(context, door)
        metrics = Metrics(context, RolloutCollector(context.rollouts, context.now_ms))
        health = Health(context, limits.ready_timeout_s)
        rooms = [
            RepositoryRoutes(context).routes(),
            Models(context, limits.version, (limits.max_body_bytes, limits.body_s)).routes(),
            health.routes(),
            metrics.routes(),
        ]
        self.routes = [*(route for room in (*rooms, *self._rooms(context)) for route in room)]
        self.routes += Described(self.routes, limits.version).routes()
        entrance = Entrance(_digest(token_of(door)), door.local, context.keys, context.audit, context.now_ms)
        checks = [metrics.counting(), *security_middlewares(door, "", frozenset()), guarding(entrance, self.routes)]
        self.app = web.Application(middlewares=checks, client_max_size=limits.max_body_bytes)
        self.app.add_routes([route.served for route in self.routes])
        self.app.on_shutdown.append(health.close)
        # No access log: paths hold device names, and a line costs more than most answers.
        self._runner = web.AppRunner(
            self.app,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
            auto_decompress=False,
            keepalive_timeout=limits.idle_s,
            handler_cancellation=True,  # work for a caller that has gone is thrown away
        )

    def _rooms(self, context: ApiContext) -> list[list[Route]]:
        """Return the routes for devices, operators and mirrors."""
        return [
            Joining(context.issuer, context.gate, context.now_ms).routes(),
            Renewing(context.renewals, context.renewal_gate, context.now_ms).routes(),
            Mirror(context.repository).routes() if context.repository else [],
            self._admin.routes(),
            Granting(context).routes(),
            Ordering(context).routes(),
            Erasing(context).routes(),
            Ledger(context.ledger).routes(),
            Retiring(context).routes(),
            Rolling(context).routes(),
        ]

    async def start(self, public_url: Callable[[int], str]) -> str:
        """Listen; `public_url` turns the opened port into what invites carry. Returns the address.

        ExitError(PORT, CONFIG or CREDENTIALS). ValueError if no token file is set.
        """
        if not self._door.token_file:
            raise ValueError("the hub's door needs a token file: its admin routes are never open")
        await self._runner.setup()
        self._tls = tls_context(self._door)
        address = await open_site(self._runner, self._door, self._tls)
        opened = self._runner.addresses[0]  # a path for a Unix socket
        url = public_url(0 if isinstance(opened, str) else int(opened[1]))
        self._admin.at(url)
        self._context.issuer.at(url)
        self._context.renewals.at(url)
        return address

    async def reload(self) -> None:
        """Load the certificate files again, for new connections."""
        if self._tls is not None:
            self._tls.load_cert_chain(self._door.tls_cert, self._door.tls_key)

    async def stop(self) -> None:
        """Close the server and end open requests."""
        await self._runner.cleanup()


def _digest(token: str) -> bytes:
    """Return the SHA-256 of the admin token, or a value that no token has where there is none."""
    return sha256(token.encode()).digest() if token else bytes(32)
