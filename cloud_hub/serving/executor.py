"""Execution of batches on the loaded engines, and loading, warming up and unloading of engines.

Short batches run inline, others on the threads of their `EngineWorker`. Rule: an engine takes work once it is warm, and
finishes its work before it is unloaded; a model that cannot be loaded is logged, and the others go on. One inline
batch at a time: the next one waits until other tasks of the event loop have run.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from cloud_hub.core import commands
from cloud_hub.core.core import HubCore
from cloud_hub.core.web_requests import EngineProbe
from cloud_hub.engine.base import ENGINE_FAULTS, Engine
from cloud_hub.engine.text import TextEngine
from cloud_hub.engine.types import EngineSetup, ModelCard
from cloud_hub.engine.worker import BatchResult, EngineWorker
from cloud_hub.serving.bundles import BundleCatalog
from cloud_hub.serving.replicas import ReplicaLauncher, ReplicasCallback
from cloud_hub.serving.text import NO_LANGUAGE_MODELS, TextAsker, TextWorker
from models.bundle.manifest import BundleError
from policies.serving.batching import BatchCost
from wire.process.logging import JsonLog, SafeName, safe_name, safe_text

LoadedCallback = Callable[[str, str, ModelCard | None], None]  # model, error ("" = ready), card of its engine


class EnginePool:
    """The loaded engines by model. Call `start` first; every method is called on the event loop."""

    def __init__(
        self,
        engines: Sequence[Engine],
        stock: BundleCatalog,
        on_loaded: LoadedCallback,
        log: JsonLog,
        asker: TextAsker = NO_LANGUAGE_MODELS,
    ) -> None:
        self._asker = asker
        self._replicas = ReplicaLauncher(stock, self._find_worker, log)
        self._given = tuple(engines)
        self._stock = stock
        self._on_loaded = on_loaded
        self._log = log
        self._lanes: dict[str, EngineWorker | TextWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._fallbacks: dict[str, str] = {}
        self.failed_loads = 0

    def worker_for(self, model: str) -> EngineWorker | TextWorker:
        """Worker of a loaded model. KeyError if it is not loaded."""
        return self._lanes[model]

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """Cards of the engines that were given at start."""
        return tuple(_card_of(engine) for engine in self._given)

    async def start(self) -> None:
        """Warm up the given engines. One that fails is down rather than missing: it is checked again later."""
        self._lanes = {engine.card.name: self._open_worker(engine) for engine in self._given}
        for model, lane in self._lanes.items():
            why = await lane.warm_up()
            if why:
                self._log.warning("engine_failed", model=safe_name(model), error=safe_text(why))
            self._log.info("engine", model=safe_name(model), **_describe_setup(lane.setup))

    def batch_cost(self, model: str) -> BatchCost:
        """Batch cost of a model, as measured by its warm-up."""
        return BatchCost(*self._lanes[model].cost)

    async def read_loadable(self) -> list[ModelCard]:
        """Cards of the models that could be loaded now."""
        return await asyncio.to_thread(self._stock.cards)

    def load(self, model: str) -> None:
        """Start loading a model; the result goes to `on_loaded`."""
        self._spawn_task(self._load_engine(model), f"hub-load-{model}")

    def set_replicas(self, model: str, count: int) -> None:
        """Run so many replicas of a loaded model; each change of the number is told to whoever follows it."""
        self._replicas.set_replicas(model, count)

    def follow_replicas(self, told: ReplicasCallback) -> None:
        """Tell of each change of the number of a model's replicas."""
        self._replicas.on_replicas = told

    def _find_worker(self, model: str) -> EngineWorker | None:
        lane = self._lanes.get(model)
        return lane if isinstance(lane, EngineWorker) else None

    def unload(self, model: str) -> None:
        """Remove a model's engines and close them once they have finished."""
        self._replicas.forget(model)
        lane = self._lanes.pop(model, None)
        if lane is not None:
            self._log.info("unloaded", model=safe_name(model))
            task = self._spawn_task(lane.close(), f"hub-unload-{model}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def probe(self) -> list[EngineProbe]:
        """Run the self test of every engine through its thread.

        A text model passes: where its language model is away, questions wait for it, and the hub serves all others.
        """
        lanes = {model: lane for model, lane in self._lanes.items() if not isinstance(lane, TextWorker)}
        waiting = [EngineProbe(model, True, 0.0, "") for model in self._lanes.keys() - lanes.keys()]
        results = await asyncio.gather(*(lane.probe() for lane in lanes.values()))
        pairs = zip(lanes, results, strict=True)
        return [EngineProbe(model, not result.error, result.seconds, result.error) for model, result in pairs] + waiting

    def rebuilds(self) -> dict[str, int]:
        """How often the groups of ranks of each loaded sharded model were lost and started again."""
        found = {model: lane.rebuilds for model, lane in self._lanes.items()}
        return {model: count for model, count in found.items() if count is not None}

    def setups(self) -> dict[str, EngineSetup]:
        """What each loaded model runs on."""
        return {model: lane.setup for model, lane in self._lanes.items()}

    def log_fallbacks(self) -> None:
        """Log each engine that runs otherwise than the options ask, once for each reason."""
        found = {model: lane.setup for model, lane in self._lanes.items()}
        for model, setup in found.items():
            if setup.fallback and setup.fallback != self._fallbacks.get(model):
                why = safe_text(setup.fallback)
                self._log.warning("engine_fallback", model=safe_name(model), why=why, **_describe_setup(setup))
        self._fallbacks = {model: setup.fallback for model, setup in found.items()}

    async def close(self) -> None:
        """Cancel running loads and close all workers."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._replicas.close()
        for lane in self._lanes.values():
            await lane.close()

    async def _load_engine(self, model: str) -> None:
        """Load a model, once those that make room for it have released their memory."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        try:
            engine = await asyncio.to_thread(self._stock.open, model)
        except (*ENGINE_FAULTS, BundleError) as error:
            self._report_failure(model, str(error) or type(error).__name__)
            return
        lane = self._open_worker(engine)
        why = await lane.warm_up()
        if why:
            await lane.close()
            self._report_failure(model, why)
            return
        self._lanes[model] = lane
        self._log.info("loaded", model=safe_name(model), **_describe_setup(lane.setup))
        self._on_loaded(model, "", _card_of(engine))

    def _open_worker(self, engine: Engine) -> EngineWorker | TextWorker:
        if isinstance(engine, TextEngine):
            return TextWorker(engine, self._asker)
        return EngineWorker(engine, asyncio.get_running_loop())

    def _report_failure(self, model: str, why: str) -> None:
        self.failed_loads += 1
        self._log.error("load_failed", model=safe_name(model), error=safe_text(why))
        self._on_loaded(model, why, None)

    def _spawn_task(self, work: Coroutine[Any, Any, None], title: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=title)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _card_of(engine: Engine) -> ModelCard:
    """Return the card of an engine that was started, with the bytes that its weights take now."""
    return msgspec.structs.replace(engine.card, weight_bytes=engine.setup.weight_bytes or engine.card.weight_bytes)


def _describe_setup(setup: EngineSetup) -> dict[str, SafeName | int]:
    """Return fields of a log line."""
    named = {"device": safe_text(setup.device), "precision": safe_name(setup.precision)}
    return {**named, "weight_bytes": setup.weight_bytes}


CoreCall = Callable[..., None]
ResultObserver = Callable[[int, BatchResult], None]


class BatchExecutor:
    """Runs the batches that `HubCore` requests and returns their results to it.

    `hears`: two functions that pass an event to the core and execute its commands; the second one also ends the round.
    `computed` is called with every result, for statistics.
    """

    def __init__(
        self,
        core: HubCore,
        engines: EnginePool,
        hears: tuple[CoreCall, CoreCall],
        log: JsonLog,
        computed: ResultObserver,
    ) -> None:
        self._core = core
        self._engines = engines
        self._hear, self._told = hears
        self._log = log
        self._computed = computed
        self._inlined = False
        self._checks: set[asyncio.Task[None]] = set()
        engines.follow_replicas(self.on_replicas)

    def run_batch(self, command: commands.RunBatch) -> None:
        """Run a batch: inline if it is short, else on a thread."""
        loop = asyncio.get_running_loop()
        if self._inlined:
            loop.call_soon(self.run_batch, command)
            return
        lane = self._engines.worker_for(command.model)
        if isinstance(lane, TextWorker):
            lane.submit_items(command.items, partial(self._on_late, command.ticket), self._core.is_waited_for)
            return
        batch = [item.work for item in command.items]
        result = lane.run_inline(batch)
        if result is None:
            lane.submit(batch, partial(self._on_late, command.ticket))
            return
        self._inlined = True
        self._on_result(command.ticket, result)
        self._inlined = False
        loop.call_soon(self._told, self._no_event)

    def check_engine(self, command: commands.CheckEngine) -> None:
        """Run the engine's self test behind whatever is running, then report it to the core."""
        task = asyncio.create_task(self._run_check(command.model), name=f"hub-check-{command.model}")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def on_loaded(self, model: str, why: str, card: object) -> None:
        """An engine is ready, or `why` it is not: reported to the core."""
        if not why:
            self._hear(self._core.lineup.on_measured, model, self._engines.batch_cost(model))
        self._told(self._core.lineup.on_loaded, model, why, card)

    async def start(self) -> None:
        """Warm up the given engines and report their costs to the core."""
        await self._engines.start()
        for card in self._engines.cards:
            self._hear(self._core.lineup.on_measured, card.name, self._engines.batch_cost(card.name))

    def on_replicas(self, model: str, count: int, why: str) -> None:
        """So many replicas of a model run now; `why`: one could not be started. Reported to the core."""
        self._told(self._core.lineup.on_replicas, model, count, why)

    def _no_event(self, now: float) -> list[commands.Command]:
        """An empty event, to end a round."""
        del now
        return []

    def _on_late(self, ticket: int, result: BatchResult) -> None:
        self._on_result(ticket, result)
        self._told(self._no_event)

    def _on_result(self, ticket: int, result: BatchResult) -> None:
        self._computed(ticket, result)
        if result.error:
            if result.defect is None:
                self._log.warning("engine_failed", error=safe_name(result.error))
            else:
                self._log.defect("engine_failed", result.defect)
            self._hear(self._core.on_engine_failed, ticket)
        else:
            self._hear(self._core.on_results, ticket, result.predictions, result.seconds)

    async def _run_check(self, model: str) -> None:
        result = await self._engines.worker_for(model).probe()
        if result.error:
            self._log.error("engine_down", model=safe_name(model), error=safe_text(result.error))
        self._told(self._core.on_checked, model, not result.error)
