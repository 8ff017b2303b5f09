"""The hub's web API as one application: every route, and which of them a caller may use without the admin token.

Rule: admin routes need the token always; enrolment only its invite, renewal its proof, the update repository nothing;
the rest is free on this machine and needs the token from anywhere else.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from cloud_hub.api import mirror
from cloud_hub.api.admin import Admin
from cloud_hub.api.health import Health
from cloud_hub.api.joining import Joining
from cloud_hub.api.metrics import Metrics
from cloud_hub.api.oip import Models
from cloud_hub.api.parts import Parts
from cloud_hub.api.renewing import ROUTES, Renewing
from wire.doors import Door, guards, open_site, tls_context, token_of

ALWAYS_OPEN = frozenset({"/healthz", "/v1/enrol", *ROUTES, *mirror.ROUTES})
SHUTDOWN_S = 2.0


@dataclass(frozen=True)
class Limits:
    version: str = "0"
    max_body_bytes: int = 16 * 1024 * 1024
    ready_timeout_s: float = 2.0


class Api:
    """The server: `start` returns the address opened, `stop` ends every request within 2 seconds."""

    def __init__(self, parts: Parts, door: Door, limits: Limits) -> None:
        self._door = door
        self._tls: ssl.SSLContext | None = None
        self._parts = parts
        self._admin = Admin(parts, door)
        metrics, health = Metrics(parts.hub, parts.registry), Health(parts.hub, limits.ready_timeout_s)
        free = [
            *Models(parts.hub, limits.version, limits.max_body_bytes).routes(),
            *health.routes(),
            *metrics.routes(),
        ]
        joining = [
            *Joining(parts.issuer, parts.gate, parts.now_ms).routes(),
            *Renewing(parts.renewals, parts.renewal_gate, parts.now_ms).routes(),
        ]
        mirrored = mirror.Mirror(parts.repository).routes() if parts.repository else []
        opened = ALWAYS_OPEN | ({route.path for route in free} if door.local else frozenset())
        self.app = web.Application(
            middlewares=[metrics.counting(), *guards(door, token_of(door), opened)],
            client_max_size=limits.max_body_bytes,
        )
        self.app.add_routes([*free, *joining, *mirrored, *self._admin.routes()])
        self.app.on_shutdown.append(health.close)
        # No access log: paths hold device names, and a line costs more than most answers.
        self._runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=SHUTDOWN_S, auto_decompress=False)

    async def start(self, public_url: Callable[[int], str]) -> str:
        """Listen; `public_url` turns the opened port into what invites carry. Stop(PORT, CONFIG or CREDENTIALS)."""
        if not self._door.token_file:
            raise ValueError("the hub's door needs a token file: its admin routes are never open")
        await self._runner.setup()
        self._tls = tls_context(self._door)
        address = await open_site(self._runner, self._door, self._tls)
        opened = self._runner.addresses[0]  # a path where the door is a Unix socket
        url = public_url(0 if isinstance(opened, str) else int(opened[1]))
        self._admin.url = url
        self._parts.issuer.at(url)
        self._parts.renewals.at(url)
        return address

    async def reload(self) -> None:
        """New connections see the certificate that now lies in the door's files."""
        if self._tls is not None:
            self._tls.load_cert_chain(self._door.tls_cert, self._door.tls_key)

    async def stop(self) -> None:
        await self._runner.cleanup()
