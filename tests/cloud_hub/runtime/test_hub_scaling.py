"""A whole hub whose model follows its load: more engines under load, none when it rests, one for whoever asks then."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_hub.core import replica_scaling
from cloud_hub.core.web_requests import InferRefusedError
from cloud_hub.engine.base import EchoEngine, EngineError, EngineState
from cloud_hub.runtime import hub
from cloud_hub.runtime.hub import Hub
from cloud_hub.runtime.services import HubServices
from cloud_hub.serving.bundles import MemoryCatalog
from policies.serving.scaling import ScalingRules
from tests.cloud_hub.doubles.devices import CARD
from tests.cloud_hub.doubles.site import Site
from tests.examples import SetTimes
from wire.process.logging import JsonLog

RULES = ScalingRules(
    floor=0, ceiling=3, deadline_s=1.0, drain_s=1.0, down_after_s=0.2, idle_s=0.2, room_items=4, room_s=1.0
)
ONE = np.zeros((1, 10), np.float32)


@pytest.fixture(autouse=True)
def quick_looks(set_times: SetTimes) -> None:
    """A hub that looks at its load and tries again after an instant."""
    set_times(hub, WAKE_S=0.05)
    set_times(replica_scaling, RATE_S=0.5, _RETRY_BASE_S=0.1)


class ThreadedEngine(EchoEngine):
    inline = False


class ScaledSite(Site):
    """A hub with a catalogue that makes engines of its model, each of 0.1 s a batch of one."""

    def __init__(self, folder: Path, rules: ScalingRules = RULES, **settings: Any) -> None:
        self.made: list[EchoEngine] = []
        self.broken = False
        super().__init__(folder, engine=self.make(), scaling={"echo": rules}, max_batch=1, **settings)

    def make(self) -> EchoEngine:
        if self.broken:
            raise EngineError("no memory")
        engine = ThreadedEngine(CARD, 0.1)
        engine.start()
        self.made.append(engine)
        return engine

    def make_hub(self) -> Hub:
        return self.build_hub(HubServices(JsonLog(self.log), stock=MemoryCatalog({CARD.name: self.make})))

    @property
    def replicas(self) -> dict[str, Any]:
        return dict(self.hub.status()["replicas"].get(CARD.name, {}))

    @property
    def alive(self) -> int:
        return sum(engine.state is EngineState.READY for engine in self.made)


@asynccontextmanager
async def scaled(folder: Path, **settings: Any):
    site = ScaledSite(folder, **settings)
    await site.start()
    try:
        yield site
    finally:
        await site.stop()
    assert site.alive == 0, "every engine is stopped"


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.further
async def test_replicas_follow_the_load_up_and_down_to_none_and_back(tmp_path: Path):
    async with scaled(tmp_path) as site:
        asking = [asyncio.create_task(site.hub.inference.infer("echo", ONE)) for _ in range(40)]
        await until(lambda: site.replicas.get("running") == 3)
        assert site.replicas["wanted"] == 3
        assert len(await asyncio.gather(*asking)) == 40
        assert all(engine.batches for engine in site.made), "each of them computed"
        await until(lambda: site.replicas["running"] == 0 and site.alive == 0)
        assert len(await site.hub.inference.infer("echo", ONE)) == 1, "whoever asks waits for the first one"
        await until(lambda: site.replicas["running"] == 1)


@pytest.mark.further
async def test_nobody_waits_for_ever_for_a_replica_that_never_comes(tmp_path: Path):
    async with scaled(tmp_path) as site:
        await until(lambda: site.replicas.get("wanted") == 0 and site.alive == 0)
        site.broken = True
        asking = [asyncio.create_task(site.hub.inference.infer("echo", ONE)) for _ in range(6)]
        ended = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, InferRefusedError) and each.retry_after_s > 0 for each in ended)
        assert site.hub.status()["open"] == 0
        site.broken = False

        async def answered() -> bool:
            try:
                return len(await site.hub.inference.infer("echo", ONE)) == 1
            except InferRefusedError:
                return False

        async with asyncio.timeout(60):
            while not await answered():
                await asyncio.sleep(0.1)


@pytest.mark.further
async def test_a_caller_with_little_time_is_refused_and_the_model_comes_all_the_same(tmp_path: Path):
    async with scaled(tmp_path) as site:
        await until(lambda: site.replicas.get("wanted") == 0 and site.alive == 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(site.hub.inference.infer("echo", ONE), 0.001)
        await until(lambda: site.replicas["running"] == 1)
