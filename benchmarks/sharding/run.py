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
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.benchmark import alone
from benchmarks.harness.figures import Figure, p50
from benchmarks.sharding.baseline import Hand
from benchmarks.sharding.nets import LENGTH, PIECE, Large, bundle_of, transformer
from cloud_hub.engine.base import EngineError
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import GangGraphs, ShardedEngine
from cloud_hub.engine.types import Means, Work
from cloud_hub.engine.worker import Lane

MS = 1e3
BATCH, ROUNDS, STEPS = 8, 12, 12
LOSSES = 3
ASKED = 160
TENSOR = Means(max_batch=BATCH, tensor=2, devices=2)
SPREADS = {"tensor": TENSOR, "pipeline": Means(max_batch=BATCH, pipeline=2, devices=2)}
Step = Callable[[npt.NDArray[np.float32]], object]


async def run(folder: Path, _bundle: Path) -> list[Figure]:
    path = bundle_of(folder, transformer()).path
    figures = [_step_cost(path, kind, means) for kind, means in SPREADS.items()]
    figures += await _losses(path)
    return [*figures, _large(folder)]


@contextmanager
def started(path: Path, means: Means) -> Iterator[ShardedEngine]:
    engine = open_engine(path, means)
    assert isinstance(engine, ShardedEngine)
    try:
        engine.warm()
        yield engine
    finally:
        engine.stop()


def _step_cost(path: Path, kind: str, means: Means) -> Figure:
    with started(path, means) as engine, Hand(kind) as hand:
        gang, x = engine.gangs[0], _sample()
        error = float(np.abs(hand.step(x) - gang.run("tail", [x])).max())
        ours, theirs = _alternate(lambda x: gang.run("tail", [x]), hand.step)
        meetings = gang.last.meetings if gang.last else {}
    terms = (
        f"gang p50 {p50(ours) * MS:.2f} ms, by hand {p50(theirs) * MS:.2f} ms, in one process {_whole() * MS:.2f} ms",
        f"batch {BATCH}, {len(ours)} steps each, alternating; largest difference {error:.1e}; collectives {meetings}",
    )
    return Figure(f"gang step, {kind} 2, over the same by hand", p50(ours) / p50(theirs), "x", 1.10, terms=terms)


def _alternate(first: Step, second: Step) -> tuple[list[float], list[float]]:
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + 1):
        for step, seconds in zip((first, second), taken, strict=True):
            found = [_timed(step) for _ in range(STEPS)]
            seconds.extend(found if turn else [])  # the first round warms both
    return taken


def _timed(step: Step) -> float:
    x, began = _sample(), time.perf_counter()
    step(x)
    return time.perf_counter() - began


def _sample() -> npt.NDArray[np.float32]:
    return np.random.default_rng().integers(0, 16, (BATCH, LENGTH, PIECE)).astype(np.float32)


def _whole() -> float:
    torch.set_num_threads(1)
    net, taken = transformer(), []
    with torch.no_grad():
        for _ in range(2 * STEPS):
            began = time.perf_counter()
            net(torch.from_numpy(_sample()))
            taken.append(time.perf_counter() - began)
    return p50(taken[STEPS:])


# -- lost ranks


async def _losses(path: Path) -> list[Figure]:
    with started(path, TENSOR) as engine:
        gang = engine.gangs[0]
        for _ in range(2 * STEPS):
            gang.run("tail", [_sample()])
        limit_s = gang.limit_s("tail", BATCH)
        killed = [_loss(gang, signal.SIGKILL) for _ in range(LOSSES)]
        hung = [_loss(gang, signal.SIGSTOP) for _ in range(LOSSES)]
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


def _loss(gang: GangGraphs, number: signal.Signals) -> tuple[float, float]:
    """Seconds to the error, and from there to a gang that answers."""
    assert gang.gang is not None
    os.kill(gang.gang.pids[1], number)
    began = time.monotonic()
    try:
        gang.run("tail", [_sample()])
    except EngineError:
        noticed = time.monotonic()
        gang.run("tail", [_sample()])
        return noticed - began, time.monotonic() - noticed
    raise RuntimeError("nobody noticed")


async def _under_load(engine: ShardedEngine) -> tuple[int, int, int]:
    """Batches under their numbers; a failed one is asked for again, as the hub's core does."""
    lane = Lane(engine, asyncio.get_running_loop())
    answers: dict[int, int] = {}
    again = 0
    work = Work({"features": np.zeros((LENGTH, PIECE), np.uint8)})
    for number in range(ASKED):
        if number in (ASKED // 3, 2 * ASKED // 3):
            gang = engine.gangs[0].gang
            os.kill(gang.pids[number % 2], signal.SIGKILL) if gang else None
        while not (result := await lane.run([work] * BATCH)).predictions:
            again += 1
        answers[number] = answers.get(number, 0) + len(result.predictions) // BATCH
    await lane.close()
    return ASKED - len(answers), sum(count - 1 for count in answers.values()), again


def _large(folder: Path) -> Figure:
    path = bundle_of(folder, Large().eval()).path
    began = time.monotonic()
    with started(path, Means(max_batch=1, tensor=2, devices=2)) as engine:
        seconds = time.monotonic() - began
        gang = engine.gangs[0].gang
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
    sys.exit(alone(run))
