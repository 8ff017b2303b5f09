"""Threads of an engine: as many as it takes batches at once, and what a batch costs that waited for another."""

import asyncio
import threading
import time
from collections.abc import Sequence

from cloud_hub.engine.base import EchoEngine, EngineHealth
from cloud_hub.engine.types import WorkItem
from cloud_hub.engine.worker import EngineWorker
from tests.cloud_hub.doubles.devices import CARD
from wire.protocol.messages import Prediction

PATIENT_S = 30.0


class DoubleEngine(EchoEngine):
    """Engine of two batches at once: the second is computed when the first is, as in a pipeline of two stages."""

    depth = 2

    def __init__(self) -> None:
        super().__init__(CARD)
        self.warmed = 0
        self.together = threading.Barrier(2, timeout=PATIENT_S)
        self.first = threading.Lock()
        self.checked = threading.Event()

    def warm(self) -> None:
        self.warmed += 1

    def health(self) -> EngineHealth:
        self.checked.set()
        return super().health()

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        if len(batch) == 2:
            self.together.wait()  # each needs the other to be on its way
            with self.first:
                time.sleep(0.1)  # computed one after the other
        return super().infer(batch)


async def test_an_engine_of_two_batches_at_once_gets_two_and_is_warmed_once() -> None:
    engine = DoubleEngine()
    lane = EngineWorker(engine, asyncio.get_running_loop())
    assert await lane.warm_up() == ""
    assert engine.warmed == 1
    pair = [WorkItem(), WorkItem()]
    one, other = await asyncio.wait_for(asyncio.gather(lane.run_batch(pair), lane.run_batch(pair)), PATIENT_S)
    assert (one.error, other.error) == ("", "")
    await lane.close()


async def test_a_batch_does_not_pay_for_the_one_that_it_waited_for() -> None:
    engine = DoubleEngine()
    lane = EngineWorker(engine, asyncio.get_running_loop())
    pair, began = [WorkItem(), WorkItem()], time.perf_counter()
    results = await asyncio.gather(lane.run_batch(pair), lane.run_batch(pair))
    assert sum(result.seconds for result in results) <= time.perf_counter() - began
    await lane.close()
    assert engine.state.value == "stopped"
