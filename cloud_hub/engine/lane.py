"""An engine and the thread that owns it. Short batches run inline: a hop to a thread costs 100 to 300 microseconds.

Rule: never two batches at once. Inline work is refused while the thread has any.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from cloud_hub.engine.base import FAULTS, Engine
from cloud_hub.work import ModelCard, Work
from wire.messages import Prediction

INLINE_BELOW_S = 0.0005
_WARM_UPS = 3
_PATIENCE_S = 5.0


class Result(msgspec.Struct):
    """`error` "" = `predictions` holds one per item."""

    predictions: list[Prediction]
    seconds: float
    error: str = ""


Callback = Callable[[Result], None]
_Task = tuple[Sequence[Work], Callback]


class Lane:
    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._under_way = 0
        self._base_s = self._item_s = float("inf")  # cost of a batch: base + items, measured by `warm_up`
        self._thread = threading.Thread(target=self._run, name=f"hub-engine-{engine.card.name}", daemon=True)
        self._thread.start()

    @property
    def card(self) -> ModelCard:
        return self._engine.card

    async def warm_up(self) -> None:
        """Measure one item and a full batch, so that `inline` can tell what fits between two messages."""
        full = max(2, self.card.max_batch)
        sample = self._engine.sample()
        one = min([(await self.run([sample])).seconds for _ in range(_WARM_UPS)])
        many = await self.run([sample] * self.card.max_batch)
        if not many.error:
            self._item_s = max(0.0, many.seconds - one) / (full - 1)
            self._base_s = max(0.0, one - self._item_s)

    def inline(self, batch: Sequence[Work]) -> Result | None:
        """Run here and now if that is quick and the thread is idle, else None."""
        if self._under_way or self._base_s + self._item_s * len(batch) > INLINE_BELOW_S:
            return None
        return self._measure(batch)

    def submit(self, batch: Sequence[Work], callback: Callback) -> None:
        """`callback` is called on the event loop."""
        self._under_way += 1
        self._tasks.put((batch, callback))

    async def run(self, batch: Sequence[Work]) -> Result:
        future: asyncio.Future[Result] = self._loop.create_future()
        self.submit(batch, lambda result: None if future.done() else future.set_result(result))
        return await future

    async def probe(self) -> Result:
        """A fresh round trip of the engine's own sample, behind whatever is running."""
        return await self.run([self._engine.sample()])

    async def close(self) -> None:
        """Give the engine back; one that hangs is left behind (its thread is a daemon)."""
        self._tasks.put(None)
        await asyncio.to_thread(self._thread.join, _PATIENCE_S)
        if not self._thread.is_alive():
            self._engine.close()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            batch, callback = task
            self._report(callback, self._measure(batch))

    def _measure(self, batch: Sequence[Work]) -> Result:
        started = time.perf_counter()
        try:
            predictions = self._engine.run(batch)
        except FAULTS as error:
            return Result([], time.perf_counter() - started, type(error).__name__)
        seconds = time.perf_counter() - started
        if len(predictions) != len(batch):
            return Result([], seconds, f"{len(predictions)} predictions for {len(batch)} items")
        return Result(predictions, seconds)

    def _report(self, callback: Callback, result: Result) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finish, callback, result)
        except RuntimeError:
            return  # the loop was closed: nobody waits any more

    def _finish(self, callback: Callback, result: Result) -> None:
        self._under_way -= 1
        callback(result)
