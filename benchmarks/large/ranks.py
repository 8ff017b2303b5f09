"""Benchmarks of ranks that hold a gibibyte each: one is killed or hung while batches are asked for."""

import asyncio
import os
import signal
import time
from pathlib import Path

from benchmarks.harness.figures import Figure
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.types import EngineOptions
from cloud_hub.engine.worker import EngineWorker
from tests.live.doubles.stack import LAYER_BYTES, make_stack_version

GIB = 1 << 30
LAYERS = 2 * GIB // LAYER_BYTES
READY_S = 600.0
ASKED = 12  # batches before and after each loss
LOSSES = (signal.SIGKILL, signal.SIGSTOP)
SAMPLE_STEPS = 10  # so that a hung step is known by its usual time


def measure_lost_ranks(folder: Path) -> list[Figure]:
    """Answers lost and doubled, and the time until the next group is warm beside that of its reading."""
    path = make_stack_version(folder, LAYERS).path
    engine = open_engine(path, EngineOptions(max_batch=1, tensor=2, devices=2, ready_s=READY_S))
    assert isinstance(engine, ShardedEngine)
    try:
        return asyncio.run(_lose_ranks(engine))
    finally:
        engine.stop()


async def _lose_ranks(engine: ShardedEngine) -> list[Figure]:
    lane = EngineWorker(engine, asyncio.get_running_loop())
    gang, sample = engine.gangs[0], engine.sample()
    for _ in range(SAMPLE_STEPS):
        await lane.run_batch([sample])
    answers: list[int] = []
    over, terms = 0.0, []
    for number in LOSSES:
        assert gang.rank_group is not None
        os.kill(gang.rank_group.pids[1], number)
        began = time.monotonic()
        for _ in range(ASKED):
            while not (result := await lane.run_batch([sample])).predictions:
                pass  # as the hub's core: asked again under the same id
            answers.append(len(result.predictions))
        assert gang.rank_group is not None
        reading = max(rank.seconds for rank in gang.rank_group.ready)
        over = max(over, gang.rebuilt_s - reading)
        shard = max(rank.shard_bytes for rank in gang.rank_group.ready)
        terms.append(
            f"{number.name}: made anew in {gang.rebuilt_s:.1f} s, of which reading {reading:.1f} s; all of it"
            f" {time.monotonic() - began:.1f} s; shards of {shard / GIB:.2f} GiB"
        )
    await lane.close()
    lost = len(LOSSES) * ASKED - len(answers)
    return [
        Figure("rank lost, shard of 1 GiB: answers lost", lost, "answers", 0),
        Figure("rank lost, shard of 1 GiB: answers doubled", sum(answers) - len(answers), "answers", 0),
        Figure("rank lost, shard of 1 GiB: made anew, beyond reading", over, "s", 5.0, terms=tuple(terms)),
    ]
