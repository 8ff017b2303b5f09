"""A hub on an in-memory broker with a model catalogue of its own, for tests of versions and draining."""

import asyncio
import io
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cloud_hub.engine.base import EchoEngine
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.services import HubServices
from cloud_hub.serving.bundles import MemoryCatalog
from cloud_hub.system.settings import HubSettings
from tests.cloud_hub.doubles.devices import CARD, HUB, SimDevice, registry
from wire.process.logging import JsonLog
from wire.transport.base import MemoryBroker

NEWER = msgspec.structs.replace(CARD, ref=msgspec.structs.replace(CARD.ref, version=2))
SAMPLES = np.zeros((1, 10), np.float32)


class Swapper:
    """A hub on an in-memory broker with a model catalogue of its own."""

    def __init__(self, folder: Path, *devices: SimDevice, **settings: Any) -> None:
        self.stock = MemoryCatalog({})
        self.made = 0
        self.stock.add_engine(NEWER, partial(self.make, NEWER))
        self.stock.add_engine(CARD, partial(self.make, CARD))
        self.broker = MemoryBroker()
        options = {"database_url": f"sqlite:///{folder}/hub.db", "drain_s": 2.0, **settings}
        self.engine = EchoEngine(CARD, compute_s=0.004)
        self.log = io.StringIO()
        who = registry(*devices)
        sides = HubServices(JsonLog(self.log), stock=self.stock)
        self.hub = Hub(
            settings=HubSettings(**options),
            keys=HUB,
            registry=who,
            engines=[self.engine],
            connect=self.connect,
            sides=sides,
        )

    def make(self, card: Any) -> EchoEngine:
        self.made += 1
        return EchoEngine(card, compute_s=0.004)

    async def connect(self) -> Any:
        return self.broker.connect()

    async def __aenter__(self) -> Hub:
        self.task = asyncio.create_task(self.hub.run())
        await self.hub.ready.wait()
        while not self.hub.status()["link_up"]:
            await asyncio.sleep(0.001)
        return self.hub

    async def __aexit__(self, *_: object) -> None:
        self.hub.stop()
        await asyncio.wait_for(self.task, 60)
