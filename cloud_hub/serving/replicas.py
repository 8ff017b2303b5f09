"""Starts and stops replicas of loaded models on this machine, as many as are wanted at the moment.

A replica is an engine of its own, made by the catalog as the first one was: in this process, a group of ranks, or
whatever the catalog's engines are. Rule: one takes batches once it is warm; one that goes finishes its batch first.
Rule: what was loaded for a number that is not wanted any more is stopped, never kept.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from cloud_hub.engine.base import ENGINE_FAULTS, Engine
from cloud_hub.engine.worker import EngineWorker
from models.bundle.manifest import BundleError
from wire.process.logging import JsonLog, safe_name, safe_text

STARTS = 4  # at once, of all models: each reads its weights

ReplicasCallback = Callable[[str, int, str], None]  # model, replicas that run now, why one did not start ("" = it did)


class EngineSource(Protocol):
    """Where engines come from; implemented by `serving.bundles.BundleCatalog`."""

    def open(self, model: str) -> Engine:
        """A started engine of `digits@7`, not warmed up. BundleError or EngineError with one line."""


class ReplicaLauncher:
    """Brings each model's worker to the number of replicas that was set. Used on the event loop only.

    `find`: the worker of a loaded model, None if it is not loaded. `on_replicas` is told when a number has changed.
    """

    def __init__(
        self,
        source: EngineSource,
        find: Callable[[str], EngineWorker | None],
        log: JsonLog,
    ) -> None:
        self.on_replicas: ReplicasCallback = lambda _model, _count, _why: None
        self._source = source
        self._find = find
        self._log = log
        self._wanted: dict[str, int] = {}
        self._starting: Counter[str] = Counter()
        self._starts = asyncio.Semaphore(STARTS)
        self._tasks: set[asyncio.Task[None]] = set()

    def set_replicas(self, model: str, count: int) -> None:
        """Have so many replicas of a model, at least one; those that are missing start at once."""
        worker = self._find(model)
        if worker is None:
            return
        self._wanted[model] = count = max(1, count)
        for _ in range(worker.count + self._starting[model], count):
            self._starting[model] += 1
            self._spawn(self._start_replica(model, worker))
        self._remove_surplus(model, worker)

    def forget(self, model: str) -> None:
        """Keep no number of a model that is unloaded: what still starts for it is stopped."""
        self._wanted.pop(model, None)

    async def close(self) -> None:
        """Start no more; wait until what was under way is stopped."""
        self._wanted.clear()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start_replica(self, model: str, worker: EngineWorker) -> None:
        why = ""
        try:
            async with self._starts:
                engine = await asyncio.to_thread(self._open_warm, model) if self._lacks(model, worker) else None
        except (*ENGINE_FAULTS, BundleError) as error:
            engine, why = None, str(error) or type(error).__name__
            self._log.error("replica_failed", model=safe_name(model), error=safe_text(why))
        finally:
            self._starting[model] -= 1
        if engine is not None and not self._lacks(model, worker):
            await asyncio.to_thread(_stop_engine, engine)
        elif engine is not None:
            worker.add_engine(engine)
            self._log.info("replica_started", model=safe_name(model), replicas=worker.count)
        if self._find(model) is worker:
            self.on_replicas(model, worker.count, why)

    def _open_warm(self, model: str) -> Engine:
        engine = self._source.open(model)
        try:
            engine.warm()
        except BaseException:
            _stop_engine(engine)
            raise
        return engine

    def _lacks(self, model: str, worker: EngineWorker) -> bool:
        """Whether the worker is still the model's, and has fewer replicas than are wanted."""
        return self._find(model) is worker and worker.count < self._wanted.get(model, 0)

    def _remove_surplus(self, model: str, worker: EngineWorker) -> None:
        removed = False
        while worker.count > self._wanted[model] and worker.remove_engine(self._on_gone):
            removed = True
        if removed:
            self._log.info("replica_stopped", model=safe_name(model), replicas=worker.count)
            self.on_replicas(model, worker.count, "")

    def _on_gone(self, engine: Engine) -> None:
        self._spawn(asyncio.to_thread(_stop_engine, engine))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="hub-replica")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _stop_engine(engine: Engine) -> None:
    engine.drain()
    engine.stop()
