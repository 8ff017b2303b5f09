"""The hub's web API as one application: every route, its door, and the description of them all.

Rule: a route that is not a `Route` is not served. The order of the checks is: count, one-line errors, host and origin,
no packed bodies, then who asks.
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
    version: str = "0"
    max_body_bytes: int = 16 * 1024 * 1024
    ready_timeout_s: float = 2.0
    body_s: float = 30.0  # a body has to be here within this time
    idle_s: float = 30.0  # a connection that sends no whole request head for so long is closed


class Api:
    """The server: `start` returns the address opened, `stop` ends every request within 2 seconds."""

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
        """The routes for devices, people and mirrors."""
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
        """Listen; `public_url` turns the opened port into what invites carry.

        ExitError(PORT, CONFIG or CREDENTIALS).
        """
        if not self._door.token_file:
            raise ValueError("the hub's door needs a token file: its admin routes are never open")
        await self._runner.setup()
        self._tls = tls_context(self._door)
        address = await open_site(self._runner, self._door, self._tls)
        opened = self._runner.addresses[0]  # a path where the door is a Unix socket
        url = public_url(0 if isinstance(opened, str) else int(opened[1]))
        self._admin.at(url)
        self._context.issuer.at(url)
        self._context.renewals.at(url)
        return address

    async def reload(self) -> None:
        """New connections see the certificate that now lies in the door's files."""
        if self._tls is not None:
            self._tls.load_cert_chain(self._door.tls_cert, self._door.tls_key)

    async def stop(self) -> None:
        await self._runner.cleanup()


def _digest(token: str) -> bytes:
    """Of a token nobody has, where the door has none."""
    return sha256(token.encode()).digest() if token else bytes(32)
