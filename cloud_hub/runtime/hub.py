"""The hub's event loop: feeds messages, timers and results to `HubCore` and executes the commands it returns.

Rule: the core is called on the event loop's thread only, one event at a time, never across an `await`. A defect in one
event is logged and counted and costs that event alone; what it left undone is healed by the device's `StatusRequest`.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.core import commands as c
from cloud_hub.core.commands import Tombstone
from cloud_hub.core.core import HubCore
from cloud_hub.core.lineup import ModelUse
from cloud_hub.core.shards import ServedShards
from cloud_hub.database.errors import log_fault
from cloud_hub.database.offload import OrderedWork
from cloud_hub.engine.base import Engine
from cloud_hub.engine.types import ModelCard
from cloud_hub.engine.worker import BatchResult
from cloud_hub.llm.questions import QuestionAsker
from cloud_hub.llm.service import LanguageModels
from cloud_hub.region.lease_keeper import LeaseKeeper, does_task
from cloud_hub.region.leases import TASKS
from cloud_hub.region.news import find_closing_time
from cloud_hub.registry.device_states import DeviceLookup
from cloud_hub.registry.presence import DeviceActivity, DevicePresence
from cloud_hub.runtime.billing import HubBilling
from cloud_hub.runtime.jobs import HubJobs
from cloud_hub.runtime.link import HubLink, OutboundPublisher, TransportFactory
from cloud_hub.runtime.rounds import RoundTimer
from cloud_hub.runtime.services import HubServices
from cloud_hub.runtime.shard_server import LeasedShards, RateDivider
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.security.hub_keys import HubKeys
from cloud_hub.serving.bundles import MemoryCatalog
from cloud_hub.serving.executor import BatchExecutor, EnginePool
from cloud_hub.serving.telemetry import InferenceObserver
from cloud_hub.serving.versions import VersionManager
from cloud_hub.serving.web_inference import WebInference
from cloud_hub.storage.gateway import StoreGateway
from cloud_hub.storage.versions import ModelUsageStore
from cloud_hub.system.clock import HubClock
from cloud_hub.system.settings import HubSettings
from policies.model.policy import Policy
from policies.serving.shard_leases import SHARDS
from wire.process.logging import JsonLog, safe_name
from wire.transport.base import IncomingMessage

WAKE_S = 1.0
LINGER_S = 2.0  # a draining hub stays this long at most to refuse late requests, ...
QUIET_S = 0.2  # ... and stops once none came for this long
_NO_SIDES = HubServices()


class Hub:
    """A hub. `run` serves until `stop`; every other method is called from the same event loop while it runs.

    Public parts: `inference` (web requests), `versions` and `engines` (models), `language_models`, `store`, `voice`
    (outbound messages) and `observer` (timings and traces).
    """

    def __init__(
        self,
        *,
        settings: HubSettings,
        keys: HubKeys,
        registry: DeviceLookup,
        engines: Sequence[Engine],
        connect: TransportFactory,
        sides: HubServices = _NO_SIDES,
    ) -> None:
        self._settings, self._registry = settings, registry
        self._work = sides.work or OrderedWork()
        self._log = sides.log or JsonLog()
        self.language_models = sides.language_models or LanguageModels()
        stock, asker = sides.stock or MemoryCatalog({}), QuestionAsker(self.language_models)
        self.engines = EnginePool(engines, stock, self._on_loaded, self._log, asker)
        self._envelopes = HubEnvelopes(keys)
        self._core = HubCore(settings, self.engines.cards, registry, self._envelopes, sides.orders)
        self._presence, self._region_clock, self.limits = DevicePresence(), sides.clock, self._core.limits
        self._link = HubLink(connect, self._on_batch, random.random, self._log, self._presence.on_link)
        self._clock = self._make_clock()
        self._started_s, self._drain_until = 0.0, inf
        self.observer = sides.observer or InferenceObserver()
        self.store = StoreGateway(
            core=self._core,
            envelopes=self._envelopes,
            now=self._now,
            hears=(self._handle_event, self._on_committed),
            on_ended=self._on_ended,
            log=self._log,
        )
        self._rounds = RoundTimer(self._core, self._now, self._flush_events)
        self._runs = BatchExecutor(
            self._core, self.engines, (self._handle_event, self._handle_and_flush), self._log, self._on_computed
        )
        self.voice = OutboundPublisher(self._link, self._envelopes, registry, self._now)
        self.inference = WebInference(self._core, self._now, self._flush_events, self.observer, sides.request_keys)
        self.jobs = HubJobs(
            self.store,
            self.inference,
            settings.database_url,
            models=self.language_models,
            services=sides.jobs,
            now=self._now,
            log=self._log,
        )
        self.jobs.follow_backlog(self._core.lineup.scaling)
        self.versions = VersionManager(
            self._core.lineup, self.engines, self._handle_and_flush, sides.spoken or ModelUsageStore.open(None)
        )
        self.leases = sides.leases
        self._shards = self._open_shards(sides.rated)
        self._serve_by_lease(self.leases)
        self._billing = HubBilling(self.store, settings.region, self.language_models, self.engines.setups, sides.energy)
        self._stop, self._ready = asyncio.Event(), asyncio.Event()
        self._obey_one = self._command_handlers()

    def _open_shards(self, rated: Iterable[RateDivider]) -> LeasedShards:
        told = ((self.language_models.divide_rates, *rated), self._presence.forget_shards)
        return LeasedShards(self._core, self.store, self._link, self._handle_and_flush, told)

    def _make_clock(self, floor_s: float = 0.0) -> HubClock:
        return HubClock(floor_s, self._region_clock.now if self._region_clock else time.time)

    def _serve_by_lease(self, leases: LeaseKeeper | None) -> None:
        if leases is None:
            return
        self._core.served.serve_by_lease()
        self._link.serve_by_lease()
        self.store.serve_by_lease(leases.session, lambda shards: leases.on_fenced(self._shards, shards))

    def _command_handlers(self) -> dict[type, Callable[[Any], None]]:
        """Return the handler of each command type."""
        return {
            c.StoreQuestion: self.store.store_question,
            c.StoreEnding: self.store.store_ending,
            c.DeleteQuestion: self.store.delete_question,
            c.LookUpQuestions: self.store.look_up_questions,
            c.PruneRows: self.store.prune_rows,
            c.SealVerdict: self.store.seal_verdict,
            c.SuspendDevice: self._mark_suspect,
            c.RunBatch: self._runs.run_batch,
            c.CheckEngine: self._runs.check_engine,
            c.LoadModel: lambda x: self.engines.load(x.model),
            c.UnloadModel: lambda x: self.engines.unload(x.model),
            c.SetReplicas: lambda x: self.engines.set_replicas(x.model, x.count),
            c.SendNote: lambda x: self.voice.publish_note(x.device, x.note),
            c.SendFrame: self.voice.publish_stored,
            c.AnswerWebSample: self.inference.answer_sample,
            c.LogLedgerHead: self.voice.log_heads,
            c.ResendAssignments: self.voice.on_hello,
            c.RecordInstallReport: self.voice.on_report,
        }

    def _mark_suspect(self, command: c.SuspendDevice) -> None:
        self._work.submit(self._registry.suspect, command.device, int(self._clock.now() * 1000))

    # -- for the process and the web API

    @property
    def ready(self) -> asyncio.Event:
        """Event that is set once the store is open, open questions are restored and the engines are warm."""
        return self._ready

    @property
    def served(self) -> ServedShards:
        """Shards that this hub serves."""
        return self._core.served

    async def run(self) -> None:
        """Open the store, restore open questions, serve. ExitError(DATABASE) if a newer program wrote the store."""
        found = self.store.open(self._settings.database_url)
        if found.damaged:
            self._core.counts["store_damaged"] += 1
            self._log.error("store_damaged", kept_as=safe_name(found.damaged))
        self._clock = self._make_clock(found.newest_ms / 1000)
        self._started_s = self._clock.now()
        try:
            await self._runs.start()
            await self.versions.read_initial()
            for stone in found.tombstones:
                self._handle_event(self._core.on_erased, (), stone)
            self._handle_event(self._core.restore_questions, found.owed)
            self._flush_events()
            await self._run_tasks()
        finally:
            await self.engines.close()
            await self.store.close()
            if self.leases is not None:
                await self.leases.give_all()

    def drain(self) -> None:
        """Refuse new work from now on; open work has `drain_s` to be finished."""
        if not self._core.draining:
            self._core.drain()
            self.language_models.drain()
            self.jobs.drain()
            if self.leases is not None:
                self.leases.drain()
            self._drain_until = time.monotonic() + self._settings.drain_s

    async def wait_drained(self) -> None:
        """Wait until open work is finished or time is up.

        Then waiting web callers are refused; questions of devices stay in the store for the next start.
        """
        while self._open_work() and time.monotonic() < self._drain_until:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.01)
        self._handle_and_flush(self._core.refuse_web_requests)
        await self.jobs.settle(LINGER_S)
        until = time.monotonic() + min(LINGER_S, self._settings.drain_s)
        while self.inference.idle_s() < QUIET_S and time.monotonic() < until:  # noqa: ASYNC110 - they are told so
            await asyncio.sleep(0.01)

    def _open_work(self) -> int:
        return self._core.open_count + self.language_models.open_requests

    def stop(self) -> None:
        """Drain and let `run` return."""
        self.drain()
        self._stop.set()

    def set_policies(self, policies: tuple[Policy, ...]) -> None:
        """Accept only questions under these policies from now on."""
        self._core.replace_policies(policies)

    def set_keys(self, keys: HubKeys) -> None:
        """Open questions with these keys from now on."""
        self._envelopes.use_keys(keys)

    def hears_region(self) -> bool:
        """Return whether this hub knows what the others of its region changed; True of one that is alone."""
        return not self._core.news.is_closed(self._clock.now())

    def on_caught_up(self, age_s: float) -> None:
        """Everything that other hubs had changed `age_s` seconds ago was taken in."""
        self._handle_event(self._core.news.on_caught_up, find_closing_time(self._clock.now(), age_s))

    def on_erased_elsewhere(self, stones: Sequence[Tombstone]) -> None:
        """Take in what other hubs erased."""
        self._handle_event(self._core.news.on_erased_elsewhere, stones)

    def now_ms(self) -> int:
        """Return hub time in ms."""
        return int(self._clock.now() * 1000)

    def status(self) -> dict[str, Any]:
        """Return JSON-able status: hub, link, store, uptime_s, open, queued, language models, devices, counters."""
        now = self._clock.now()
        return {
            "hub": self._settings.name,
            "member": self._settings.member,
            "region": self._settings.region,
            "shards": len(self.leases.shards) if self.leases else SHARDS,
            "tasks": [task.value for task in TASKS if does_task(self.leases, task)],
            "time_ms": int(now * 1000),
            "uptime_s": round(now - self._started_s, 1) if self._started_s else 0.0,
            "link_up": self._link.up,
            "store_ok": not self.store.fault,
            "store_fault": self.store.fault,
            "region_heard": self.hears_region(),
            "clock_fault": self._region_clock.fault() if self._region_clock else "",
            "stores_damaged": self.store.list_damaged(),
            "open": self._open_work(),
            "draining": self._core.draining,
            "queued": self._core.queued_by_model(),
            "engines_down": list(self._core.engines_down()),
            "replicas": self._core.lineup.scaling.describe(),
            "language_models": self.language_models.status(),
            "devices": {device: hello.agent for device, hello in self._core.hellos.items()},
            "ledger_flaws": sorted(self.voice.ledger.flawed) if self.voice.ledger else [],
            "counters": self.counters(),
        }

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Policies whose questions this hub serves and that it has in full."""
        return self._core.book.policies

    def last_heard(self) -> dict[str, float]:
        """Return the hub time (s) at which each device last signed something, since this process began."""
        return self._core.last_heard()

    def device_activity(self, device: str) -> DeviceActivity:
        """Return whether a device is connected, when it was last heard, and what models it announced."""
        use = self._core.lineup.speakers.get(device, ModelUse((), 0))
        hello = self._core.hellos.get(device)
        return self._presence.describe(device, use.versions(), use.at_ms, hello.agent if hello else "")

    def counters(self) -> dict[str, int]:
        """Return monotonic counts by dotted name, such as `accepted`, `verdicts`, `refused.busy`."""
        ledger = self.voice.ledger.counts if self.voice.ledger else {}
        spans = self.observer.span_counts()
        own = {"commits": self.store.commits, "load_failed": self.engines.failed_loads}
        language = self.language_models.counters()
        return {**self._core.counts, **self._link.counts, **ledger, **spans, **own, **language, **self.jobs.counts}

    # -- tasks

    async def _run_tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._link.run(), name="hub-link"),
                group.create_task(self._run_timer(), name="hub-wake"),
                group.create_task(self.inference.run(), name="hub-pulse"),
                group.create_task(self.jobs.run(), name="hub-jobs"),
                group.create_task(self.language_models.run(), name="hub-language-models"),
                group.create_task(self._billing.run(), name="hub-energy"),
            ]
            if self.leases is not None:
                tasks.append(group.create_task(self._shards.run(self.leases), name="hub-leases"))
                await self.leases.settled.wait()
            self._ready.set()
            await self._stop.wait()
            await self.wait_drained()
            for task in tasks:
                task.cancel()

    async def _run_timer(self) -> None:
        while True:
            await asyncio.sleep(WAKE_S)
            self.store.check_alive()
            self.store.probe()
            self.engines.log_fallbacks()
            self._handle_and_flush(self._core.on_wake)
            await self._save_model_use()

    async def _save_model_use(self) -> None:
        try:
            await self.versions.remember_uses(self._core.take_model_uses(self._clock.now()))
        except SQLAlchemyError as error:
            log_fault(self._log, "not_remembered", error)  # devices repeat it daily

    # -- events

    def _now(self) -> float:
        return self._clock.now()

    def _handle_and_flush(self, event: Callable[..., list[c.Command]], *facts: Any) -> None:
        """Handle one event and then flush."""
        self._handle_event(event, *facts)
        self._flush_events()

    def _on_loaded(self, model: str, why: str, card: ModelCard | None) -> None:
        self._runs.on_loaded(model, why, card)

    def _on_ended(self, key: c.QuestionKey) -> None:
        self.observer.on_stored(key, self._clock.now())

    def _on_computed(self, ticket: int, result: BatchResult) -> None:
        batch, now = self._core.running_batch(ticket), self._clock.now()
        self.observer.on_batch(batch, result, now)
        self._billing.on_computed(batch, result, now)

    def _handle_event(self, event: Callable[..., list[c.Command]], *facts: Any) -> None:
        """Handle one event: call the core and execute its commands."""
        try:
            commands = event(*facts, self._clock.now())
        except Exception as error:  # noqa: BLE001 - the loop outlives any single message
            self._record_defect(error)
            return
        for command in commands:
            self._execute(command)

    def _execute(self, command: c.Command) -> None:
        """Execute a command. A failure costs this command alone: the next one may be another device's."""
        try:
            self._obey_one[type(command)](command)
        except Exception as error:  # noqa: BLE001
            self._record_defect(error)

    def _record_defect(self, error: Exception) -> None:
        self._core.counts["defects"] += 1
        self._log.defect("hub_defect", error)

    def _flush_events(self) -> None:
        """Flush after a group of events: receipts, batches, and one job for the store."""
        self._rounds.on_flushed()
        self._handle_event(self._core.flush)
        self.store.submit_job()

    def _on_committed(self) -> None:
        """Flush after a commit, which does not end a round that is being gathered."""
        if self._rounds.is_gathering:
            self._handle_event(self._core.receipts.take_notes)
        else:
            self._flush_events()

    def _on_batch(self, batch: list[IncomingMessage]) -> None:
        now_ms = self.now_ms()
        if self.leases is not None:
            self.leases.check_sure(self._shards)
            batch = [message for message in batch if not self._shards.park(message)]
        for message in batch:
            self._presence.on_message(message.topic, now_ms)
            self._handle_event(self._core.on_message, message.topic, message.payload)
        self._rounds.end_or_wait()
