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

from cloud_hub.engine.base import ENGINE_FAULTS, Engine, EngineError, EngineHealth, EngineState
from cloud_hub.engine.types import EngineSetup, ModelCard, WorkItem
from models.bundle.manifest import BundleError
from wire.process.logging import describe_error
from wire.protocol.messages import Prediction

INLINE_BELOW_S = 0.0005
HEALTH_EVERY_S = 0.25
_WARM_UPS = 3
_PATIENCE_S = 5.0


class BatchResult(msgspec.Struct):
    """Result of one batch. `error` "": `predictions` holds one per item.

    `ranks`: (rank, seconds) of a sharded model. `defect`: an exception of the engine that it does not report itself.
    """

    predictions: list[Prediction]
    seconds: float
    error: str = ""
    ranks: tuple[tuple[int, float], ...] = ()
    defect: BaseException | None = None


ResultCallback = Callable[[BatchResult], None]
_WorkerTask = tuple[Sequence[WorkItem], ResultCallback, bool]  # True: warm up instead of a batch


class _Station:
    """One replica and the threads that call it. `engine`: what it belongs to; `health`: as last seen.

    `ended_s`: when it answered its last batch; `leaving`: its threads take no more.
    """

    def __init__(self, engine: Engine, replica: Engine) -> None:
        self.engine = engine
        self.replica = replica
        self.health = EngineHealth(replica.health().state)
        self.threads: list[threading.Thread] = []
        self.working = 0  # threads that have not ended
        self.leaving = self.is_warm = False
        self.lock = threading.Lock()
        self.ended_s = 0.0

    @property
    def alive(self) -> bool:
        """Whether one of its threads runs."""
        return any(thread.is_alive() for thread in self.threads)

    def warm(self) -> None:
        """Warm the replica up, once for all its threads."""
        with self.lock:
            if not self.is_warm:
                self.replica.warm()
            self.is_warm = True

    def run(self, batch: Sequence[WorkItem]) -> BatchResult:
        """Run a batch. Its seconds do not count those of the batch before, which it waited for."""
        started = time.perf_counter()
        result = _time_batch(self.replica, batch)
        waited, self.ended_s = max(0.0, self.ended_s - started), time.perf_counter()
        return msgspec.structs.replace(result, seconds=max(0.0, result.seconds - waited))

    def leave(self) -> bool:
        """Have all its threads end; False if they are to already."""
        with self.lock:
            before, self.leaving = self.leaving, True
            return not before

    def end_thread(self) -> bool:
        """Note that one of its threads ends; whether it was the last."""
        with self.lock:
            self.working -= 1
            return not self.working


class EngineWorker:
    """Threads that call the replicas of one model from the event loop. Replicas come and go while it works."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: queue.SimpleQueue[_WorkerTask | None] = queue.SimpleQueue()
        self._under_way = 0
        self._base_s = self._item_s = float("inf")  # cost of a batch: base + items, measured by `warm_up`
        self._stations = [_Station(engine, replica) for replica in engine.replicas]
        self._first = len(self._stations) * engine.depth  # threads that are there at the beginning
        self._together = threading.Barrier(self._first)
        self._leaving: list[Callable[[Engine], None]] = []  # who is told of the next replica that has gone
        self._closed = False
        for station in self._stations:
            self._start_threads(station)

    @property
    def _engine(self) -> Engine:
        return self._stations[0].engine

    @property
    def card(self) -> ModelCard:
        return self._engine.card

    @property
    def count(self) -> int:
        """Replicas that take batches, less those that go once they are free."""
        return len(self._stations) - len(self._leaving)

    @property
    def setup(self) -> EngineSetup:
        """What the first engine runs on, with the weights of all."""
        held = sum(engine.setup.weight_bytes for engine in self._engines())
        return msgspec.structs.replace(self._engine.setup, weight_bytes=held)

    @property
    def rebuilds(self) -> int | None:
        """How often its groups of ranks were started again; None for engines in one process."""
        found = [getattr(engine, "rebuilds", None) for engine in self._engines()]
        counted = [count for count in found if count is not None]
        return sum(counted) if counted else None

    @property
    def health(self) -> tuple[EngineHealth, ...]:
        """Last known health of each replica."""
        return tuple(station.health for station in self._stations)

    @property
    def cost(self) -> tuple[float, float]:
        """Seconds per batch and per item in it, measured by `warm_up`; inf = unknown."""
        return self._base_s, self._item_s

    async def warm_up(self) -> str:
        """Run every batch size once, then measure one item and a full batch. Returns one line on failure, else "".

        The measured cost tells `inline` what is short enough to run between two messages.
        """
        warmed = await asyncio.gather(*(self._run_task([], warm=True) for _ in range(self._first)))
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

    def add_engine(self, engine: Engine) -> None:
        """Let another engine of the model, started and warm, take batches from now on."""
        for replica in engine.replicas:
            station = _Station(engine, replica)
            self._stations.append(station)
            self._start_threads(station)

    def remove_engine(self, gone: Callable[[Engine], None]) -> bool:
        """Let the replica that is free first go; `gone` is called with its engine, to be stopped. False: one stays."""
        if self._closed or self.count <= 1:
            return False
        self._leaving.append(gone)
        self._tasks.put(None)
        return True

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
        """Finish what was submitted and stop the engines; a thread that hangs is abandoned (it is a daemon)."""
        self._closed = True
        stations = tuple(self._stations)
        for _ in (thread for station in stations for thread in station.threads):
            self._tasks.put(None)
        await asyncio.to_thread(_join_threads, stations)
        for engine in dict.fromkeys(station.engine for station in stations):
            if not any(station.alive for station in stations if station.engine is engine):
                engine.drain()
                await asyncio.to_thread(engine.stop)

    def _engines(self) -> tuple[Engine, ...]:
        return tuple(dict.fromkeys(station.engine for station in self._stations))

    def _start_threads(self, station: _Station) -> None:
        name = f"hub-engine-{station.engine.card.name}-{self._stations.index(station)}"
        station.working = station.engine.depth
        station.threads = [
            threading.Thread(target=self._run_thread, args=(station,), name=f"{name}-{at}", daemon=True)
            for at in range(station.engine.depth)
        ]
        for thread in station.threads:
            thread.start()

    def _run_thread(self, station: _Station) -> None:
        while not station.leaving:
            try:
                task = self._tasks.get(timeout=HEALTH_EVERY_S)
            except queue.Empty:
                station.health = _check_health(station.replica)
                continue
            if task is None:
                if not station.leave():
                    self._tasks.put(None)  # it goes already: another replica is to go, too
                break
            batch, callback, warm = task
            result = self._warm_replica(station) if warm else station.run(batch)
            self._post(self._finish_task, callback, result)
        if station.end_thread():
            self._post(self._finish_station, station)

    def _warm_replica(self, station: _Station) -> BatchResult:
        """Warm up one replica; all threads wait for each other, so that each takes its own."""
        started = time.perf_counter()
        try:
            self._together.wait()
            station.warm()
        except (*ENGINE_FAULTS, BundleError) as error:
            return BatchResult([], 0.0, str(error) or type(error).__name__)
        return BatchResult([], time.perf_counter() - started)

    def _post(self, call: Callable[..., None], *words: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *words)
        except RuntimeError:
            return  # the event loop was closed: the result is not wanted any more

    def _finish_task(self, callback: ResultCallback, result: BatchResult) -> None:
        self._under_way -= 1
        callback(result)

    def _finish_station(self, station: _Station) -> None:
        """A replica has gone: its engine is whoever let it go's, unless all are closed."""
        if self._closed or not self._leaving:
            return
        self._stations.remove(station)
        self._leaving.pop(0)(station.engine)


def _join_threads(stations: Sequence[_Station]) -> None:
    until = time.monotonic() + _PATIENCE_S
    for thread in (thread for station in stations for thread in station.threads):
        thread.join(max(0.0, until - time.monotonic()))


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
        defect = None if isinstance(error, EngineError) else error
        return BatchResult([], time.perf_counter() - started, describe_error(error), defect=defect)
    seconds = time.perf_counter() - started
    if len(predictions) != len(batch):
        return BatchResult([], seconds, f"{len(predictions)} predictions for {len(batch)} items")
    return BatchResult(predictions, seconds, ranks=engine.ranks)
