"""Child process of the hub's benchmarks: the hub's loop and web API around a cost model. Prints its address.

`python -m benchmarks.hub.server FOLDER [PORT CA CERTIFICATE KEY [GATHER_S]]`: with a broker's port it serves MQTT too.
"""

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.rig import hub_context
from benchmarks.hub.engines import CostEngine, ImageEngine
from cloud_hub.api.app import ApiLimits, ApiServer
from cloud_hub.api.interface import ApiContext
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.enrollment.ca_rotation import CaRotation
from cloud_hub.enrollment.enrollment import EnrollmentService
from cloud_hub.enrollment.rate_limit import AttemptGates, AttemptLimiter
from cloud_hub.enrollment.renewal import RenewalService
from cloud_hub.enrollment.replies import BrokerAddress, HubAddress
from cloud_hub.registry.access import ApiKeys
from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.link import TransportFactory
from cloud_hub.security import hub_keys
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import HubCard
from cloud_hub.system.settings import HubSettings
from cloud_hub.system.state_folder import StateDir
from wire.http.access import ServerAccess
from wire.transport.base import MemoryBroker
from wire.transport.mqtt import MqttTransport

PLENTY = 1_000_000


def make_settings(root: Path, gather_s: float = HubSettings().gather_s) -> HubSettings:
    limits: dict[str, Any] = {
        "max_queued": PLENTY,
        "device_open": PLENTY,
        "device_rate_per_s": PLENTY,
        "device_burst": PLENTY,
    }
    return HubSettings(database_url=f"sqlite:///{root / 'bench.db'}", drain_s=0.0, gather_s=gather_s, **limits)


def make_transport(words: list[str]) -> TransportFactory:
    """To the broker that is named, or to one in memory that nobody else hears."""
    if not words:
        broker = MemoryBroker()

        async def nowhere() -> object:
            return broker.connect()

        return nowhere  # type: ignore[return-value]
    port, ca, certificate, key = words[:4]

    async def connect() -> MqttTransport:
        return await MqttTransport.connect(
            "127.0.0.1", int(port), "hub", hub_context(ca, certificate, key), session_expiry_s=60
        )

    return connect


def make_api(hub: Hub, registry: Registry, root: Path, access: ApiKeys | None = None) -> ApiServer:
    """As the real process has it, but for enrolment's place."""
    place = HubAddress(BrokerAddress("127.0.0.1", 1), (HubCard("hub-1", "local", b"h" * 32, b"s" * 32),))
    authority = RotatingAuthority.open(root, utc_now())
    context = ApiContext(
        hub=hub,
        inference=hub.inference,
        versions=hub.versions,
        engines=hub.engines,
        store=hub.store,
        announcer=hub.voice,
        observer=hub.observer,
        registry=registry,
        issuer=EnrollmentService(registry, authority, place),
        renewals=RenewalService(registry, authority, place),
        rotation=CaRotation(authority, registry),
        gates=AttemptGates(*(AttemptLimiter(20.0, 20.0, 1.0, 20.0) for _ in AttemptGates._fields)),
        now_ms=lambda: int(time.time() * 1000),
        evict=lambda _device: None,
        keys=access or ApiKeys.in_memory(),
        jobs=hub.jobs.desk,
    )
    return ApiServer(context, ServerAccess(token_file=str(root / "admin.token")), ApiLimits(max_body_bytes=16 << 20))


async def serve_hub(root: Path, words: list[str]) -> None:
    state = StateDir(root).prepare()
    registry = Registry.open(DatabaseUrls(state.root).registry)
    engines = [CostEngine(), ImageEngine()]
    hub = Hub(
        settings=make_settings(root, *map(float, words[4:])),
        keys=hub_keys.load_or_create_keys(state.keys),
        registry=registry,
        engines=engines,
        connect=make_transport(words),
    )
    running = asyncio.create_task(hub.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, hub.stop)
    ready = asyncio.create_task(hub.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    while not hub.status()["link_up"]:
        await asyncio.sleep(0.02)
    api = make_api(hub, registry, root)
    print(await api.start(lambda port: f"http://127.0.0.1:{port}"), flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await api.stop()


if __name__ == "__main__":
    asyncio.run(serve_hub(Path(sys.argv[1]), sys.argv[2:]))
