"""Worker threads of an engine, one per replica; short batches run inline instead (a thread hop costs 100 to 300 us).

Rule: never two batches at once on one replica. Nothing runs inline while a thread has work. An idle thread checks the
health of its replica.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from cloud_hub.engine.base import FAULTS, Engine, Health, State
from cloud_hub.engine.types import ModelCard, Work
from models.bundle.manifest import BundleError
from wire.protocol.messages import Prediction

INLINE_BELOW_S = 0.0005
LOOK_EVERY_S = 0.25
_WARM_UPS = 3
_PATIENCE_S = 5.0


class Result(msgspec.Struct):
    """Result of one batch. `error` "": `predictions` holds one per item.

    `ranks`: (rank, seconds) of a sharded model.
    """

    predictions: list[Prediction]
    seconds: float
    error: str = ""
    ranks: tuple[tuple[int, float], ...] = ()


Callback = Callable[[Result], None]
_Task = tuple[Sequence[Work], Callback, bool]  # True: warm up instead of a batch


class Lane:
    """Threads that call one engine from the event loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._under_way = 0
        self._base_s = self._item_s = float("inf")  # cost of a batch: base + items, measured by `warm_up`
        self._replicas = tuple(engine.replicas)
        self._together = threading.Barrier(len(self._replicas))
        self._health = [Health(each.health().state) for each in self._replicas]
        self._threads = [
            threading.Thread(target=self._run, args=(at,), name=f"hub-engine-{engine.card.name}-{at}", daemon=True)
            for at in range(len(self._replicas))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def card(self) -> ModelCard:
        return self._engine.card

    @property
    def health(self) -> tuple[Health, ...]:
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
        warmed = await asyncio.gather(*(self._ask([], warm=True) for _ in self._replicas))
        cold = next((result.error for result in warmed if result.error), "")
        if cold:
            return cold
        full = max(2, self.card.max_batch)
        sample = self._engine.sample()
        one = min([await self.run([sample]) for _ in range(_WARM_UPS)], key=lambda result: result.seconds)
        many = await self.run([sample] * self.card.max_batch)
        if not many.error:
            self._item_s = max(0.0, many.seconds - one.seconds) / (full - 1)
            self._base_s = max(0.0, one.seconds - self._item_s)
        return one.error or many.error

    def inline(self, batch: Sequence[Work]) -> Result | None:
        """Run the batch on the event loop if it is short and the threads are idle, else return None."""
        if self._under_way or not self._engine.inline or self._base_s + self._item_s * len(batch) > INLINE_BELOW_S:
            return None
        return _measure(self._engine, batch)

    def submit(self, batch: Sequence[Work], callback: Callback) -> None:
        """Queue a batch for a thread; `callback` is called on the event loop."""
        self._under_way += 1
        self._tasks.put((batch, callback, False))

    async def run(self, batch: Sequence[Work]) -> Result:
        """Run a batch on a thread and wait for its result."""
        return await self._ask(batch)

    async def _ask(self, batch: Sequence[Work], *, warm: bool = False) -> Result:
        future: asyncio.Future[Result] = self._loop.create_future()
        self._under_way += 1
        self._tasks.put((batch, lambda result: None if future.done() else future.set_result(result), warm))
        return await future

    async def probe(self) -> Result:
        """Run the engine's self test behind whatever is running."""
        return await self.run([self._engine.sample()])

    async def close(self) -> None:
        """Finish what was submitted and stop the engine; a thread that hangs is abandoned (it is a daemon)."""
        for _ in self._threads:
            self._tasks.put(None)
        await asyncio.to_thread(self._join)
        if not any(thread.is_alive() for thread in self._threads):
            self._engine.drain()
            await asyncio.to_thread(self._engine.stop)

    def _join(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, at: int) -> None:
        replica = self._replicas[at]
        while True:
            try:
                task = self._tasks.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                self._health[at] = _looked_after(replica)
                continue
            if task is None:
                return
            batch, callback, warm = task
            self._report(callback, self._warmed(replica) if warm else _measure(replica, batch))

    def _warmed(self, replica: Engine) -> Result:
        """Warm up one replica; all wait for each other first, so that no thread warms the same one twice."""
        started = time.perf_counter()
        try:
            self._together.wait()
            replica.warm()
        except (*FAULTS, BundleError) as error:
            return Result([], 0.0, str(error) or type(error).__name__)
        return Result([], time.perf_counter() - started)

    def _report(self, callback: Callback, result: Result) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finish, callback, result)
        except RuntimeError:
            return  # the event loop was closed: the result is not wanted any more

    def _finish(self, callback: Callback, result: Result) -> None:
        self._under_way -= 1
        callback(result)


def _looked_after(replica: Engine) -> Health:
    try:
        return replica.health()
    except (*FAULTS, BundleError) as error:  # must not end the thread: nothing would restart it
        return Health(State.LOST, str(error) or type(error).__name__)


def _measure(engine: Engine, batch: Sequence[Work]) -> Result:
    started = time.perf_counter()
    try:
        predictions = engine.infer(batch)
    except FAULTS as error:
        return Result([], time.perf_counter() - started, type(error).__name__)
    seconds = time.perf_counter() - started
    if len(predictions) != len(batch):
        return Result([], seconds, f"{len(predictions)} predictions for {len(batch)} items")
    return Result(predictions, seconds, ranks=engine.ranks)
