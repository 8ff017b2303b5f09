"""A pipeline with two batches on the way: each gets its own answers, and both fail when a rank is lost."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cloud_hub.engine.base import EngineError, EngineState
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.types import EngineOptions
from tests.cloud_hub.doubles.gangs import SHAPES, gang_bundle

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
READY_S = 300.0
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gang_bundle(tmp_path_factory.mktemp("gang")).path


@pytest.fixture
def engine(path: Path) -> Iterator[ShardedEngine]:
    engine = open_engine(path, EngineOptions(6, pipeline=2, devices=2, ready_s=READY_S))
    assert isinstance(engine, ShardedEngine)
    yield engine
    engine.stop()


def draw(seed: int) -> npt.NDArray[np.float32]:
    chance = np.random.default_rng(seed)
    return chance.integers(0, 16, (1 + seed % 6, *SHAPES["transformer"])).astype(np.float32)


def count_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_batches_of_any_size_that_overtake_nothing_get_their_own_answers(engine, path):
    assert engine.depth == 2
    alone = open_engine(path, EngineOptions(6, ready_s=READY_S))
    gang, whole, asked = engine.gangs[0], alone._graphs, [draw(seed) for seed in range(48)]  # type: ignore[attr-defined]
    gang.run("tail", [draw(5)])  # measures microbatches alone
    with ThreadPoolExecutor(engine.depth) as threads:
        found = list(threads.map(lambda x: gang.run("tail", [x]), asked))
    for x, made in zip(asked, found, strict=True):
        np.testing.assert_allclose(made, whole.run("tail", [x]), atol=TOLERANCE)
    assert not gang.rank_group.busy
    alone.stop()


@pytest.mark.parametrize("lost", [0, 1], ids=["first-stage", "last-stage"])
def test_a_lost_rank_fails_both_batches_on_the_way_and_the_next_group_answers(engine, lost):
    gang, x = engine.gangs[0], draw(5)
    gang.run("tail", [x])
    handles = count_handles()
    group = gang.rank_group
    os.kill(group.pids[lost], signal.SIGSTOP)  # both batches are sent before the rank is lost
    errors: list[str] = []

    def ask() -> None:
        try:
            group.step("tail", [x], READY_S)
        except EngineError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(engine.depth)]
    for thread in threads:
        thread.start()
    while group._sent < group._read + engine.depth:
        assert any(thread.is_alive() for thread in threads)
    os.kill(group.pids[lost], signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert len(set(errors)) == 1
    assert len(errors) == engine.depth
    with pytest.raises(EngineError):
        gang.run("tail", [x])  # the group is known to be lost
    assert len(gang.run("tail", [x])) == len(x)
    assert gang.health().state is EngineState.READY
    assert count_handles() == handles, "sockets of the lost group are closed"
