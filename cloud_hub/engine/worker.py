"""Worker threads of an engine; short batches run inline instead (a thread hop costs 100 to 300 us).

Rule: a replica has as many threads as it takes batches at once (`Engine.depth`), one for all but pipelines. Nothing
runs inline while a thread has work. An idle thread checks the health of its replica.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from cloud_hub.engine.base import ENGINE_FAULTS, Engine, EngineHealth, EngineState
from cloud_hub.engine.types import EngineSetup, ModelCard, WorkItem
from models.bundle.manifest import BundleError
from wire.protocol.messages import Prediction

INLINE_BELOW_S = 0.0005
HEALTH_EVERY_S = 0.25
_WARM_UPS = 3
_PATIENCE_S = 5.0


class BatchResult(msgspec.Struct):
    """Result of one batch. `error` "": `predictions` holds one per item.

    `ranks`: (rank, seconds) of a sharded model.
    """

    predictions: list[Prediction]
    seconds: float
    error: str = ""
    ranks: tuple[tuple[int, float], ...] = ()


ResultCallback = Callable[[BatchResult], None]
_WorkerTask = tuple[Sequence[WorkItem], ResultCallback, bool]  # True: warm up instead of a batch


class EngineWorker:
    """Threads that call one engine from the event loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        name = engine.card.name
        self._tasks: queue.SimpleQueue[_WorkerTask | None] = queue.SimpleQueue()
        self._under_way = 0
        self._base_s = self._item_s = float("inf")  # cost of a batch: base + items, measured by `warm_up`
        self._replicas = tuple(engine.replicas)
        places = [place for place in range(len(self._replicas)) for _ in range(engine.depth)]
        self._together = threading.Barrier(len(places))
        self._warming = [threading.Lock() for _ in self._replicas]
        self._warm: set[int] = set()
        self._health = [EngineHealth(each.health().state) for each in self._replicas]
        self._ended_s = [0.0] * len(self._replicas)  # when each answered its last batch
        self._threads = [
            threading.Thread(target=self._run_thread, args=(place,), name=f"hub-engine-{name}-{at}", daemon=True)
            for at, place in enumerate(places)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def card(self) -> ModelCard:
        return self._engine.card

    @property
    def setup(self) -> EngineSetup:
        """What the engine runs on."""
        return self._engine.setup

    @property
    def rebuilds(self) -> int | None:
        """How often its groups of ranks were started again; None for an engine in one process."""
        found: int | None = getattr(self._engine, "rebuilds", None)
        return found

    @property
    def health(self) -> tuple[EngineHealth, ...]:
        """Last known health of each replica."""
        return tuple(self._health)

    @property
    def cost(self) -> tuple[float, float]:
        """Seconds per batch and per item in it, measured by `warm_up`; inf = unknown."""
        return self._base_s, self._item_s

    async def warm_up(self) -> str:
        """Run every batch size once, then measure one item and a full batch. Returns one line on failure, else "".

        The measured cost tells `inline` what is short enough to run between two messages.
        """
        warmed = await asyncio.gather(*(self._run_task([], warm=True) for _ in self._threads))
        cold = next((result.error for result in warmed if result.error), "")
        if cold:
            return cold
        full = max(2, self.card.max_batch)
        sample = self._engine.sample()
        one = min([await self.run_batch([sample]) for _ in range(_WARM_UPS)], key=lambda result: result.seconds)
        many = await self.run_batch([sample] * self.card.max_batch)
        if not many.error:
            self._item_s = max(0.0, many.seconds - one.seconds) / (full - 1)
            self._base_s = max(0.0, one.seconds - self._item_s)
        return one.error or many.error

    def run_inline(self, batch: Sequence[WorkItem]) -> BatchResult | None:
        """Run the batch on the event loop if it is short and the threads are idle, else return None."""
        if self._under_way or not self._engine.inline or self._base_s + self._item_s * len(batch) > INLINE_BELOW_S:
            return None
        return _time_batch(self._engine, batch)

    def submit(self, batch: Sequence[WorkItem], callback: ResultCallback) -> None:
        """Queue a batch for a thread; `callback` is called on the event loop."""
        self._under_way += 1
        self._tasks.put((batch, callback, False))

    async def run_batch(self, batch: Sequence[WorkItem]) -> BatchResult:
        """Run a batch on a thread and wait for its result."""
        return await self._run_task(batch)

    async def _run_task(self, batch: Sequence[WorkItem], *, warm: bool = False) -> BatchResult:
        future: asyncio.Future[BatchResult] = self._loop.create_future()
        self._under_way += 1
        self._tasks.put((batch, lambda result: None if future.done() else future.set_result(result), warm))
        return await future

    async def probe(self) -> BatchResult:
        """Run the engine's self test behind whatever is running."""
        return await self.run_batch([self._engine.sample()])

    async def close(self) -> None:
        """Finish what was submitted and stop the engine; a thread that hangs is abandoned (it is a daemon)."""
        for _ in self._threads:
            self._tasks.put(None)
        await asyncio.to_thread(self._join_threads)
        if not any(thread.is_alive() for thread in self._threads):
            self._engine.drain()
            await asyncio.to_thread(self._engine.stop)

    def _join_threads(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run_thread(self, at: int) -> None:
        replica = self._replicas[at]
        while True:
            try:
                task = self._tasks.get(timeout=HEALTH_EVERY_S)
            except queue.Empty:
                self._health[at] = _check_health(replica)
                continue
            if task is None:
                return
            batch, callback, warm = task
            self._post_result(callback, self._warm_replica(at) if warm else self._time_batch(at, batch))

    def _warm_replica(self, at: int) -> BatchResult:
        """Warm up one replica; all threads wait for each other, so that each takes its own."""
        started = time.perf_counter()
        try:
            self._together.wait()
            with self._warming[at]:
                if at not in self._warm:
                    self._replicas[at].warm()
                self._warm.add(at)
        except (*ENGINE_FAULTS, BundleError) as error:
            return BatchResult([], 0.0, str(error) or type(error).__name__)
        return BatchResult([], time.perf_counter() - started)

    def _time_batch(self, at: int, batch: Sequence[WorkItem]) -> BatchResult:
        """Run a batch. Its seconds do not count those of the batch before, which it waited for."""
        started = time.perf_counter()
        result = _time_batch(self._replicas[at], batch)
        waited, self._ended_s[at] = max(0.0, self._ended_s[at] - started), time.perf_counter()
        return msgspec.structs.replace(result, seconds=max(0.0, result.seconds - waited))

    def _post_result(self, callback: ResultCallback, result: BatchResult) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finish_task, callback, result)
        except RuntimeError:
            return  # the event loop was closed: the result is not wanted any more

    def _finish_task(self, callback: ResultCallback, result: BatchResult) -> None:
        self._under_way -= 1
        callback(result)


def _check_health(replica: Engine) -> EngineHealth:
    try:
        return replica.health()
    except (*ENGINE_FAULTS, BundleError) as error:  # must not end the thread: nothing would restart it
        return EngineHealth(EngineState.LOST, str(error) or type(error).__name__)


def _time_batch(engine: Engine, batch: Sequence[WorkItem]) -> BatchResult:
    started = time.perf_counter()
    try:
        predictions = engine.infer(batch)
    except ENGINE_FAULTS as error:
        return BatchResult([], time.perf_counter() - started, type(error).__name__)
    seconds = time.perf_counter() - started
    if len(predictions) != len(batch):
        return BatchResult([], seconds, f"{len(predictions)} predictions for {len(batch)} items")
    return BatchResult(predictions, seconds, ranks=engine.ranks)
