"""Benchmark: a model sharded over two ranks: step overhead, recovery after a lost rank, memory per rank.

`python -m benchmarks.sharding.run`. Steps of the gang and of the same model sharded by hand alternate in one run; the
rank that is lost is killed (SIGKILL) or stopped (SIGSTOP) while requests come.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, find_median
from benchmarks.sharding.baseline import HandShardedModel
from benchmarks.sharding.nets import LENGTH, PIECE, LargeStack, bundle_of, transformer
from cloud_hub.engine.base import Engine, EngineError
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine, ShardedGraphRunner
from cloud_hub.engine.types import EngineOptions, WorkItem
from cloud_hub.engine.worker import EngineWorker

MS = 1e3
BATCH, ROUNDS, STEPS = 8, 12, 12
WIDE = 32
QUEUED = 8
LOSSES = 3
ASKED = 160
TENSOR = EngineOptions(max_batch=BATCH, tensor=2, devices=2)
SPREADS = {"tensor": TENSOR, "pipeline": EngineOptions(max_batch=BATCH, pipeline=2, devices=2)}
Step = Callable[[npt.NDArray[np.float32]], object]


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    path = bundle_of(folder, transformer()).path
    figures = measure_parallel(folder) + await _measure_losses(path)
    return [*figures, _measure_large(folder)]


def measure_parallel(folder: Path) -> list[Figure]:
    """Steps of two ranks over the same by hand, and the throughput of a pipeline over one process."""
    path = bundle_of(folder, transformer()).path
    return [*(_step_cost(path, kind, means) for kind, means in SPREADS.items()), measure_pipeline_throughput(path)]


@contextmanager
def open_started(path: Path, means: EngineOptions) -> Iterator[ShardedEngine]:
    engine = open_engine(path, means)
    assert isinstance(engine, ShardedEngine)
    try:
        engine.warm()
        yield engine
    finally:
        engine.stop()


def _step_cost(path: Path, kind: str, means: EngineOptions) -> Figure:
    with open_started(path, means) as engine, HandShardedModel(kind) as hand:
        gang, x = engine.gangs[0], draw_sample()
        error = float(np.abs(hand.step(x) - gang.run("tail", [x])).max())
        ours, theirs = time_alternating(lambda x: gang.run("tail", [x]), hand.step)
        meetings = gang.last.meetings if gang.last else {}
    terms = (
        f"gang p50 {find_median(ours) * MS:.2f} ms, by hand {find_median(theirs) * MS:.2f} ms, "
        f"in one process {_time_whole() * MS:.2f} ms",
        f"batch {BATCH}, {len(ours)} steps each, alternating; largest difference {error:.1e}; collectives {meetings}",
    )
    return Figure(
        f"gang step, {kind} 2, over the same by hand", find_median(ours) / find_median(theirs), "x", 1.05, terms=terms
    )


def measure_pipeline_throughput(path: Path) -> Figure:
    """One process over a pipeline of two, some batches of each in turns: how many times more the pipeline answers.

    Batches come as a hub's queue gives them: as many at once as the engine takes.
    """
    alone = open_engine(path, EngineOptions(max_batch=WIDE, tensor=1, pipeline=1, replicas=1))
    with open_started(path, EngineOptions(max_batch=WIDE, pipeline=2, devices=2)) as engine:
        pieces = engine.gangs[0].count_pieces("tail", WIDE)
        single, double = list[float](), list[float]()
        for turn in range(ROUNDS + 1):
            for each, seconds in ((alone, single), (engine, double)):
                found = _time_queue(each)
                seconds.extend([found] if turn else [])  # the first round warms both
    alone.stop()
    terms = (
        f"batch {WIDE} in {pieces} microbatches, {engine.depth} on the way: {find_median(double) * MS:.1f} ms a batch, "
        f"one process of one thread {find_median(single) * MS:.1f} ms, in turns; two free cores are needed to show it",
    )
    value = find_median(single) / find_median(double)
    return Figure("pipeline 2, throughput over one process", value, "x", 1.6, more_is_better=True, terms=terms)


def _time_queue(engine: Engine) -> float:
    """Seconds a batch, of some that wait from the start."""
    x = np.random.default_rng(0).integers(0, 16, (WIDE, LENGTH, PIECE)).astype(np.uint8)
    batch = [WorkItem({"features": row}) for row in x]
    with ThreadPoolExecutor(engine.depth) as threads:
        began = time.perf_counter()
        for _ in threads.map(engine.infer, [batch] * QUEUED):
            pass
        return (time.perf_counter() - began) / QUEUED


def time_alternating(first: Step, second: Step) -> tuple[list[float], list[float]]:
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + 1):
        for step, seconds in zip((first, second), taken, strict=True):
            found = [_time_step(step) for _ in range(STEPS)]
            seconds.extend(found if turn else [])  # the first round warms both
    return taken


def _time_step(step: Step) -> float:
    x, began = draw_sample(), time.perf_counter()
    step(x)
    return time.perf_counter() - began


def draw_sample() -> npt.NDArray[np.float32]:
    return np.random.default_rng().integers(0, 16, (BATCH, LENGTH, PIECE)).astype(np.float32)


def _time_whole() -> float:
    torch.set_num_threads(1)
    net, taken = transformer(), []
    with torch.no_grad():
        for _ in range(2 * STEPS):
            began = time.perf_counter()
            net(torch.from_numpy(draw_sample()))
            taken.append(time.perf_counter() - began)
    return find_median(taken[STEPS:])


# -- lost ranks


async def _measure_losses(path: Path) -> list[Figure]:
    with open_started(path, TENSOR) as engine:
        gang = engine.gangs[0]
        for _ in range(2 * STEPS):
            gang.run("tail", [draw_sample()])
        limit_s = gang.step_limit_s("tail", BATCH)
        killed = [time_loss(gang, signal.SIGKILL) for _ in range(LOSSES)]
        hung = [time_loss(gang, signal.SIGSTOP) for _ in range(LOSSES)]
        lost, doubled, retried = await _under_load(engine)
    rebuilt = [rebuild for _, rebuild in (*killed, *hung)]
    terms = (f"each {LOSSES} times; {ASKED} batches asked for while ranks were lost, {retried} asked for again",)
    return [
        Figure("killed rank: seconds until it is noticed", max(s for s, _ in killed), "s", limit_s),
        Figure("hung rank: seconds until it is noticed", max(s for s, _ in hung), "s", limit_s + 0.25, terms=terms),
        Figure("lost rank: seconds until the next gang is warm", max(rebuilt), "s", 5.0),
        Figure("lost ranks: answers lost", lost, "answers", 0),
        Figure("lost ranks: answers doubled", doubled, "answers", 0),
    ]


def time_loss(gang: ShardedGraphRunner, number: signal.Signals) -> tuple[float, float]:
    """Seconds to the error, and from there to a gang that answers."""
    assert gang.rank_group is not None
    os.kill(gang.rank_group.pids[1], number)
    began = time.monotonic()
    try:
        gang.run("tail", [draw_sample()])
    except EngineError:
        noticed = time.monotonic()
        gang.run("tail", [draw_sample()])
        return noticed - began, time.monotonic() - noticed
    raise RuntimeError("nobody noticed")


async def _under_load(engine: ShardedEngine) -> tuple[int, int, int]:
    """Batches under their numbers; a failed one is asked for again, as the hub's core does."""
    lane = EngineWorker(engine, asyncio.get_running_loop())
    answers: dict[int, int] = {}
    again = 0
    work = WorkItem({"features": np.zeros((LENGTH, PIECE), np.uint8)})
    for number in range(ASKED):
        if number in (ASKED // 3, 2 * ASKED // 3):
            gang = engine.gangs[0].rank_group
            os.kill(gang.pids[number % 2], signal.SIGKILL) if gang else None
        while not (result := await lane.run_batch([work] * BATCH)).predictions:
            again += 1
        answers[number] = answers.get(number, 0) + len(result.predictions) // BATCH
    await lane.close()
    return ASKED - len(answers), sum(count - 1 for count in answers.values()), again


def _measure_large(folder: Path) -> Figure:
    path = bundle_of(folder, LargeStack().eval(), "large").path
    began = time.monotonic()
    with open_started(path, EngineOptions(max_batch=1, tensor=2, devices=2)) as engine:
        seconds = time.monotonic() - began
        gang = engine.gangs[0].rank_group
        ready = gang.ready if gang else ()
    shard = max(each.shard_bytes for each in ready)
    worst = max(each.private_bytes / each.shard_bytes for each in ready)
    terms = (
        f"shards of {shard / 2**20:.0f} MiB; private (USS) above the imported baseline "
        f"{', '.join(f'{each.private_bytes / 2**20:.0f} MiB' for each in ready)}",
        f"checked, loaded and warm in {seconds:.1f} s, of which loading {max(each.seconds for each in ready):.1f} s",
    )
    return Figure("sharded load: private bytes of a rank over its shard", worst, "x", 1.2, terms=terms)


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
