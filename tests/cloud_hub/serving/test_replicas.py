"""Replicas of a worker that come and go under load: no batch is lost, no engine is left behind, what fails is said."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from cloud_hub.engine.base import EchoEngine, Engine, EngineError, EngineState
from cloud_hub.engine.types import WorkItem
from cloud_hub.engine.worker import BatchResult, EngineWorker
from cloud_hub.serving.replicas import ReplicaLauncher
from tests.cloud_hub.doubles.devices import CARD
from wire.process.logging import JsonLog

MODEL = CARD.name


class SlowEngine(EchoEngine):
    """One that takes its time, on a thread, and says how many compute at once."""

    inline = False
    together, most = 0, 0
    lock = threading.Lock()

    def infer(self, batch: Any) -> Any:
        with SlowEngine.lock:
            SlowEngine.together += 1
            SlowEngine.most = max(SlowEngine.most, SlowEngine.together)
        time.sleep(0.01)
        with SlowEngine.lock:
            SlowEngine.together -= 1
        return super().infer(batch)


class Floor:
    """A launcher over one worker, and what it reported."""

    def __init__(self) -> None:
        SlowEngine.together = SlowEngine.most = 0
        self.engines: list[SlowEngine] = []
        self.told: list[tuple[int, str]] = []
        self.fails = ""
        self.gate = threading.Event()
        self.gate.set()
        self.worker: EngineWorker | None = EngineWorker(self.open(MODEL), asyncio.get_running_loop())
        self.launcher = ReplicaLauncher(self, lambda _model: self.worker, JsonLog())
        self.launcher.on_replicas = lambda _model, count, why: self.told.append((count, why))

    def open(self, model: str) -> Engine:
        self.gate.wait(30)
        if self.fails:
            raise EngineError(self.fails)
        engine = SlowEngine(msgspec.structs.replace(CARD))
        engine.start()
        self.engines.append(engine)
        return engine

    @property
    def alive(self) -> int:
        return sum(engine.state is EngineState.READY for engine in self.engines)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)


@pytest.fixture
async def floor() -> AsyncIterator[Floor]:
    made = Floor()
    worker = made.worker
    yield made
    await made.launcher.close()
    if worker is not None:
        await worker.close()
    await made.until(lambda: made.alive == 0)


async def test_more_replicas_compute_more_at_once_and_those_that_go_lose_nothing(floor: Floor):
    worker, results = floor.worker, list[BatchResult]()
    assert worker is not None
    floor.launcher.set_replicas(MODEL, 4)
    await floor.until(lambda: worker.count == 4)
    for _ in range(200):
        worker.submit([WorkItem()], results.append)
    floor.launcher.set_replicas(MODEL, 2)
    assert worker.count == 2
    assert floor.told[-1] == (2, ""), "what is to go counts no more"
    await floor.until(lambda: floor.alive == 2)
    floor.launcher.set_replicas(MODEL, 3)
    await floor.until(lambda: len(results) == 200 and worker.count == 3)
    assert [result.error for result in results] == [""] * 200
    assert SlowEngine.most >= 3
    assert len(worker.health) == 3


async def test_one_replica_always_stays(floor: Floor):
    worker = floor.worker
    assert worker is not None
    floor.launcher.set_replicas(MODEL, 0)
    assert not worker.remove_engine(lambda engine: engine.stop())
    assert (worker.count, (await worker.run_batch([WorkItem()])).error) == (1, "")


async def test_what_has_started_for_a_number_that_is_not_wanted_any_more_is_stopped(floor: Floor):
    floor.gate.clear()
    floor.launcher.set_replicas(MODEL, 3)
    floor.launcher.set_replicas(MODEL, 3)  # asked twice, started once
    await asyncio.sleep(0.05)
    floor.launcher.set_replicas(MODEL, 1)
    floor.gate.set()
    await floor.until(lambda: floor.alive == 1)
    assert floor.worker is not None
    assert floor.worker.count == 1
    assert len(floor.engines) <= 3


async def test_a_model_that_is_unloaded_meanwhile_gets_no_replica(floor: Floor):
    floor.gate.clear()
    floor.launcher.set_replicas(MODEL, 3)
    await asyncio.sleep(0.05)
    worker, floor.worker = floor.worker, None
    assert worker is not None
    floor.launcher.forget(MODEL)
    floor.gate.set()
    await floor.launcher.close()
    assert (worker.count, floor.alive, floor.told) == (1, 1, [])


async def test_one_that_does_not_start_is_said_and_the_others_serve(floor: Floor):
    floor.fails = "no memory for it"
    floor.launcher.set_replicas(MODEL, 2)
    await floor.until(lambda: floor.told)
    assert floor.told == [(1, "no memory for it")]
    floor.fails = ""
    floor.launcher.set_replicas(MODEL, 2)
    await floor.until(lambda: floor.told[-1] == (2, ""))


async def test_a_worker_that_closes_while_replicas_go_stops_every_engine():
    floor = Floor()
    worker = floor.worker
    assert worker is not None
    floor.launcher.set_replicas(MODEL, 4)
    await floor.until(lambda: worker.count == 4)
    floor.launcher.set_replicas(MODEL, 2)
    await worker.close()
    await floor.launcher.close()
    assert floor.alive == 0
