"""Ranks that hold a gibibyte each: one that is killed or hangs costs no answer and doubles none."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.types import EngineOptions
from cloud_hub.engine.worker import EngineWorker
from tests.cloud_hub.doubles.gangs import Borrowed
from tests.live.doubles.stack import LAYER_BYTES, make_stack_version

pytestmark = [pytest.mark.live, pytest.mark.heavy, pytest.mark.timeout(900)]
GIB = 1 << 30
READY_S = 600.0
BATCHES = 6


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedEngine]:
    path: Path = make_stack_version(tmp_path_factory.mktemp("stack"), 2 * GIB // LAYER_BYTES).path
    opened = open_engine(path, EngineOptions(max_batch=1, tensor=2, devices=2, ready_s=READY_S))
    assert isinstance(opened, ShardedEngine)
    yield opened
    opened.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
async def test_a_rank_with_a_shard_of_1_gib_that_is_lost_costs_no_answer_and_doubles_none(engine, number):
    gang, sample = engine.gangs[0], engine.sample()
    lane = EngineWorker(Borrowed(engine), asyncio.get_running_loop())
    wanted = (await lane.run_batch([sample])).predictions
    assert wanted
    assert gang.rank_group is not None
    assert min(rank.shard_bytes for rank in gang.rank_group.ready) >= GIB
    before = engine.rebuilds
    os.kill(gang.rank_group.pids[1], number)
    answers = []
    for _ in range(BATCHES):
        while not (result := await lane.run_batch([sample])).predictions:
            assert result.error, "as the hub's core: what failed is asked again under the same id"
        answers.append(result.predictions)
    await lane.close()
    assert answers == [wanted] * BATCHES
    assert engine.rebuilds > before
