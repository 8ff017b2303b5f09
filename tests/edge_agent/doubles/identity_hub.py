"""Identity endpoints of a real hub behind a small TLS server: enrol, renew, retire, erase.

`change` alters a reply in transit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_hub.enrollment.enrollment import EnrollmentService, EnrolRequest, Rejection, encode_invite
from cloud_hub.enrollment.erasure import EraseRequest, ErasureService, attach_signature, build_tombstone
from cloud_hub.enrollment.renewal import DeviceRetireRequest, RenewalService, RenewRequest
from cloud_hub.enrollment.replies import BrokerAddress, HubAddress
from cloud_hub.registry.registry import DeviceInvitation, Registry
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import HubCard
from cloud_hub.storage.jobs import StoreJob
from cloud_hub.storage.store import Store
from edge_agent.identity.enrollment import enrol_device
from edge_agent.identity.identity import Identity
from wire.http.access import ServerAccess
from wire.http.guards import error_response, open_site
from wire.protocol.sealing import STATEMENT_TAG

DEVICE = "demo--cam-1"
SIGNING = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
HUB = HubCard("hub-1", "local", b"h" * 32, SIGNING.public_key().public_bytes_raw())
Change = Callable[[dict[str, Any]], Any]


class IdentityHub:
    """`now_ms`: hub time. `replies`: every good reply, as sent. `store`: of questions; it is full while `away`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.registry = Registry.open(folder / "devices.db")
        self.authorities = RotatingAuthority.open(folder, utc_now())
        self.place = HubAddress(BrokerAddress("127.0.0.1", 18883), (HUB,))
        self.issuer = EnrollmentService(self.registry, self.authorities, self.place)
        self.renewals = RenewalService(self.registry, self.authorities, self.place)
        self.change: Change = lambda reply: reply
        self.replies: list[dict[str, Any]] = []
        self.store = Store.open("sqlite://")
        self.erasures = ErasureService(self.registry)
        self.away = False
        self.asked = 0
        self.now_ms = int(utc_now().timestamp() * 1000)
        self.url = ""

    def live(self, seconds: float) -> None:
        self.authorities.set_device_life(timedelta(seconds=seconds))

    def invite(self, *hardware: str, **changes: Any) -> str:
        token = self.registry.invite(DeviceInvitation(DEVICE, hardware), self.now_ms, 3600.0).token
        facts: dict[str, Any] = {"url": self.url, "ca_sha256": self.authorities.sha256, "token": token}
        return encode_invite(**{**facts, "device": DEVICE, **changes})

    async def enrol(self, folder: Path, hardware: str = "") -> Identity:
        return await asyncio.to_thread(enrol_device, self.invite(), folder, hardware)

    async def on_enrol(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=EnrolRequest)
        return self._say(self.issuer.enrol_device(asked, self.now_ms))

    async def on_renew(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=RenewRequest)
        return self._say(self.renewals.renew(asked, self.now_ms, asyncio.get_running_loop().time()))

    async def on_retire(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=DeviceRetireRequest)
        return self._say(self.renewals.retire(asked, self.now_ms))

    async def on_erase(self, request: web.Request) -> web.Response:
        wish = self.erasures.check_request(msgspec.json.decode(await request.read(), type=EraseRequest), self.now_ms)
        if self.away:
            return error_response(503, "nothing was erased")
        if isinstance(wish, Rejection):
            return self._say(wish)
        (done,) = self.store.apply_jobs([StoreJob(erases=[wish])])
        text = build_tombstone(done.erased[0], HUB.name, HUB.region)
        return self._say(attach_signature(text, SIGNING.sign(STATEMENT_TAG + text)))

    def _say(self, reply: Any) -> web.Response:
        self.asked += 1
        if isinstance(reply, Rejection):
            return error_response(403, reply.error)
        self.replies.append(msgspec.to_builtins(reply))
        return web.Response(body=msgspec.json.encode(self.change(dict(self.replies[-1]))))


@asynccontextmanager
async def serve_identity_hub(folder: Path) -> AsyncIterator[IdentityHub]:
    """Serve a hub's identity endpoints over TLS, as `https://localhost:PORT`."""
    hub = IdentityHub(folder / "hub")
    pair = hub.authorities.ensure_server((), utc_now())
    access = ServerAccess(tls_cert=str(pair.certificate), tls_key=str(pair.key))
    runner = web.AppRunner(web.Application(), access_log=None)
    for handler in (hub.on_enrol, hub.on_renew, hub.on_retire, hub.on_erase):
        runner.app.router.add_post(f"/v1/{handler.__name__.removeprefix('on_')}", handler)
    await runner.setup()
    try:
        hub.url = (await open_site(runner, access)).replace("127.0.0.1", "localhost")
        hub.issuer.set_url(hub.url)
        hub.renewals.set_url(hub.url)
        yield hub
    finally:
        await runner.cleanup()
        hub.registry.close()
        hub.store.close()
