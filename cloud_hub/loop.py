"""The loop that obeys `HubCore`: link, store, engines and the web API meet here and nowhere else.

Rule: the core is called on the event loop's thread only, one event at a time, never across an `await`. A defect in one
event is logged and counted and costs that event alone; what it left undone is healed by the device's `Ask`.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud_hub import commands as c
from cloud_hub.aggregates import Tally
from cloud_hub.clock import HubClock
from cloud_hub.core import HubCore
from cloud_hub.devices import Registry
from cloud_hub.engine.base import Engine
from cloud_hub.engine.lane import Result
from cloud_hub.engines import Engines
from cloud_hub.envelopes import HubEnvelopes, channel_of
from cloud_hub.keys import HubKeys
from cloud_hub.ledger_clerk import Clerk
from cloud_hub.ledger_log import Received
from cloud_hub.link import Link, TransportFactory
from cloud_hub.orders import Notice, Orders
from cloud_hub.reception import Reception
from cloud_hub.requests import InferRefused, Kept, Probe, Wish
from cloud_hub.retention import Erase, Tombstone
from cloud_hub.settings import HubSettings
from cloud_hub.spoken import Spoken
from cloud_hub.stock import MemoryStock, Stock
from cloud_hub.store import Done, Job, Store, StoreError, read_aside
from cloud_hub.versions import Versions
from cloud_hub.watch import Observer
from cloud_hub.work import ModelCard
from cloud_hub.writer import Writer
from policies.policy import Policy
from wire.daemon import Log, fault, name
from wire.errors import LocalError
from wire.messages import DownNote, Prediction
from wire.topics import Channel, topic
from wire.transport import Incoming

__all__ = ["Hub", "InferRefused", "Probe"]

WAKE_S = 1.0
LINGER_S = 2.0  # a hub that drains stays this long at most to refuse those who still come, ...
QUIET_S = 0.2  # ... and goes once nobody does
_PLAIN = Wish()


class Hub:
    """`run` serves until `stop`; every other method is called from the same event loop while it runs."""

    def __init__(  # noqa: PLR0917
        self,
        settings: HubSettings,
        keys: HubKeys,
        registry: Registry,
        engines: Sequence[Engine],
        transport_factory: TransportFactory,
        log: Log | None = None,
        orders: Orders | None = None,
        stock: Stock | None = None,
        spoken: Spoken | None = None,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._log = log or Log()
        self._engines = Engines(engines, stock or MemoryStock({}), self._on_loaded, self._log)
        self._envelopes = HubEnvelopes(keys)
        self._core = HubCore(settings, self._engines.cards, registry, self._envelopes, orders)
        self._link = Link(transport_factory, self._on_batch, random.random)
        self._clock = HubClock()
        self._started_s = 0.0
        self._writer: Writer | None = None
        self._job = Job()
        self._inlined = False
        self._drain_until = inf
        self._reception = Reception(self._core, self._now, self._round)
        self.versions = Versions(self._core.lineup, self._engines, self._told, spoken or Spoken.open(None))
        self._erasures: dict[Erase, asyncio.Future[Tombstone]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self.watch = Observer()  # counts the times of batches, tells traced work as spans
        self._store_ok = True
        self._ready = asyncio.Event()
        self.ledger: Clerk | None = None  # keeps the log of the devices' ledger heads, if this hub keeps one
        self._obey_one: dict[type, Callable[[Any], None]] = {
            c.Keep: lambda x: self._job.keeps.append(x.question),
            c.End: lambda x: self._job.endings.append(x.ending),
            c.Forget: lambda x: self._job.forgets.append(x.key),
            c.Find: self._find,
            c.Suspect: self._suspect,
            c.Prune: self._prune,
            c.Judged: self._judged,
            c.Infer: self._infer,
            c.Check: self._check,
            c.Load: lambda x: self._engines.load(x.model),
            c.Unload: lambda x: self._engines.unload(x.model),
            c.Tell: self._tell,
            c.Resend: self._resend,
            c.Hand: self._reception.hand,
            c.Log: self._log_heads,
        }

    # -- for the process and the web API

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """The models that take work now."""
        return self._core.lineup.ready

    @property
    def ready(self) -> asyncio.Event:
        """Set once the store is open, old questions are taken up and the engines are warm."""
        return self._ready

    async def run(self) -> None:
        """Open the store, heal what a restart left, serve. Stop(DATABASE) if the store cannot be used."""
        store = Store.open(self._settings.database_url)
        self._clock = HubClock(store.newest_ms() / 1000)
        self._started_s = self._clock.now()
        running = asyncio.get_running_loop()
        owed = store.owed()
        self._writer = Writer(store, running, self._on_written)
        try:
            await self._engines.start()
            for card in self._engines.cards:
                self._hear(self._core.lineup.measured, card.name, self._engines.cost(card.name))
            await self.versions.look()
            for stone in store.tombstones():
                self._hear(self._core.on_erased, (), stone)
            self._hear(self._core.restore, owed)
            self._round()
            self._ready.set()
            await self._serve()
        finally:
            await self._engines.close()
            await self._writer.close()

    def drain(self) -> None:
        """Refuse what is new from now on; what is under way has `drain_s` to be finished."""
        if not self._core.draining:
            self._core.drain()
            self._drain_until = time.monotonic() + self._settings.drain_s

    async def drained(self) -> None:
        """Until all is finished or time is up: then callers are told to come again; questions wait in the store."""
        while self._core.open and time.monotonic() < self._drain_until:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.01)
        self._told(self._core.give_up)
        until = time.monotonic() + min(LINGER_S, self._settings.drain_s)
        while self._reception.quiet_s() < QUIET_S and time.monotonic() < until:  # noqa: ASYNC110 - they are told so
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        """Drain, then `run` returns."""
        self.drain()
        self._stop.set()

    async def infer(self, model: str, inputs: npt.NDArray[np.generic], wish: Wish = _PLAIN) -> list[Prediction]:
        """Whole-model inference of `inputs` (batch first) through the queue that questions use. InferRefused otherwise.

        `model` is a name (`digits`, its newest version) or a name with a version (`digits@7`).
        """
        return await self._reception.infer(model, inputs, wish)

    def overrun(self, tenant: str) -> None:
        """See `Reception.overrun`: asked before a request is read."""
        self._reception.overrun(tenant)

    def card(self, model: str) -> ModelCard | None:
        """The card of `digits@7`, or of the newest `digits` that is loaded."""
        return self._reception.card(model)

    def repository(self) -> list[Kept]:
        """Every version of every model the hub has, loaded or not."""
        return self.versions.list()

    async def load(self, model: str) -> None:
        """See `Versions.load`."""
        await self.versions.load(model)

    async def unload(self, model: str) -> None:
        """See `Versions.unload`."""
        await self.versions.unload(model)

    async def probe(self) -> list[Probe]:
        """A fresh round trip through every engine's thread: what `/readyz` reports."""
        return await self._engines.probe()

    @property
    def served(self) -> tuple[Policy, ...]:
        """The policies that are here in full since the start."""
        return self._settings.documents

    def serve_under(self, policies: tuple[Policy, ...]) -> None:
        """Questions under these policies alone are taken from now on."""
        self._core.serve_under(policies)

    def hint(self, device: str) -> None:
        """Send an empty message: there is something new in the update repository."""
        self._link.post(topic(device, Channel.DESIRED), b"")

    def announce(self, notice: Notice, devices: Iterable[str]) -> None:
        """Tell these devices now; whoever misses it is told when it next says hello."""
        for device in devices:
            self._obey(c.Tell(device, notice.note()))

    async def erase(self, wish: Erase) -> Tombstone:
        """Forget a subject, on disk and in memory. StoreError if that could not be written: then nothing was."""
        under_way = self._erasures.get(wish)
        if under_way is None:
            under_way = self._erasures[wish] = asyncio.get_running_loop().create_future()
            self._job.erases.append(wish)
            self._round()
        return await asyncio.shield(under_way)

    async def tallies(self) -> list[Tally]:
        """Counts as they lie in the store; `aggregates.published` says what of them may be shown."""
        return await asyncio.to_thread(read_aside, self._settings.database_url)

    def use_keys(self, keys: HubKeys) -> None:
        """Open questions with these from now on."""
        self._envelopes.use(keys)

    def testify(self, text: bytes) -> bytes:
        """This hub's signature that something was done."""
        return self._envelopes.testify(text)

    def status(self) -> dict[str, Any]:
        """JSON-able: hub, region, link_up, store_ok, uptime_s, open, queued per model, devices, counters."""
        now = self._clock.now()
        return {
            "hub": self._settings.name,
            "region": self._settings.region,
            "time_ms": int(now * 1000),
            "uptime_s": round(now - self._started_s, 1) if self._started_s else 0.0,
            "link_up": self._link.up,
            "store_ok": self._store_ok,
            "open": self._core.open,
            "draining": self._core.draining,
            "queued": self._core.queued(),
            "engines_down": list(self._core.engines_down()),
            "devices": {device: hello.agent for device, hello in self._core.hellos.items()},
            "ledger_flaws": sorted(self.ledger.flawed) if self.ledger else [],
            "counters": self.counters(),
        }

    def counters(self) -> dict[str, int]:
        """Monotonic counts by dotted name (`accepted`, `receipts`, `verdicts`, `refused.busy`, `dropped.signature`)."""
        commits = self._writer.commits if self._writer else 0
        ledger = self.ledger.counts if self.ledger else {}
        return {**self._core.counts, **self._link.counts, **ledger, "commits": commits}

    # -- tasks

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._link.run(), name="hub-link"),
                group.create_task(self._wake(), name="hub-wake"),
                group.create_task(self._reception.run(), name="hub-pulse"),
            ]
            await self._stop.wait()
            await self.drained()
            for task in tasks:
                task.cancel()

    async def _wake(self) -> None:
        while True:
            await asyncio.sleep(WAKE_S)
            if self._writer is None or not self._writer.alive:
                raise RuntimeError("the store's thread has ended")
            self._told(self._core.on_wake)
            await self._remember()

    async def _remember(self) -> None:
        try:
            await self.versions.remember(self._core.heard(self._clock.now()))
        except sqlite3.Error as error:
            self._log.warning("not_remembered", error=name(str(error)))  # the devices say it again tomorrow

    # -- events

    def _now(self) -> float:
        return self._clock.now()

    def _told(self, event: Callable[..., list[c.Command]], *facts: Any) -> None:
        """One thing and the round after it."""
        self._hear(event, *facts)
        self._round()

    def _on_loaded(self, model: str, why: str, card: ModelCard | None) -> None:
        if not why:
            self._hear(self._core.lineup.measured, model, self._engines.cost(model))
        self._told(self._core.lineup.on_loaded, model, why, card)

    def _hear(self, event: Callable[..., list[c.Command]], *facts: Any) -> None:
        """Tell the core one thing and obey."""
        try:
            commands = event(*facts, self._clock.now())
        except Exception as error:  # noqa: BLE001 - the loop outlives any single message
            self._defect(error)
            return
        for command in commands:
            self._obey(command)

    def _obey(self, command: c.Command) -> None:
        """A command that cannot be obeyed costs itself alone: the next one may be another device's."""
        try:
            self._obey_one[type(command)](command)
        except Exception as error:  # noqa: BLE001
            self._defect(error)

    def _defect(self, error: Exception) -> None:
        self._core.counts["defects"] += 1
        self._log.error("hub_defect", error=fault(error))

    def _round(self) -> None:
        """After each group of events: receipts, batches, and one job for the store."""
        self._hear(self._core.flush)
        if self._job and self._writer:
            job, self._job = self._job, Job()
            self._writer.submit(job)

    def _on_batch(self, batch: list[Incoming]) -> None:
        for message in batch:
            self._hear(self._core.on_message, message.topic, message.payload)
        self._round()

    def _on_written(self, dones: list[Done]) -> None:
        for done in dones:
            if done.error:
                self._on_unwritten(done)
                continue
            self._store_ok = True
            job = done.job
            if done.vanished:
                self._hear(self._core.on_vanished, done.vanished)
            # Endings first: a question that has its verdict needs no receipt.
            self._hear(self._core.on_ended, [e for e in job.endings if e.key not in done.vanished])
            for ending in job.endings:
                self.watch.stored(ending.key, self._clock.now())
            self._hear(self._core.on_kept, [question.key for question in job.keeps])
            for find in job.finds:
                self._hear(self._core.on_found, find, done.rows, done.highest)
            for wish, (keys, stone) in zip(job.erases, done.erased, strict=True):
                self._hear(self._core.on_erased, keys, stone)
                self._erasures.pop(wish).set_result(stone)
            if done.more:
                self._job.prune_before_ms = job.prune_before_ms
        self._round()

    def _on_unwritten(self, done: Done) -> None:
        self._store_ok = False
        self._log.error("store_failed", error=name(done.error))
        self._hear(self._core.on_keep_failed, done.job.keeps)
        self._hear(self._core.on_end_failed, done.job.endings)
        for find in done.job.finds:
            self._hear(self._core.on_find_failed, find)
        for wish in done.job.erases:
            self._erasures.pop(wish).set_exception(StoreError(done.error))

    def _on_result(self, ticket: int, result: Result) -> None:
        self.watch.computed(self._core.batch(ticket), result, self._clock.now())
        if result.error:
            self._log.warning("engine_failed", error=name(result.error))
            self._hear(self._core.on_engine_failed, ticket)
        else:
            self._hear(self._core.on_results, ticket, result.predictions, result.seconds)

    # -- commands

    def _judged(self, command: c.Judged) -> None:
        now = self._clock.now()
        try:
            frame = self._envelopes.verdict(command.device, command.key, command.verdict, command.binding, now)
        except LocalError:
            self._hear(self._core.on_unsealable, command.key)
            return
        said = command.verdict.prediction
        ended = c.Ending(command.key, int(now * 1000), verdict=frame, label=said.label, model=said.model)
        self._job.endings.append(ended)

    def _infer(self, command: c.Infer) -> None:
        if self._inlined:  # the batch after one that ran inline: after whoever else waits
            asyncio.get_running_loop().call_soon(self._infer, command)
            return
        lane = self._engines.lane(command.model)
        batch = [item.work for item in command.items]
        result = lane.inline(batch)
        if result is None:
            lane.submit(batch, lambda late: self._on_late(command.ticket, late))
            return
        self._inlined = True
        self._on_result(command.ticket, result)
        self._inlined = False
        asyncio.get_running_loop().call_soon(self._round)

    def _on_late(self, ticket: int, result: Result) -> None:
        self._on_result(ticket, result)
        self._round()

    def _check(self, command: c.Check) -> None:
        task = asyncio.create_task(self._checked(command.model), name=f"hub-check-{command.model}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _checked(self, model: str) -> None:
        result = await self._engines.lane(model).probe()
        if result.error:
            self._log.error("engine_down", model=name(model), error=name(result.error))
        self._hear(self._core.on_checked, model, not result.error)
        self._round()

    def _find(self, command: c.Find) -> None:
        self._job.finds.append(command)

    def _suspect(self, command: c.Suspect) -> None:
        self._registry.suspect(command.device, int(self._clock.now() * 1000))

    def _prune(self, command: c.Prune) -> None:
        self._job.prune_before_ms, self._job.purge_ms = command.before_ms, command.now_ms

    def tell(self, device: str, note: DownNote) -> None:
        """Sign a note and send it."""
        self._tell(c.Tell(device, note))

    def _log_heads(self, command: c.Log) -> None:
        if self.ledger is not None:
            now_ms = int(self._clock.now() * 1000)
            self.ledger.put(Received(command.device, command.key, command.heads, now_ms))

    def _tell(self, command: c.Tell) -> None:
        frame = self._envelopes.note(command.device, command.note, self._clock.now())
        self._link.post(topic(command.device, channel_of(command.note)), frame)

    def _resend(self, command: c.Resend) -> None:
        self._link.post(topic(command.device, Channel.REPLY), command.frame)
