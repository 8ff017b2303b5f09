"""Child process: one hub of a region over PostgreSQL, with leases, before a model that never answers or one that waits.

`parked` takes questions and answers none, as `benchmarks.intake.hub` does over SQLite; `waits` takes 50 ms + 2 ms a
question without using a processor, as an accelerator would. Hubs share keys and registry of one state folder.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.questions import CARD
from benchmarks.harness.rig import hub_context
from benchmarks.intake.hub import PLENTY, ParkedEngine
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.engine.base import EchoEngine, Engine
from cloud_hub.engine.types import WorkItem
from cloud_hub.region.lease_keeper import LeaseKeeper
from cloud_hub.region.leases import LeaseTable
from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.services import HubServices
from cloud_hub.security import hub_keys
from cloud_hub.system.settings import HubSettings
from cloud_hub.system.state_folder import StateDir
from wire.process.logging import JsonLog
from wire.protocol.messages import Prediction
from wire.transport.mqtt import MqttTransport

BASE_S, ITEM_S, MOST = 0.050, 0.002, 16


class WaitingEngine(EchoEngine):
    """Waits as long as an accelerator would compute, on a thread of its own."""

    inline = False

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        time.sleep(BASE_S + ITEM_S * len(batch))
        return super().infer(batch)


def _stop_hub(engine: Engine, hub: Hub) -> None:
    engine.stop()
    hub.stop()


async def serve_hub(root: Path, port: int, files: tuple[str, str, str], engine: Engine, place: tuple[str, str]) -> None:
    """Serve until SIGTERM. `place`: the hub's name in the region, and the URL of the database."""
    member, url = place
    settings = HubSettings(
        member=member, database_url=url, max_queued=PLENTY, device_open=PLENTY, device_rate_per_s=PLENTY,
        device_burst=PLENTY, max_batch=MOST, drain_s=0.0,
    )  # fmt: skip

    async def connect() -> MqttTransport:
        return await MqttTransport.connect("127.0.0.1", port, member, hub_context(*files), session_expiry_s=0)

    registry = Registry.open(DatabaseUrls(root).registry)
    keys = hub_keys.load_or_create_keys(StateDir(root).keys)
    sides = HubServices(leases=LeaseKeeper(LeaseTable.open(url, member), JsonLog()))
    hub = Hub(settings=settings, keys=keys, registry=registry, engines=[engine], connect=connect, sides=sides)
    running = asyncio.create_task(hub.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _stop_hub, engine, hub)
    while not (hub.ready.is_set() and hub.status()["link_up"]):
        await asyncio.sleep(0.05)
    print("ready", flush=True)
    await running


if __name__ == "__main__":
    _, root, port, ca, certificate, key, kind, member, url = sys.argv
    model: Engine = WaitingEngine(CARD) if kind == "waits" else ParkedEngine()
    asyncio.run(serve_hub(Path(root), int(port), (ca, certificate, key), model, (member, url)))
