"""The process: everything a running hub is made of, started in order, stopped in the reverse order.

Rule: what can be wrong is found before the first question: configuration, models, keys, certificates, database, broker,
address. After that only a signal or a defect ends it, and whatever ends it ends the broker too.
"""

import asyncio
import contextlib
import importlib.metadata
import signal
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from cloud_hub.api.app import Api, Limits
from cloud_hub.api.parts import Parts
from cloud_hub.broker import Broker
from cloud_hub.bureau import Bureau
from cloud_hub.client import Address
from cloud_hub.config import HubConfig
from cloud_hub.engine.base import Engine
from cloud_hub.ground import Ground
from cloud_hub.herald import Herald
from cloud_hub.keeper import Keeper
from cloud_hub.keys import newest_number
from cloud_hub.loop import Hub
from cloud_hub.registry import Registry
from wire.daemon import Log, name, notify, watchdog_every_s
from wire.exits import Exit, Stop


def open_engines(config: HubConfig) -> list[Engine]:
    """One loaded engine per bundle. Stop(MODEL) naming the one that cannot be used."""
    from cloud_hub.engine.local import LocalEngine  # noqa: PLC0415 - torch takes seconds: not for `skerry hub invite`
    from models.bundle import open_bundle  # noqa: PLC0415
    from models.manifest import BundleError  # noqa: PLC0415

    if not config.models:
        raise Stop(Exit.MODEL, "no model to serve: set models = [bundle folder, ...]")
    try:
        return [LocalEngine(open_bundle(path), config.hub.max_batch) for path in config.models]
    except BundleError as error:
        raise Stop(Exit.MODEL, str(error)) from None


class Process:
    """One running hub. The caller holds the lock of the state folder."""

    def __init__(self, config: HubConfig, ground: Ground, engines: list[Engine], log: Log) -> None:
        self._config = config
        self._ground = ground
        self._engines = engines
        self._log = log
        self._ended = asyncio.Event()
        broker = config.broker_settings()
        self._broker = (
            Broker(broker, ground.authorities.trusted_folder, ground.server, log) if config.broker.start else None
        )
        self._broker_port = self._broker.port if self._broker else config.broker.port

    async def run(self) -> None:
        """Until a signal or a defect. Stop(BROKER, PORT, DATABASE, ...) if it cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        with contextlib.closing(Registry.open(self._ground.state.devices)) as registry:
            async with self._running_broker():
                await self._serve(registry)

    @contextlib.asynccontextmanager
    async def _running_broker(self) -> AsyncIterator[None]:
        """The outermost part: it is there before the hub connects, and goes after the hub's last word."""
        if self._broker is None:
            yield
            return
        try:
            await self._broker.start()
            self._log.info("broker", port=self._broker_port, pid=self._broker.pid or 0)
            yield
        finally:
            await self._broker.stop()

    async def _serve(self, registry: Registry) -> None:
        bureau = Bureau(self._config, self._ground, registry, self._broker_port, self._log)
        settings, keys = self._config.hub_settings(), self._ground.keys
        hub = Hub(settings, keys, bureau.doorman, self._engines, bureau.connect, self._log)
        api = Api(self._parts(hub, registry, bureau), self._config.door(), self._limits())
        bureau.after_change += [*([self._broker.restart] if self._broker else []), api.reload]
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(hub.run(), name="hub")
                running.add_done_callback(lambda _: self._ended.set())
                works = {**self._sides(), **bureau.tasks(lambda: _now_ms(hub)), **self._repository(hub, bureau)}
                sides = [group.create_task(work, name=title) for title, work in works.items()]
                await _first_of(hub.ready, self._ended)
                if not self._ended.is_set():
                    await self._open(api)
                await self._ended.wait()
                notify("STOPPING=1")
                await api.stop()
                hub.stop()
                await asyncio.wait([running])
                for side in sides:
                    side.cancel()
        finally:
            self._ground.state.running.unlink(missing_ok=True)
            await api.stop()

    async def _open(self, api: Api) -> None:
        url = await api.start(self._config.public_url)
        door = self._config.door()
        Address(url, door.token_file, str(self._ground.ca) if url.startswith("https") else "").save(
            self._ground.state.running
        )
        self._log.info("listening", address=name(url), hub=name(self._config.hub.name))
        notify("READY=1")

    def _sides(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Named tasks beside the hub's own."""
        sides: dict[str, Coroutine[Any, Any, None]] = {}
        if self._broker is not None:
            sides["broker"] = self._broker.supervise()
        every_s = watchdog_every_s()
        if every_s is not None:
            sides["watchdog"] = _feed_watchdog(every_s)
        return sides

    def _parts(self, hub: Hub, registry: Registry, bureau: Bureau) -> Parts:
        gates = (bureau.gate(), bureau.gate())
        evict = bureau.doorman.evict
        anchor = self._ground.anchor
        people = (bureau.issuer, bureau.renewals, bureau.rotation, *gates)
        return Parts(hub, registry, *people, lambda: _now_ms(hub), evict, anchor.sha256, anchor.folder)

    def _repository(self, hub: Hub, bureau: Bureau) -> dict[str, Coroutine[Any, Any, None]]:
        """Who keeps the update repository alive, and who tells the fleet of what is new in it."""
        repository, log = self._ground.repository, self._log
        serial = newest_number(self._ground.state.keys)
        keeper = Keeper(repository, bureau.card, serial, lambda: _now_ms(hub), log)
        herald = Herald(repository, bureau.active, hub.hint, log)
        return {"keeper": keeper.run(), "herald": herald.run()}

    def _limits(self) -> Limits:
        return Limits(version(), self._config.api.max_body_bytes, self._config.api.ready_timeout_s)


def _now_ms(hub: Hub) -> int:
    """Hub time."""
    return int(hub.status()["time_ms"])


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait(), name="first-of") for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def _feed_watchdog(every_s: float) -> None:
    """The event loop itself says that it turns."""
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(every_s)


def version() -> str:
    try:
        return importlib.metadata.version("skerry")
    except importlib.metadata.PackageNotFoundError:
        return "0"
