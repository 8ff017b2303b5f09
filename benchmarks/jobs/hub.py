"""Child process: one hub of a region over PostgreSQL that runs jobs; its model waits as an accelerator would.

`python -m benchmarks.jobs.hub MEMBER URL KEY SECONDS LEASE_S`: KEY is the file with the key of bodies, SECONDS what a
batch of 16 takes. It prints a line once it serves, and ends in order at SIGTERM. It has no web API and no broker: jobs
come by the database.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.hub.server import make_transport
from cloud_hub.engine.base import EchoEngine
from cloud_hub.engine.types import ModelCard, WorkItem
from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.jobs.sealing import JobVault
from cloud_hub.region.lease_keeper import LeaseKeeper
from cloud_hub.region.leases import LeaseTable
from cloud_hub.region.vault import RegionVault
from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.jobs import JobServices
from cloud_hub.runtime.services import HubServices
from cloud_hub.security.hub_keys import generate_keys
from cloud_hub.system.settings import HubSettings
from wire.process.logging import JsonLog
from wire.protocol.messages import ModelRef, Prediction

MOST, VALUES, WINDOW = 16, 4, 32
CARD = ModelCard(ModelRef("wait", 1, "cut", "pack8"), (), ("a", "b"), input_shape=(VALUES,), max_batch=MOST)


class ConstantTimeEngine(EchoEngine):
    """Computes any batch in the same time, on a thread of its own."""

    inline = False

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        time.sleep(self.compute_s)
        return [Prediction(0, 1.0, (1.0, 0.0), self.card.name)] * len(batch)


async def serve_hub(member: str, url: str, key: bytes, compute_s: float, lease_s: float) -> None:
    """Serve until SIGTERM."""
    settings = HubSettings(member=member, database_url=url, max_batch=MOST, drain_s=15.0)
    leases = LeaseKeeper(LeaseTable.open(url, member, lease_s), JsonLog())
    services = JobServices(JobVault(RegionVault(key)), JobSettings(window=WINDOW))
    engine = ConstantTimeEngine(CARD)
    engine.compute_s = 0.0
    hub = Hub(
        settings=settings, keys=generate_keys(), registry=Registry.open(url), engines=[engine],
        connect=make_transport([]), sides=HubServices(leases=leases, jobs=services),
    )  # fmt: skip
    running = asyncio.create_task(hub.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, hub.stop)
    while not (hub.ready.is_set() or running.done()):
        await asyncio.sleep(0.01)
    engine.compute_s = compute_s
    print("ready", flush=True)
    await running
    print(msgspec.json.encode(dict(hub.jobs.counts)).decode(), flush=True)


if __name__ == "__main__":
    _, name, address, key_file, seconds, life = sys.argv
    asyncio.run(serve_hub(name, address, Path(key_file).read_bytes(), float(seconds), float(life)))
