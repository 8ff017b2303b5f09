"""The loop that obeys `HubCore`: link, store, engines and the web API meet here and nowhere else.

Rule: the core is called on the event loop's thread only, one event at a time, never across an `await`. A defect in one
event is logged and counted and costs that event alone; what it left undone is healed by the device's `Ask`.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud_hub import commands as c
from cloud_hub.clock import HubClock
from cloud_hub.core import HubCore
from cloud_hub.devices import Registry
from cloud_hub.engine.base import Engine
from cloud_hub.engine.lane import Lane, Result
from cloud_hub.envelopes import HubEnvelopes
from cloud_hub.keys import HubKeys
from cloud_hub.link import Link, TransportFactory
from cloud_hub.requests import InferRefused, Probe, Request
from cloud_hub.settings import HubSettings
from cloud_hub.store import Done, Job, Store
from cloud_hub.work import ModelCard
from cloud_hub.writer import Writer
from wire.daemon import Log, fault, name
from wire.errors import LocalError
from wire.messages import Prediction, Reason
from wire.topics import Channel, topic
from wire.transport import Incoming

__all__ = ["Hub", "InferRefused", "Probe"]

WAKE_S = 1.0


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
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._engines = tuple(engines)
        self._cards = tuple(engine.card for engine in engines)
        self._envelopes = HubEnvelopes(keys)
        self._core = HubCore(settings, self._cards, registry, self._envelopes)
        self._link = Link(transport_factory, self._on_batch, random.random)
        self._log = log or Log()
        self._clock = HubClock()
        self._started_s = 0.0
        self._lanes: dict[str, Lane] = {}
        self._writer: Writer | None = None
        self._job = Job()
        self._requests: dict[int, Request] = {}
        self._request_number = 0
        self._background: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._store_ok = True
        self._ready = asyncio.Event()
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
            c.Tell: self._tell,
            c.Resend: self._resend,
            c.Hand: self._hand,
        }

    # -- for the process and the web API

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """The models served."""
        return self._cards

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
        self._lanes = {engine.card.name: Lane(engine, running) for engine in self._engines}
        try:
            for lane in self._lanes.values():
                await lane.warm_up()
            self._hear(self._core.restore, owed)
            self._round()
            self._ready.set()
            await self._serve()
        finally:
            for lane in self._lanes.values():
                await lane.close()
            await self._writer.close()

    def stop(self) -> None:
        """Refuse new questions, finish what is under way (at most `drain_s`), then `run` returns."""
        self._core.drain()
        self._stop.set()

    async def infer(self, model: str, inputs: npt.NDArray[np.generic]) -> list[Prediction]:
        """Whole-model inference of `inputs` (batch first) through the queue that questions use. InferRefused otherwise.

        `model` is a name (`digits`, its newest version) or a name with a version (`digits@7`).
        """
        card = self.card(model)
        if card is None:
            raise InferRefused(Reason.MODEL_GONE)
        if not card.takes(inputs):
            raise InferRefused(Reason.SCHEMA)
        self._request_number += 1
        number = self._request_number
        refused = self._core.ask_local(number, card.name, list(inputs), self._clock.now())
        if refused is not None:
            raise InferRefused(refused.reason, refused.retry_after_s)
        request = self._requests[number] = Request(len(inputs))
        self._round()
        try:
            return await request.future
        finally:
            del self._requests[number]
            self._core.drop_local(number)

    def card(self, model: str) -> ModelCard | None:
        """The card of `digits@7`, or of the newest `digits`."""
        named = [card for card in self._cards if model in (card.name, card.ref.name)]
        return max(named, key=lambda card: card.ref.version, default=None)

    async def probe(self) -> list[Probe]:
        """A fresh round trip through every engine's thread: what `/readyz` reports."""
        results = await asyncio.gather(*(lane.probe() for lane in self._lanes.values()))
        pairs = zip(self._lanes, results, strict=True)
        return [Probe(model, not result.error, result.seconds, result.error) for model, result in pairs]

    def hint(self, device: str) -> None:
        """Send an empty message: there is something new in the update repository."""
        self._link.post(topic(device, Channel.DESIRED), b"")

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
            "queued": self._core.queued(),
            "engines_down": list(self._core.engines_down()),
            "devices": {device: hello.agent for device, hello in self._core.hellos.items()},
            "counters": self.counters(),
        }

    def counters(self) -> dict[str, int]:
        """Monotonic counts by dotted name (`accepted`, `receipts`, `verdicts`, `refused.busy`, `dropped.signature`)."""
        commits = self._writer.commits if self._writer else 0
        return {**self._core.counts, **self._link.counts, "commits": commits}

    # -- tasks

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._link.run(), name="hub-link"),
                group.create_task(self._wake(), name="hub-wake"),
            ]
            await self._stop.wait()
            await self._drained()
            for task in tasks:
                task.cancel()

    async def _wake(self) -> None:
        while True:
            await asyncio.sleep(WAKE_S)
            if self._writer is None or not self._writer.alive:
                raise RuntimeError("the store's thread has ended")
            self._hear(self._core.on_wake)
            self._round()

    async def _drained(self) -> None:
        deadline = time.monotonic() + self._settings.drain_s
        while self._core.open and time.monotonic() < deadline:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.01)

    # -- events

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
            self._hear(self._core.on_kept, [question.key for question in job.keeps])
            for find in job.finds:
                self._hear(self._core.on_found, find, done.rows, done.highest)
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

    def _on_result(self, ticket: int, result: Result) -> None:
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
        self._job.endings.append(c.Ending(command.key, int(now * 1000), verdict=frame))

    def _infer(self, command: c.Infer) -> None:
        lane = self._lanes[command.model]
        batch = [item.work for item in command.items]
        result = lane.inline(batch)
        if result is None:
            lane.submit(batch, lambda late: self._on_late(command.ticket, late))
            return
        self._on_result(command.ticket, result)
        asyncio.get_running_loop().call_soon(self._round)  # the next batch, after whoever else waits

    def _on_late(self, ticket: int, result: Result) -> None:
        self._on_result(ticket, result)
        self._round()

    def _check(self, command: c.Check) -> None:
        task = asyncio.create_task(self._checked(command.model), name=f"hub-check-{command.model}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _checked(self, model: str) -> None:
        result = await self._lanes[model].probe()
        if result.error:
            self._log.error("engine_down", model=name(model), error=name(result.error))
        self._hear(self._core.on_checked, model, not result.error)
        self._round()

    def _find(self, command: c.Find) -> None:
        self._job.finds.append(command)

    def _suspect(self, command: c.Suspect) -> None:
        self._registry.suspect(command.device, int(self._clock.now() * 1000))

    def _prune(self, command: c.Prune) -> None:
        self._job.prune_before_ms = command.before_ms

    def _tell(self, command: c.Tell) -> None:
        frame = self._envelopes.note(command.device, command.note, self._clock.now())
        self._link.post(topic(command.device, Channel.REPLY), frame)

    def _resend(self, command: c.Resend) -> None:
        self._link.post(topic(command.device, Channel.REPLY), command.frame)

    def _hand(self, command: c.Hand) -> None:
        request = self._requests.get(command.key.epoch)
        if request is not None:
            request.put(command.key.seq, command.result)
