"""A hub on an in-memory broker, for tests of its event loop: `serving` starts one, `Ear` receives as a device."""

import asyncio
import io
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from cloud_hub.engine.base import EchoEngine, Engine
from cloud_hub.engine.card_energy import EnergyCounters
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.services import HubServices
from cloud_hub.system.settings import HubSettings
from tests.cloud_hub.doubles.devices import CARD, HUB, SimDevice, registry
from wire.process.logging import JsonLog
from wire.protocol.messages import DownNote, Verdict
from wire.transport.base import MemoryBroker, MemoryTransport

SLOW_S = 0.002  # an engine that is not worth running between two messages


class Site:
    """One hub on a folder; `kill` ends it like `kill -9`, as far as one process can."""

    def __init__(
        self,
        folder: Path,
        *devices: SimDevice,
        engine: Engine | None = None,
        energy: EnergyCounters | None = None,
        **settings,
    ) -> None:
        self.broker = MemoryBroker()
        self.log = io.StringIO()
        found = {"drain_s": 2.0, "database_url": f"sqlite:///{folder}/hub.db", **settings}
        self.settings = HubSettings(**found)
        self.devices = registry(*devices)
        self.energy = energy
        self.engine = engine or EchoEngine(CARD)
        self.hub: Hub
        self._task: asyncio.Task[None]

    async def connect(self) -> MemoryTransport:
        return self.broker.connect()

    def make_hub(self) -> Hub:
        return self.build_hub(HubServices(JsonLog(self.log), energy=self.energy))

    def build_hub(self, sides: HubServices) -> Hub:
        return Hub(
            settings=self.settings,
            keys=HUB,
            registry=self.devices,
            engines=[self.engine],
            connect=self.connect,
            sides=sides,
        )

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def start(self) -> Hub:
        self.hub = self.make_hub()
        self._task = asyncio.create_task(self.hub.run())
        started = asyncio.create_task(self.hub.ready.wait())
        await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            started.cancel()
            self._task.result()
        await self.link_up()
        return self.hub

    async def link_up(self) -> None:
        async with asyncio.timeout(60):
            while not self.hub.status()["link_up"]:
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        self.hub.stop()
        await asyncio.wait_for(self._task, 60)

    async def kill(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@asynccontextmanager
async def serving(
    folder: Path, *devices: SimDevice, engine: Engine | None = None, energy: EnergyCounters | None = None, **settings
) -> AsyncIterator[Site]:
    site = Site(folder, *devices, engine=engine, energy=energy, **settings)
    await site.start()
    try:
        yield site
    finally:
        await site.stop()


class Ear:
    """A device's MQTT connection to the hub."""

    def __init__(self, device: SimDevice, transport: MemoryTransport) -> None:
        self.device, self.transport = device, transport

    @classmethod
    async def listen(cls, device: SimDevice, broker: MemoryBroker) -> "Ear":
        transport = broker.connect()
        await transport.subscribe((device.down,))
        return cls(device, transport)

    def ask(self, *seqs: int) -> None:
        for seq in seqs:
            self.transport.post(self.device.up, self.device.question(seq, time.time()))

    def note(self, payload: bytes) -> None:
        self.transport.post(self.device.ask_topic, payload)

    async def heard(self) -> list[DownNote | tuple[int, Verdict]]:
        return [self.device.read(message.payload) for message in await self.transport.receive()]

    async def verdicts(self, count: int, within_s: float = 60.0) -> dict[int, Verdict]:
        found: dict[int, Verdict] = {}
        async with asyncio.timeout(within_s):
            while len(found) < count:
                found |= dict(reply for reply in await self.heard() if isinstance(reply, tuple))
        return found


def effects_in(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "hub.db")) as connection:
        return int(connection.execute("select count(*) from effects").fetchone()[0])
