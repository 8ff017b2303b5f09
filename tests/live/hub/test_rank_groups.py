"""A gang of two ranks as processes on gloo: correct results, number of collectives, and recovery of a lost rank."""

import asyncio
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from cloud_hub.engine.base import EngineError, EngineState
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine, ShardedGraphRunner
from cloud_hub.engine.sharded.group import RankLostError
from cloud_hub.engine.types import EngineOptions, WorkItem
from cloud_hub.engine.worker import EngineWorker
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.doubles.gangs import SHAPES, Borrowed, gang_bundle
from tests.cloud_hub.doubles.site import Ear, serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
TWO = EngineOptions(max_batch=4, tensor=2, devices=2, replicas=1, ready_s=300.0)
TOLERANCE = 1e-5
NOTICED_S = 60.0  # of silence; a second on a quiet machine


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A sharded engine of two ranks, and the same bundle in one process; both warm."""
    path = gang_bundle(tmp_path_factory.mktemp("gang"), "echo").path
    engine, alone = open_engine(path, TWO), open_engine(path, EngineOptions(max_batch=4))
    assert isinstance(engine, ShardedEngine)
    engine.warm()
    yield engine, alone
    engine.stop()


@pytest.fixture
def engine(pair):
    """The engine as the last test left it: one that killed a rank leaves a lost group behind."""
    pair[0].health()
    return pair[0]


def works(count: int, seed: int = 1) -> list[WorkItem]:
    """Codes and raw samples, mixed."""
    chance = np.random.default_rng(seed)
    codes = [WorkItem({"features": chance.integers(0, 16, SHAPES["echo"], np.uint8)}) for _ in range(count)]
    return [
        WorkItem(raw=chance.random(SHAPES["echo"], np.float32)) if at % 3 == 2 else one for at, one in enumerate(codes)
    ]


def gang_of(engine: ShardedEngine) -> ShardedGraphRunner:
    return engine.gangs[0]


def pids(engine: ShardedEngine) -> tuple[int, ...]:
    gang = gang_of(engine).rank_group
    assert gang is not None
    return gang.pids


def test_a_gang_answers_as_one_process_does_on_every_bucket(pair):
    engine, alone = pair
    assert engine.card.buckets == alone.card.buckets == (1, 2, 3, 4)
    for count in engine.card.buckets:
        for found, wanted in zip(engine.infer(works(count)), alone.infer(works(count)), strict=True):
            assert found.label == wanted.label
            assert found.scores == pytest.approx(wanted.scores, abs=TOLERANCE)


def test_an_answer_costs_four_meetings_and_nothing_is_put_together(engine):
    gang = gang_of(engine)
    counts = []
    for _ in range(2):
        engine.infer(works(2))
        assert gang.last is not None
        counts.append(gang.last.meetings)
    assert {kind: counts[1][kind] - counts[0][kind] for kind in counts[1]} == {"all_reduce": 4}


async def test_a_devices_question_is_answered_by_two_ranks(pair, tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device, engine=Borrowed(pair[0]), max_batch=4) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(*range(1, 9))
        verdicts = await ear.verdicts(8)
        codes = np.full(10, 3, np.uint8)
        (wanted,) = pair[1].infer([WorkItem({"features": codes})])
        assert verdicts[3].prediction.scores == pytest.approx(wanted.scores, abs=TOLERANCE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
async def test_a_rank_lost_under_load_costs_no_answer_and_doubles_none(pair, tmp_path, number):
    """Its batch comes back by its ticket, the gang is made anew, and each question gets one verdict."""
    engine = pair[0]
    before = engine.health().generation
    device = SimDevice()
    async with serving(tmp_path, device, engine=Borrowed(engine), max_batch=4) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(*range(1, 13))
        first = await ear.verdicts(1)
        os.kill(pids(engine)[1], number)
        ear.ask(*range(13, 25))
        later = await ear.verdicts(24 - len(first), within_s=120)
        assert first.keys() | later.keys() == set(range(1, 25))
        assert site.hub.counters()["verdicts"] == 24
    assert engine.health().generation > before


def test_a_killed_rank_is_noticed_at_once_and_the_next_call_has_a_new_gang(engine):
    engine.infer(works(1))
    os.kill(pids(engine)[0], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"echo@1: rank 0 of generation \d+: "):
        engine.infer(works(1))
    assert time.monotonic() - started < NOTICED_S
    assert engine.infer(works(1))
    assert gang_of(engine).rebuilt_s < TWO.ready_s
    assert gang_of(engine).rebuilds == engine.health().generation - 1 > 0


def test_a_hung_rank_is_noticed_while_nothing_is_asked(engine):
    engine.infer(works(1))
    victim = pids(engine)[1]
    os.kill(victim, signal.SIGSTOP)
    started = time.monotonic()
    health = engine.health()
    assert health.state is EngineState.LOST
    assert "rank 1 of generation" in health.why
    assert time.monotonic() - started < NOTICED_S
    assert not Path(f"/proc/{victim}").exists()
    assert engine.health().state is EngineState.READY


async def test_a_batch_of_a_lost_gang_is_a_failed_result_and_the_next_one_works(pair):
    lane = EngineWorker(Borrowed(pair[0]), asyncio.get_running_loop())
    first = await lane.run_batch(works(2))
    assert not first.error
    assert [rank for rank, _ in first.ranks] == [0, 1]
    assert all(0 < seconds <= first.seconds for _, seconds in first.ranks)
    os.kill(pids(pair[0])[1], signal.SIGKILL)
    # the worker may have checked its health before
    assert (await lane.run_batch(works(2))).error.partition("@")[0] in (RankLostError.__name__, "")
    result = await lane.run_batch(works(2))
    assert not result.error
    assert lane.health[0].state is EngineState.READY
    await lane.close()
