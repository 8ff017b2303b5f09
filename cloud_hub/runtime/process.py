"""The hub process: constructs every part, starts them in order, stops them in reverse order on a signal or a defect.

Rule: what can be wrong is found before the first question: configuration, models, keys, certificates, database, broker,
address. After that only a signal or a defect ends it, and whatever ends it ends the broker too.
Rule: a signal and the `leave_file` (by which a spot machine announces that it is taken away) mean the same: not ready,
nothing new, finish open work, keep the rest for the next start.
"""

import asyncio
import contextlib
import functools
import math
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any

from cloud_hub.api.app import ApiLimits, ApiServer
from cloud_hub.api.interface import ApiContext
from cloud_hub.console.app import Console
from cloud_hub.database.errors import log_fault
from cloud_hub.database.offload import OrderedWork
from cloud_hub.engine.base import Engine
from cloud_hub.engine.card_energy import open_energy_counters
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.telemetry import trace_records
from cloud_hub.region.lease_keeper import does_task
from cloud_hub.region.leases import RegionTask
from cloud_hub.region.membership import RegionMembership
from cloud_hub.region.overview import RegionOverview
from cloud_hub.region.schema_upgrade import SchemaUpgrade
from cloud_hub.registry.access import ApiKeys
from cloud_hub.registry.audit import AuditLog
from cloud_hub.registry.orders import Orders
from cloud_hub.registry.orders_store import open_orders
from cloud_hub.registry.registry import Registry
from cloud_hub.registry.sessions import BrowserSessions
from cloud_hub.repository.publish import publish_policy
from cloud_hub.rollout.catalog import BundleTargets
from cloud_hub.rollout.controller import RolloutController
from cloud_hub.runtime.bootstrap import HubState, open_leases, open_shared_files
from cloud_hub.runtime.broker import Broker, BrokerTls
from cloud_hub.runtime.config import HubConfig
from cloud_hub.runtime.engines import bundle_catalog
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.identity import IdentityService
from cloud_hub.runtime.jobs import open_job_services
from cloud_hub.runtime.language_models import open_language_models
from cloud_hub.runtime.maintenance import (
    HubKeyRotation,
    NumberedCard,
    RepositoryMaintainer,
    UpdateNotifier,
    reload_card,
)
from cloud_hub.runtime.policies import PolicyWatcher, repository_reader
from cloud_hub.runtime.region import FileFollower, list_readers
from cloud_hub.runtime.reloading import HubReload, LivePolicies
from cloud_hub.runtime.rollouts import follow_changes, open_rollouts
from cloud_hub.runtime.services import HubServices
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import HubCard, HubKeys, newest_key_number
from cloud_hub.serving.region_idempotency import RegionKeys, RequestTable
from cloud_hub.serving.telemetry import InferenceObserver
from cloud_hub.storage.ledger_log import LedgerLog
from cloud_hub.storage.ledger_service import LedgerBackend, LedgerLogService
from cloud_hub.storage.versions import ModelUsageStore
from cloud_hub.system.client import ApiAddress
from policies.model.policy import Policy
from wire.http.path_prefix import PathPrefix
from wire.process.daemon import notify_systemd, read_watchdog_interval
from wire.process.logging import JsonLog, safe_name
from wire.process.packages import read_version
from wire.process.trace_export import Tracing

FILE_POLL_S = 0.5
LEAVE_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # USR1: for a watcher of spot-instance notices


def register_signals(leave: asyncio.Event) -> None:
    """Set `leave` on SIGTERM, SIGINT or SIGUSR1."""
    loop = asyncio.get_running_loop()
    for number in LEAVE_SIGNALS:
        loop.add_signal_handler(number, leave.set)


async def watch_file(file: Path, leave: asyncio.Event) -> None:
    """Wait until a file exists, then set `leave`."""
    while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 - a file rings no bell
        await asyncio.sleep(FILE_POLL_S)
    leave.set()


class HubProcess:
    """One running hub process. The caller holds the lock of the state folder, and the hub's `place` in its region.

    `file`: where the configuration is read from again.
    """

    def __init__(
        self,
        config: HubConfig,
        ground: HubState,
        engines: list[Engine],
        log: JsonLog,
        place: RegionMembership | None = None,
        *,
        file: Path | None = None,
    ) -> None:
        self._place = place
        self._reload = HubReload(file, config, repository_reader(ground.repository), log)
        self._shared = open_shared_files(config, config.store.url) if place else None
        self._files: FileFollower | None = None
        self._overview = RegionOverview(config.database_urls().server) if place else None
        self._config = config
        self._ground = ground
        self._engines = engines
        self._log = log
        self._ended = asyncio.Event()
        self._urls = config.database_urls()
        self._work = OrderedWork(self._urls.registry, lambda error: log_fault(log, "registry_failed", error))
        self._keys = ApiKeys.open(self._urls.access)
        self._settings = config.hub_settings(repository_reader(ground.repository))
        broker = config.broker_settings()
        authorities = ground.authorities
        tls = BrokerTls(ground.server, authorities.trusted_file, authorities.trusted_folder)
        self._broker = Broker(broker, tls, log) if config.broker.start else None
        self._broker_port = self._broker.port if self._broker else config.broker.port

    async def run(self) -> None:
        """Serve until a signal or a defect. ExitError(BROKER, PORT, DATABASE, ...) if it cannot start."""
        register_signals(self._ended)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload.told.set)
        with contextlib.ExitStack() as open_parts:
            registry = open_parts.enter_context(contextlib.closing(Registry.open(self._urls.registry)))
            open_parts.callback(self._keys.close)
            open_parts.callback(self._work.close)
            if self._shared is not None:
                open_parts.callback(self._shared.close)
            if self._overview is not None:
                open_parts.callback(self._overview.close)
            async with self._running_broker():
                await self._serve_hub(registry)
        self._log.info("stopped")

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

    async def _serve_hub(self, registry: Registry) -> None:
        bureau = IdentityService(self._config, self._ground, (registry, self._work), self._broker_port, self._log)
        trace, state = self._config.trace, self._ground.state
        tracing = Tracing(trace.file, trace.endpoint, "skerry-hub", self._config.hub.name, self._log)
        book, orders = open_orders(self._urls.registry, state.orders)
        spoken = ModelUsageStore.open(self._urls.versions)
        hub = self._build_hub(bureau, self._open_services(orders, spoken, tracing))
        clerk = self._open_ledger(hub, registry)
        hub.voice.attach_ledger(clerk)
        rolling = open_rollouts(hub, registry, (self._urls.rollouts, self._ground.repository), self._log)
        context = self._api_context(hub, registry, bureau, orders, rolling)
        pages = functools.partial(Console, context)
        api = ApiServer(context, self._config.server_access(), self._api_limits(), pages)
        bureau.on_ca_change(*([self._broker.restart] if self._broker else []), api.reload_certificate)
        if self._broker is not None:
            bureau.on_ca_added(self._broker.add_authorities)
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(hub.run(), name="hub")
                running.add_done_callback(lambda _: self._ended.set())
                retires = functools.partial(does_task, hub.leases, RegionTask.RETIREMENTS)
                works = {**self._side_tasks(), **bureau.named_tasks(hub.now_ms, retires)}
                works |= self._repository_tasks(hub, bureau, rolling, orders, api)
                works |= self._region_tasks(hub, registry, orders, rolling[0])
                works |= {"ledger": clerk.run(), "rollouts": rolling[0].run()}
                beside = [group.create_task(work, name=title) for title, work in works.items()]
                await _wait_first(hub.ready, self._ended)
                if not self._ended.is_set():
                    await self._open_api(api)
                await self._ended.wait()
                self._log.info("stopping", open=hub.status()["open"])
                notify_systemd("STOPPING=1")
                hub.drain()  # not ready any more, but up until open work is answered
                await hub.wait_drained()
                await api.stop()
                hub.stop()
                await asyncio.wait([running])
                for task in beside:
                    task.cancel()
        finally:
            state.running.unlink(missing_ok=True)
            await api.stop()
            spoken.close()
            book.close()
            tracing.close()

    def _open_services(self, orders: Orders, spoken: ModelUsageStore, tracing: Tracing) -> HubServices:
        return HubServices(
            self._log,
            orders,
            bundle_catalog(self._config),
            spoken,
            InferenceObserver(tracing.sink, tracing.counts),
            language_models=self._open_language_models(tracing),
            request_keys=self._open_request_keys(),
            work=self._work,
            energy=open_energy_counters(),
            leases=open_leases(self._config, self._log),
            clock=self._place.clock if self._place else None,
            jobs=open_job_services(self._config, self._ground.state.keys, self._shared),
        )

    def _open_request_keys(self) -> RegionKeys | None:
        if self._place is None or self._shared is None:
            return None
        return RegionKeys(RequestTable(self._urls.server, self._place.session, self._shared.vault))

    def _open_language_models(self, tracing: Tracing) -> LanguageModels:
        sinks = [trace_records(tracing.sink)] if tracing.sink else []
        return open_language_models(self._config.llm, self._config.hub.region, sinks, self._log)

    def _build_hub(self, bureau: IdentityService, sides: HubServices) -> Hub:
        return Hub(
            settings=self._settings,
            keys=self._ground.keys,
            registry=bureau.doorman,
            engines=self._engines,
            connect=bureau.connect,
            sides=sides._replace(rated=(bureau.divide_attempts,)),
        )

    async def _open_api(self, api: ApiServer) -> None:
        url = await api.start(self._config.public_url)
        access = self._config.server_access()
        ApiAddress(url, access.token_file, str(self._ground.ca_file) if url.startswith("https") else "").save(
            self._ground.state.running
        )
        self._log.info("listening", address=safe_name(url), hub=safe_name(self._config.hub.name))
        notify_systemd("READY=1")

    def _side_tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the named tasks beside the hub's own."""
        sides: dict[str, Coroutine[Any, Any, None]] = {}
        if self._broker is not None:
            sides["broker"] = self._broker.supervise()
        if self._config.hub.leave_file:
            sides["leaving"] = watch_file(Path(self._config.hub.leave_file), self._ended)
        every_s = read_watchdog_interval()
        if every_s is not None:
            sides["watchdog"] = _feed_watchdog(every_s)
        return sides

    def _region_tasks(
        self, hub: Hub, registry: Registry, orders: Orders, rollouts: RolloutController
    ) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the tasks that take in what other hubs change; until they have, nothing new is taken."""
        if self._place is None or self._files is None:
            return {}
        hub.on_caught_up(math.inf)
        readers = (*list_readers(hub, registry, self._keys, orders, self._files), follow_changes(rollouts))
        schema = SchemaUpgrade(self._urls.server, self._log)
        does = functools.partial(does_task, hub.leases, RegionTask.SCHEMA)
        return {
            "region": self._place.run(readers, hub.on_caught_up),
            "region-files": self._files.run(),
            "region-schema": schema.run(does),
        }

    def _api_context(
        self,
        hub: Hub,
        registry: Registry,
        bureau: IdentityService,
        orders: Orders,
        rolling: tuple[RolloutController, BundleTargets],
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
            gates=bureau.gates,
            now_ms=hub.now_ms,
            evict=bureau.doorman.queue_eviction,
            root_sha256=anchor.root_sha256,
            role_expiry=self._ground.repository.role_expiry,
            repository=anchor.folder,
            orders=orders,
            keys=self._keys,
            audit=AuditLog(self._ground.state.audit),
            ledger=hub.voice.ledger,
            rollouts=rolling[0],
            catalog=rolling[1],
            language_models=hub.language_models,
            prices=self._reload.read_prices,
            reload_status=self._reload.status_fields,
            work=self._work,
            hears_region=hub.hears_region,
            clock_fault=self._place.clock.fault if self._place else str,
            overview=self._overview,
            jobs=hub.jobs.desk,
            publish_policy=lambda document: publish_policy(self._ground.repository, document, utc_now()),
            sessions=BrowserSessions.open(self._ground.state.sessions),
        )

    def _open_ledger(self, hub: Hub, registry: Registry) -> LedgerLogService:
        """Open the log of the devices' ledger heads and its service."""

        def enrolled_ms(device: str) -> int:
            known = registry.device(device)
            return known.enrolled_ms if known else 0

        log = LedgerLog.open(self._urls.ledger, hub.now_ms())
        keys, name_of_hub = self._ground.keys, self._config.hub.name
        return LedgerLogService(
            log, LedgerBackend(name_of_hub, keys.signing, hub.voice.publish_note, enrolled_ms, self._log)
        )

    def _repository_tasks(
        self,
        hub: Hub,
        bureau: IdentityService,
        rolling: tuple[RolloutController, BundleTargets],
        orders: Orders,
        api: ApiServer,
    ) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the tasks that renew the update repository and notify devices of changes."""
        repository, log = self._ground.repository, self._log
        card = NumberedCard(bureau.card, newest_key_number(self._ground.state.keys))

        def apply(keys: HubKeys, card: HubCard) -> None:
            hub.set_keys(keys)
            bureau.set_card(card)

        change = HubKeyRotation(self._ground.state.keys, bureau.card, apply)

        def committed() -> Mapping[str, int] | None:
            return rolling[1].committed_versions(rolling[0].views()) if rolling[0].is_loaded else None

        async def serve(policies: tuple[Policy, ...]) -> None:
            layers = [layer for policy in policies for layer in policy.layers]
            orders.take_news(await self._work.run(orders.store_documents, layers))
            hub.set_policies(policies)

        keeper = RepositoryMaintainer(repository, card, hub.now_ms, log, turn=change.rotate_if_due, committed=committed)

        def reload_keys() -> None:
            keys, fresh = reload_card(self._ground.state.keys, bureau.card)
            apply(keys, fresh.card)
            keeper.use_card(fresh)

        if self._shared is not None:
            self._files = FileFollower(self._shared, reload_keys, bureau.reload_authorities, log)
        herald = UpdateNotifier(
            repository, lambda: hub.served.pick(bureau.active_devices()), hub.voice.publish_hint, log
        )
        watch = PolicyWatcher(self._config.policies, repository, log, self._settings.documents)
        does = functools.partial(does_task, hub.leases)
        reload = self._reload.run(hub.limits, LivePolicies(serve, watch), (api.reload_certificate, hub.now_ms))
        return {"keeper": keeper.run(does), "herald": herald.run(), "policies": watch.run(serve), "reload": reload}

    def _api_limits(self) -> ApiLimits:
        api = self._config.api
        proxies = self._config.proxy_networks()
        return ApiLimits(
            read_version(),
            api.max_body_bytes,
            api.ready_timeout_s,
            trusted_proxies=proxies,
            prefix=PathPrefix(api.path_prefix),
        )


async def _wait_first(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait(), name="first-of") for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def _feed_watchdog(every_s: float) -> None:
    """Notify the service manager's watchdog from the event loop itself."""
    while True:
        notify_systemd("WATCHDOG=1")
        await asyncio.sleep(every_s)
