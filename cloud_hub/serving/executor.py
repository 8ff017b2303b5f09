"""The loaded models and the lanes that compute for them: loading, warming up, giving back.

Rule: an engine takes work only once it is warm; one that goes finishes what it was given. What cannot be loaded costs
one line in the log, and the versions that serve go on.

Batches on their way through the engines: short ones inline, the others on the threads of their lane.

Rule: one inline batch at a time. The next one comes after whoever else waits for the event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from cloud_hub.core import commands as c
from cloud_hub.core.core import HubCore
from cloud_hub.core.web_requests import Probe
from cloud_hub.engine.base import FAULTS, Engine
from cloud_hub.engine.types import ModelCard
from cloud_hub.engine.worker import Lane, Result
from cloud_hub.serving.bundles import Stock
from models.bundle.manifest import BundleError
from policies.serving.batching import Cost
from wire.process.logging import Log, name

Loaded = Callable[[str, str, ModelCard | None], None]  # model, why not ("" = it is ready), its engine's card


class Engines:
    """Every method is called on the event loop; `start` first."""

    def __init__(self, engines: Sequence[Engine], stock: Stock, on_loaded: Loaded, log: Log) -> None:
        self._given = tuple(engines)
        self._stock = stock
        self._on_loaded = on_loaded
        self._log = log
        self._lanes: dict[str, Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def lane(self, model: str) -> Lane:
        return self._lanes[model]

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """Of the engines that were given."""
        return tuple(engine.card for engine in self._given)

    async def start(self) -> None:
        """Warm up what was given. One that does not get warm is down, not missing: it is checked again and again."""
        loop = asyncio.get_running_loop()
        self._lanes = {engine.card.name: Lane(engine, loop) for engine in self._given}
        for model, lane in self._lanes.items():
            why = await lane.warm_up()
            if why:
                self._log.warning("engine_failed", model=name(model), error=name(why))

    def cost(self, model: str) -> Cost:
        """As its warm-up measured it."""
        return Cost(*self._lanes[model].cost)

    async def look(self) -> list[ModelCard]:
        """What could be loaded now."""
        return await asyncio.to_thread(self._stock.cards)

    def load(self, model: str) -> None:
        self._spawn(self._load(model), f"hub-load-{model}")

    def unload(self, model: str) -> None:
        lane = self._lanes.pop(model, None)
        if lane is not None:
            self._log.info("unloaded", model=name(model))
            self._spawn(lane.close(), f"hub-unload-{model}")

    async def probe(self) -> list[Probe]:
        """A fresh round trip through every engine's thread."""
        lanes = dict(self._lanes)
        results = await asyncio.gather(*(lane.probe() for lane in lanes.values()))
        pairs = zip(lanes, results, strict=True)
        return [Probe(model, not result.error, result.seconds, result.error) for model, result in pairs]

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes.values():
            await lane.close()

    async def _load(self, model: str) -> None:
        try:
            engine = await asyncio.to_thread(self._stock.open, model)
        except (*FAULTS, BundleError) as error:
            self._failed(model, str(error) or type(error).__name__)
            return
        lane = Lane(engine, asyncio.get_running_loop())
        why = await lane.warm_up()
        if why:
            await lane.close()
            self._failed(model, why)
            return
        self._lanes[model] = lane
        self._log.info("loaded", model=name(model))
        self._on_loaded(model, "", lane.card)

    def _failed(self, model: str, why: str) -> None:
        self._log.error("load_failed", model=name(model), error=name(why))
        self._on_loaded(model, why, None)

    def _spawn(self, work: Coroutine[Any, Any, None], title: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=title)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


Hear = Callable[..., None]
Computed = Callable[[int, Result], None]


class Runs:
    """`hear` tells the core one thing and obeys; `told` does so and then the round; `computed` watches."""

    def __init__(self, core: HubCore, engines: Engines, hears: tuple[Hear, Hear], log: Log, computed: Computed) -> None:
        self._core = core
        self._engines = engines
        self._hear, self._told = hears
        self._log = log
        self._computed = computed
        self._inlined = False
        self._checks: set[asyncio.Task[None]] = set()

    def infer(self, command: c.Infer) -> None:
        loop = asyncio.get_running_loop()
        if self._inlined:
            loop.call_soon(self.infer, command)
            return
        lane = self._engines.lane(command.model)
        batch = [item.work for item in command.items]
        result = lane.inline(batch)
        if result is None:
            lane.submit(batch, partial(self._on_late, command.ticket))
            return
        self._inlined = True
        self._on_result(command.ticket, result)
        self._inlined = False
        loop.call_soon(self._told, self._nothing)

    def check(self, command: c.Check) -> None:
        """The engine's own sample, behind whatever is running."""
        task = asyncio.create_task(self._checked(command.model), name=f"hub-check-{command.model}")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def on_loaded(self, model: str, why: str, card: object) -> None:
        """An engine is ready, or `why` it is not."""
        if not why:
            self._hear(self._core.lineup.measured, model, self._engines.cost(model))
        self._told(self._core.lineup.on_loaded, model, why, card)

    async def start(self) -> None:
        """Warm up the engines that were given, and tell the core what they cost."""
        await self._engines.start()
        for card in self._engines.cards:
            self._hear(self._core.lineup.measured, card.name, self._engines.cost(card.name))

    def _nothing(self, now: float) -> list[c.Command]:
        """A round without news."""
        del now
        return []

    def _on_late(self, ticket: int, result: Result) -> None:
        self._on_result(ticket, result)
        self._told(self._nothing)

    def _on_result(self, ticket: int, result: Result) -> None:
        self._computed(ticket, result)
        if result.error:
            self._log.warning("engine_failed", error=name(result.error))
            self._hear(self._core.on_engine_failed, ticket)
        else:
            self._hear(self._core.on_results, ticket, result.predictions, result.seconds)

    async def _checked(self, model: str) -> None:
        result = await self._engines.lane(model).probe()
        if result.error:
            self._log.error("engine_down", model=name(model), error=name(result.error))
        self._told(self._core.on_checked, model, not result.error)
