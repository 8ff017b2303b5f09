"""Child process of the overload and swap benchmarks: a hub whose model costs 50 ms and 2 ms per item.

`python -m benchmarks.hub.slow_hub FOLDER`. Prints one JSON line: its address, its admin token, the tenants' keys.
SIGTERM drains it; then it prints how many samples it computed. The model keeps no core busy, so what is measured is the
hub.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.hub.server import make_api, make_transport
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.engine.base import EchoEngine, WorkItem
from cloud_hub.engine.types import ModelCard
from cloud_hub.registry.access import ApiKeys, KeyRequest, Scope
from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.services import HubServices
from cloud_hub.security import hub_keys
from cloud_hub.serving.bundles import MemoryCatalog
from cloud_hub.system.settings import HubSettings
from cloud_hub.system.state_folder import StateDir
from wire.protocol.messages import ModelRef, Prediction

BASE_S, ITEM_S, MAX_BATCH = 0.050, 0.002, 16
CAPACITY_PER_S = MAX_BATCH / (BASE_S + ITEM_S * MAX_BATCH)
TENANTS = 50
VALUES = 64
LOAD_S = 0.5  # how long a version takes to be loaded


def make_card(version: int) -> ModelCard:
    ref = ModelRef("slow", version, "cut", "pack8")
    return ModelCard(ref, (), ("a", "b"), input_shape=(VALUES,), max_batch=MAX_BATCH)


class SlowEngine(EchoEngine):
    """Sleeps as long as the model would compute, and counts what it was asked by callers (not by a warm-up)."""

    computed = 0

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        time.sleep(BASE_S + ITEM_S * len(batch))
        SlowEngine.computed += sum(work.raw is not None and bool(work.raw.any()) for work in batch)
        return [Prediction(0, 1.0, (1.0, 0.0), self.card.name)] * len(batch)

    def sample(self) -> WorkItem:
        return WorkItem(raw=np.zeros(VALUES, np.float32))


def load_engine(version: int) -> SlowEngine:
    time.sleep(LOAD_S)
    return SlowEngine(make_card(version))


def make_stock() -> MemoryCatalog:
    found = MemoryCatalog({})
    for version in (1, 2):
        found.add_engine(make_card(version), partial(load_engine, version))
    return found


async def serve_hub(root: Path) -> None:
    state = StateDir(root).prepare()
    urls = DatabaseUrls(state.root)
    registry, access = Registry.open(urls.registry), ApiKeys.open(urls.access)
    settings = HubSettings(database_url=f"sqlite:///{root / 'bench.db'}", max_wait_s=4.0, drain_s=10.0)
    signing = hub_keys.load_or_create_keys(state.keys)
    hub = Hub(
        settings=settings,
        keys=signing,
        registry=registry,
        engines=[SlowEngine(make_card(1))],
        connect=make_transport([]),
        sides=HubServices(stock=make_stock()),
    )
    running, leave = asyncio.create_task(hub.run()), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    await hub.ready.wait()
    while not hub.status()["link_up"]:
        await asyncio.sleep(0.02)
    api = make_api(hub, registry, root, access)
    url = await api.start(lambda port: f"http://127.0.0.1:{port}")
    now_ms = int(time.time() * 1000)
    tokens = [access.create(KeyRequest("bench", (Scope.INFER,), f"tenant-{n}"), now_ms)[1] for n in range(TENANTS)]
    told = {"url": url, "admin": (root / "admin.token").read_text().strip(), "keys": tokens}
    print(json.dumps(told), flush=True)
    await leave.wait()
    hub.drain()
    await hub.wait_drained()
    await api.stop()
    hub.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    print(SlowEngine.computed, flush=True)


class HubAddressLine(msgspec.Struct, frozen=True):
    """What the child says once it serves."""

    url: str
    admin: str
    keys: list[str]


if __name__ == "__main__":
    asyncio.run(serve_hub(Path(sys.argv[1])))
