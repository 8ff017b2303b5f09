"""The hub's event loop: feeds messages, timers and results to `HubCore` and executes the commands it returns.

Rule: the core is called on the event loop's thread only, one event at a time, never across an `await`. A defect in one
event is logged and counted and costs that event alone; what it left undone is healed by the device's `Ask`.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from cloud_hub.core import commands as c
from cloud_hub.core.core import HubCore
from cloud_hub.engine.base import Engine
from cloud_hub.engine.types import ModelCard
from cloud_hub.engine.worker import Result
from cloud_hub.registry.device_states import Registry
from cloud_hub.registry.orders import Orders
from cloud_hub.runtime.link import Link, TransportFactory, Voice
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.security.hub_keys import HubKeys
from cloud_hub.serving.bundles import MemoryStock, Stock
from cloud_hub.serving.executor import Engines, Runs
from cloud_hub.serving.telemetry import Observer
from cloud_hub.serving.versions import Versions
from cloud_hub.serving.web import Reception
from cloud_hub.storage.gateway import StoreGateway
from cloud_hub.storage.versions import Spoken
from cloud_hub.system.clock import HubClock
from cloud_hub.system.settings import HubSettings
from policies.model.policy import Policy
from wire.process.logging import Log, fault, name
from wire.transport.base import Incoming

WAKE_S = 1.0
LINGER_S = 2.0  # a draining hub stays this long at most to refuse late requests, ...
QUIET_S = 0.2  # ... and stops once none came for this long


class Sides(NamedTuple):
    """Optional services of a hub; each has a default that stores nothing."""

    log: Log | None = None
    orders: Orders | None = None
    stock: Stock | None = None
    spoken: Spoken | None = None
    observer: Observer | None = None  # records batch times, and traced work as spans


_NO_SIDES = Sides()


class Hub:
    """A hub. `run` serves until `stop`; every other method is called from the same event loop while it runs.

    Public parts: `inference` (web requests), `versions` and `engines` (models), `store`, `voice` (outbound messages)
    and `observer` (timings and traces).
    """

    def __init__(
        self,
        *,
        settings: HubSettings,
        keys: HubKeys,
        registry: Registry,
        engines: Sequence[Engine],
        connect: TransportFactory,
        sides: Sides = _NO_SIDES,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._log = sides.log or Log()
        self.engines = Engines(engines, sides.stock or MemoryStock({}), self._on_loaded, self._log)
        self._envelopes = HubEnvelopes(keys)
        self._core = HubCore(settings, self.engines.cards, registry, self._envelopes, sides.orders)
        self._link = Link(connect, self._on_batch, random.random)
        self._clock = HubClock()
        self._started_s = 0.0
        self._drain_until = inf
        self.observer = sides.observer or Observer()
        self.store = StoreGateway(
            core=self._core,
            envelopes=self._envelopes,
            now=self._now,
            hear=self._hear,
            on_ended=self._on_ended,
            log=self._log,
        )
        self._runs = Runs(self._core, self.engines, (self._hear, self._told), self._log, self._on_computed)
        self.voice = Voice(self._link, self._envelopes, self._now)
        self.inference = Reception(self._core, self._now, self._round)
        self.versions = Versions(self._core.lineup, self.engines, self._told, sides.spoken or Spoken.open(None))
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        self._obey_one = self._obedience()

    def _obedience(self) -> dict[type, Callable[[Any], None]]:
        """Return the handler of each command type."""
        return {
            c.Keep: self.store.keep,
            c.End: self.store.end,
            c.Forget: self.store.forget,
            c.Find: self.store.find,
            c.Prune: self.store.prune,
            c.Judged: self.store.seal,
            c.Suspect: self._suspect,
            c.Infer: self._runs.infer,
            c.Check: self._runs.check,
            c.Load: lambda x: self.engines.load(x.model),
            c.Unload: lambda x: self.engines.unload(x.model),
            c.Tell: lambda x: self.voice.tell(x.device, x.note),
            c.Resend: self.voice.resend,
            c.Hand: self.inference.hand,
            c.Log: self.voice.log_heads,
            c.Greeted: self.voice.greet,
            c.Reported: self.voice.hand_report,
        }

    def _suspect(self, command: c.Suspect) -> None:
        self._registry.suspect(command.device, int(self._clock.now() * 1000))

    # -- for the process and the web API

    @property
    def ready(self) -> asyncio.Event:
        """Event that is set once the store is open, open questions are restored and the engines are warm."""
        return self._ready

    async def run(self) -> None:
        """Open the store, restore open questions, serve. ExitError(DATABASE) if the store cannot be used."""
        found = self.store.open(self._settings.database_url)
        self._clock = HubClock(found.newest_ms / 1000)
        self._started_s = self._clock.now()
        try:
            await self._runs.start()
            await self.versions.look()
            for stone in found.tombstones:
                self._hear(self._core.on_erased, (), stone)
            self._hear(self._core.restore, found.owed)
            self._round()
            self._ready.set()
            await self._serve()
        finally:
            await self.engines.close()
            await self.store.close()

    def drain(self) -> None:
        """Refuse new work from now on; open work has `drain_s` to be finished."""
        if not self._core.draining:
            self._core.drain()
            self._drain_until = time.monotonic() + self._settings.drain_s

    async def drained(self) -> None:
        """Wait until open work is finished or time is up.

        Then waiting web callers are refused; questions of devices stay in the store for the next start.
        """
        while self._core.open and time.monotonic() < self._drain_until:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.01)
        self._told(self._core.give_up)
        until = time.monotonic() + min(LINGER_S, self._settings.drain_s)
        while self.inference.quiet_s() < QUIET_S and time.monotonic() < until:  # noqa: ASYNC110 - they are told so
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        """Drain and let `run` return."""
        self.drain()
        self._stop.set()

    def serve_under(self, policies: tuple[Policy, ...]) -> None:
        """Accept only questions under these policies from now on."""
        self._core.serve_under(policies)

    def use_keys(self, keys: HubKeys) -> None:
        """Open questions with these keys from now on."""
        self._envelopes.use(keys)

    def now_ms(self) -> int:
        """Return hub time in ms."""
        return int(self._clock.now() * 1000)

    def status(self) -> dict[str, Any]:
        """Return JSON-able status: hub, region, link, store, uptime_s, open, queued per model, devices, counters."""
        now = self._clock.now()
        return {
            "hub": self._settings.name,
            "region": self._settings.region,
            "time_ms": int(now * 1000),
            "uptime_s": round(now - self._started_s, 1) if self._started_s else 0.0,
            "link_up": self._link.up,
            "store_ok": self.store.ok,
            "open": self._core.open,
            "draining": self._core.draining,
            "queued": self._core.queued(),
            "engines_down": list(self._core.engines_down()),
            "devices": {device: hello.agent for device, hello in self._core.hellos.items()},
            "ledger_flaws": sorted(self.voice.ledger.flawed) if self.voice.ledger else [],
            "counters": self.counters(),
        }

    def counters(self) -> dict[str, int]:
        """Return monotonic counts by dotted name, such as `accepted`, `verdicts`, `refused.busy`."""
        ledger = self.voice.ledger.counts if self.voice.ledger else {}
        return {**self._core.counts, **self._link.counts, **ledger, "commits": self.store.commits}

    # -- tasks

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._link.run(), name="hub-link"),
                group.create_task(self._wake(), name="hub-wake"),
                group.create_task(self.inference.run(), name="hub-pulse"),
            ]
            await self._stop.wait()
            await self.drained()
            for task in tasks:
                task.cancel()

    async def _wake(self) -> None:
        while True:
            await asyncio.sleep(WAKE_S)
            self.store.check()
            self._told(self._core.on_wake)
            await self._remember()

    async def _remember(self) -> None:
        try:
            await self.versions.remember(self._core.heard(self._clock.now()))
        except sqlite3.Error as error:
            self._log.warning("not_remembered", error=name(str(error)))  # devices repeat it daily

    # -- events

    def _now(self) -> float:
        return self._clock.now()

    def _told(self, event: Callable[..., list[c.Command]], *facts: Any) -> None:
        """Handle one event and then flush."""
        self._hear(event, *facts)
        self._round()

    def _on_loaded(self, model: str, why: str, card: ModelCard | None) -> None:
        self._runs.on_loaded(model, why, card)

    def _on_ended(self, key: c.Key) -> None:
        self.observer.stored(key, self._clock.now())

    def _on_computed(self, ticket: int, result: Result) -> None:
        self.observer.computed(self._core.batch(ticket), result, self._clock.now())

    def _hear(self, event: Callable[..., list[c.Command]], *facts: Any) -> None:
        """Handle one event: call the core and execute its commands."""
        try:
            commands = event(*facts, self._clock.now())
        except Exception as error:  # noqa: BLE001 - the loop outlives any single message
            self._defect(error)
            return
        for command in commands:
            self._obey(command)

    def _obey(self, command: c.Command) -> None:
        """Execute a command. A failure costs this command alone: the next one may be another device's."""
        try:
            self._obey_one[type(command)](command)
        except Exception as error:  # noqa: BLE001
            self._defect(error)

    def _defect(self, error: Exception) -> None:
        self._core.counts["defects"] += 1
        self._log.error("hub_defect", error=fault(error))

    def _round(self) -> None:
        """Flush after a group of events: receipts, batches, and one job for the store."""
        self._hear(self._core.flush)
        self.store.write()

    def _on_batch(self, batch: list[Incoming]) -> None:
        for message in batch:
            self._hear(self._core.on_message, message.topic, message.payload)
        self._round()
