"""The hub process: constructs every part, starts them in order, stops them in reverse order on a signal or a defect.

Rule: what can be wrong is found before the first question: configuration, models, keys, certificates, database, broker,
address. After that only a signal or a defect ends it, and whatever ends it ends the broker too.
Rule: a signal and the `leave_file` (by which a spot machine announces that it is taken away) mean the same: not ready,
nothing new, finish open work, keep the rest for the next start.
"""

import asyncio
import contextlib
import importlib.metadata
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from cloud_hub.api.app import Api, Limits
from cloud_hub.api.interface import ApiContext
from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.engine.base import Engine, EngineError
from cloud_hub.engine.factory import open_engine
from cloud_hub.registry.access import Keys
from cloud_hub.registry.audit import Audit
from cloud_hub.registry.orders import Orders
from cloud_hub.registry.registry import Registry
from cloud_hub.repository.repository import Repository
from cloud_hub.rollout.catalog import Catalog
from cloud_hub.rollout.controller import Desk, Rollouts
from cloud_hub.rollout.store import RolloutStore
from cloud_hub.runtime.bootstrap import Ground
from cloud_hub.runtime.broker import Broker
from cloud_hub.runtime.config import HubConfig
from cloud_hub.runtime.hub import Hub, Sides
from cloud_hub.runtime.identity import Bureau
from cloud_hub.runtime.maintenance import Herald, Keeper, KeyChange
from cloud_hub.runtime.policies import Watch, published_in
from cloud_hub.security.hub_keys import HubCard, HubKeys, newest_number
from cloud_hub.serving.bundles import Bundles
from cloud_hub.serving.telemetry import Observer
from cloud_hub.serving.tracing import Tracing
from cloud_hub.storage.ledger_log import HubLog
from cloud_hub.storage.ledger_service import LedgerBackend, LedgerLogService
from cloud_hub.storage.versions import Spoken
from cloud_hub.system.client import Address
from cloud_hub.system.state_folder import StateDir
from policies.rollout.plan import Member
from wire.process.daemon import notify, watchdog_every_s
from wire.process.exit_codes import Exit, ExitError
from wire.process.logging import Log, name

LOOK_EVERY_S = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # USR1: for a watcher of spot-instance notices


def on_signals(leave: asyncio.Event) -> None:
    """Set `leave` on SIGTERM, SIGINT or SIGUSR1."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, leave.set)


async def watch(file: Path, leave: asyncio.Event) -> None:
    """Wait until a file exists, then set `leave`."""
    while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 - a file rings no bell
        await asyncio.sleep(LOOK_EVERY_S)
    leave.set()


def open_rollouts(
    hub: Hub, registry: Registry, grounds: tuple[StateDir, Repository], log: Log
) -> tuple[Rollouts, Catalog]:
    """Open the rollout database and attach a controller to the hub; the caller starts its `run`.

    ExitError(DATABASE) if it cannot be read.
    """
    state, repository = grounds

    def members() -> Iterable[Member]:
        active = (each for each in registry.devices() if each.active)
        return [Member(each.id, each.device_class, each.region, each.tenant) for each in active]

    def speaking(model: str) -> Mapping[str, int]:
        try:
            return hub.versions.speaking(model, hub.now_ms())
        except InferRefusedError:
            return {}

    catalog = Catalog(repository, speaking, hub.now_ms)
    store = RolloutStore.open(state.rollouts)
    rollouts = Rollouts(store, Desk(hub.voice.tell, hub.voice.seen, members, catalog.check, log))
    hub.voice.attach_rollouts(rollouts)
    return rollouts, catalog


def open_engines(config: HubConfig) -> list[Engine]:
    """Start one engine per bundle. ExitError(MODEL) naming the one that cannot be used."""
    from models.bundle.manifest import BundleError  # noqa: PLC0415

    if not config.models and config.models_folder is None:
        raise ExitError(Exit.MODEL, "no model to serve: set models = [bundle folder, ...]")
    try:
        paths = bundles_of(config).first(_retired(config))
        return [open_engine(path, config.means()) for path in paths]
    except (BundleError, EngineError) as error:
        raise ExitError(Exit.MODEL, str(error)) from None


def bundles_of(config: HubConfig) -> Bundles:
    """Return the catalog of every bundle this hub may serve."""
    means = config.means()
    return Bundles(config.models, config.models_folder, config.hub_settings(), lambda path: open_engine(path, means))


def _retired(config: HubConfig) -> frozenset[str]:
    with contextlib.closing(Spoken.open(config.state_dir().versions)) as spoken:
        return spoken.retired()


class Process:
    """One running hub process. The caller holds the lock of the state folder."""

    def __init__(self, config: HubConfig, ground: Ground, engines: list[Engine], log: Log) -> None:
        self._config = config
        self._ground = ground
        self._engines = engines
        self._log = log
        self._ended = asyncio.Event()
        self._keys = Keys.open(ground.state.access)
        self._settings = config.hub_settings(published_in(ground.repository))
        broker = config.broker_settings()
        self._broker = (
            Broker(broker, ground.authorities.trusted_folder, ground.server, log) if config.broker.start else None
        )
        self._broker_port = self._broker.port if self._broker else config.broker.port

    async def run(self) -> None:
        """Serve until a signal or a defect. ExitError(BROKER, PORT, DATABASE, ...) if it cannot start."""
        on_signals(self._ended)
        with contextlib.closing(Registry.open(self._ground.state.devices)) as registry, contextlib.closing(self._keys):
            async with self._running_broker():
                await self._serve(registry)

    @contextlib.asynccontextmanager
    async def _running_broker(self) -> AsyncIterator[None]:
        """Run the broker as the outermost part: it starts before the hub connects, and stops after its last message."""
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
        trace, state = self._config.trace, self._ground.state
        tracing = Tracing(trace.file, trace.endpoint, self._config.hub.name)
        orders, spoken = Orders(state.orders), Spoken.open(state.versions)
        sides = Sides(self._log, orders, bundles_of(self._config), spoken, Observer(tracing.sink))
        hub = self._hub(bureau, sides)
        clerk = self._clerk(hub, registry)
        hub.voice.attach_ledger(clerk)
        rolling = open_rollouts(hub, registry, (state, self._ground.repository), self._log)
        api = Api(self._context(hub, registry, bureau, orders, rolling), self._config.door(), self._limits())
        bureau.on_ca_change(*([self._broker.restart] if self._broker else []), api.reload)
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(hub.run(), name="hub")
                running.add_done_callback(lambda _: self._ended.set())
                works = {**self._sides(), **bureau.tasks(hub.now_ms), **self._repository(hub, bureau)}
                works |= {"ledger": clerk.run(), "rollouts": rolling[0].run()}
                beside = [group.create_task(work, name=title) for title, work in works.items()]
                await _first_of(hub.ready, self._ended)
                if not self._ended.is_set():
                    await self._open(api)
                await self._ended.wait()
                notify("STOPPING=1")
                hub.drain()  # not ready any more, but up until open work is answered
                await hub.drained()
                await api.stop()
                hub.stop()
                await asyncio.wait([running])
                for task in beside:
                    task.cancel()
        finally:
            state.running.unlink(missing_ok=True)
            await api.stop()
            spoken.close()
            tracing.close()

    def _hub(self, bureau: Bureau, sides: Sides) -> Hub:
        return Hub(
            settings=self._settings,
            keys=self._ground.keys,
            registry=bureau.doorman,
            engines=self._engines,
            connect=bureau.connect,
            sides=sides,
        )

    async def _open(self, api: Api) -> None:
        url = await api.start(self._config.public_url)
        door = self._config.door()
        Address(url, door.token_file, str(self._ground.ca) if url.startswith("https") else "").save(
            self._ground.state.running
        )
        self._log.info("listening", address=name(url), hub=name(self._config.hub.name))
        notify("READY=1")

    def _sides(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the named tasks beside the hub's own."""
        sides: dict[str, Coroutine[Any, Any, None]] = {}
        if self._broker is not None:
            sides["broker"] = self._broker.supervise()
        if self._config.hub.leave_file:
            sides["leaving"] = watch(Path(self._config.hub.leave_file), self._ended)
        every_s = watchdog_every_s()
        if every_s is not None:
            sides["watchdog"] = _feed_watchdog(every_s)
        return sides

    def _context(
        self, hub: Hub, registry: Registry, bureau: Bureau, orders: Orders, rolling: tuple[Rollouts, Catalog]
    ) -> ApiContext:
        anchor = self._ground.anchor
        return ApiContext(
            hub=hub,
            inference=hub.inference,
            versions=hub.versions,
            engines=hub.engines,
            store=hub.store,
            announcer=hub.voice,
            observer=hub.observer,
            registry=registry,
            issuer=bureau.issuer,
            renewals=bureau.renewals,
            rotation=bureau.rotation,
            gate=bureau.gate(),
            renewal_gate=bureau.gate(),
            now_ms=hub.now_ms,
            evict=bureau.doorman.evict,
            root_sha256=anchor.sha256,
            repository=anchor.folder,
            orders=orders,
            keys=self._keys,
            audit=Audit(self._ground.state.audit),
            ledger=hub.voice.ledger,
            rollouts=rolling[0],
            catalog=rolling[1],
        )

    def _clerk(self, hub: Hub, registry: Registry) -> LedgerLogService:
        """Open the log of the devices' ledger heads and its service."""

        def enrolled_ms(device: str) -> int:
            known = registry.device(device)
            return known.enrolled_ms if known else 0

        log = HubLog.open(self._ground.state.ledger, hub.now_ms())
        keys, name_of_hub = self._ground.keys, self._config.hub.name
        return LedgerLogService(log, LedgerBackend(name_of_hub, keys.signing, hub.voice.tell, enrolled_ms, self._log))

    def _repository(self, hub: Hub, bureau: Bureau) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the tasks that renew the update repository and notify devices of changes."""
        repository, log = self._ground.repository, self._log
        serial = newest_number(self._ground.state.keys)

        def apply(keys: HubKeys, card: HubCard) -> None:
            hub.use_keys(keys)
            bureau.offer(card)

        change = KeyChange(self._ground.state.keys, bureau.card, apply)
        keeper = Keeper(repository, bureau.card, serial, hub.now_ms, log, turn=change.turn)
        herald = Herald(repository, bureau.active, hub.voice.hint, log)
        watch = Watch(self._config.policies, repository, log, self._settings.documents)
        return {"keeper": keeper.run(), "herald": herald.run(), "policies": watch.run(hub.serve_under)}

    def _limits(self) -> Limits:
        return Limits(version(), self._config.api.max_body_bytes, self._config.api.ready_timeout_s)


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait(), name="first-of") for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def _feed_watchdog(every_s: float) -> None:
    """Notify the service manager's watchdog from the event loop itself."""
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(every_s)


def version() -> str:
    """Return the installed version of this program, "0" in a checkout."""
    try:
        return importlib.metadata.version("skerry")
    except importlib.metadata.PackageNotFoundError:
        return "0"
