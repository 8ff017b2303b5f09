"""Sharded engine with two ranks on gloo: correct results, number of collectives, and recovery of a lost rank."""

import asyncio
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_hub.engine.base import EngineError, EngineState
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded import protocol
from cloud_hub.engine.sharded.engine import ShardedEngine, ShardedGraphRunner
from cloud_hub.engine.sharded.group import RankLostError
from cloud_hub.engine.types import EngineOptions, WorkItem
from cloud_hub.engine.worker import EngineWorker
from models.bundle.manifest import HUB_FILE, HUB_GRAPH_FILE, BundleError, ParallelPlan
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.doubles.gangs import SHAPES, gang_bundle
from tests.cloud_hub.doubles.site import Ear, serving

TWO = EngineOptions(max_batch=4, tensor=2, devices=2, replicas=1)
TOLERANCE = 1e-5


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


def test_a_gang_on_another_system_than_linux_is_refused_with_one_line(tmp_path, monkeypatch):
    path = gang_bundle(tmp_path, "echo").path
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with pytest.raises(BundleError, match="which needs Linux"):
        open_engine(path, TWO)


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
        later = await ear.verdicts(24 - len(first), within_s=20)
        assert first.keys() | later.keys() == set(range(1, 25))
        assert site.hub.counters()["verdicts"] == 24
    assert engine.health().generation == before + 1


def test_a_killed_rank_is_noticed_at_once_and_the_next_call_has_a_new_gang(engine):
    engine.infer(works(1))
    os.kill(pids(engine)[0], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"echo@1: rank 0 of generation \d+: "):
        engine.infer(works(1))
    assert time.monotonic() - started < 2.0
    assert engine.infer(works(1))
    assert gang_of(engine).rebuilt_s < 5.0


def test_a_hung_rank_is_noticed_while_nothing_is_asked(engine):
    engine.infer(works(1))
    victim = pids(engine)[1]
    os.kill(victim, signal.SIGSTOP)
    started = time.monotonic()
    health = engine.health()
    assert health.state is EngineState.LOST
    assert "rank 1 of generation" in health.why
    assert time.monotonic() - started < 2.0
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
    assert (await lane.run_batch(works(2))).error in (RankLostError.__name__, "")
    result = await lane.run_batch(works(2))
    assert not result.error
    assert lane.health[0].state is EngineState.READY
    await lane.close()


# -- what cannot be served: one line, in bounded time


def refusal(path: Path, means: EngineOptions) -> str:
    started = time.monotonic()
    with pytest.raises((BundleError, EngineError)) as caught:
        open_engine(path, means)
    assert time.monotonic() - started < 20
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_world_size_without_devices_is_refused(tmp_path):
    path = gang_bundle(tmp_path, "echo", ParallelPlan(tensor=4, pipeline=2)).path
    assert refusal(path, EngineOptions(devices=2)) == (
        "echo@1: the plan takes 8 devices (tensor 4, pipeline 2), there are 2"
    )


def test_a_model_that_does_not_fit_is_refused_by_its_size(tmp_path):
    path = gang_bundle(tmp_path, "echo").path
    assert refusal(path, EngineOptions(devices=2, memory_bytes=256 << 20)).startswith(
        "echo@1: it does not fit: it takes 25"
    )


def test_a_shard_of_another_digest_is_refused_before_any_rank_is_born(tmp_path):
    path = gang_bundle(tmp_path, "echo").path
    data = bytearray((path / HUB_FILE).read_bytes())
    data[-5] ^= 1
    (path / HUB_FILE).write_bytes(data)
    assert refusal(path, TWO) == (
        f"{path}: {HUB_FILE}: its content is not what the manifest promises (SHA-256 differs)"
    )


def test_an_engine_that_never_gets_ready_is_given_up_in_time(tmp_path):
    path = gang_bundle(tmp_path, "echo").path
    assert refusal(path, EngineOptions(tensor=2, devices=2, ready_s=0.05)).startswith(
        "echo@1: rank 0 of generation 1: "
    )


def test_graphs_that_are_not_what_the_manifest_says_are_refused(tmp_path):
    bundle = gang_bundle(tmp_path, "transformer")
    other = gang_bundle(tmp_path / "other", "echo")
    for name in (HUB_GRAPH_FILE, HUB_FILE):
        (bundle.path / name).write_bytes((other.path / name).read_bytes())
    assert "its content is not what the manifest promises" in refusal(bundle.path, TWO)


def test_nonsense_on_the_socket_ends_it_and_allocates_nothing():
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\xff" * 64)
    with pytest.raises(protocol.PipeError, match="malformed message"):
        protocol.receive_message(ours, time.monotonic() + 1)
    with pytest.raises(protocol.PipeError, match="malformed message"):
        protocol.parse_arrays([protocol.ArrayForm("float32", (1 << 40,))], bytearray(8))
    with pytest.raises(protocol.PipeError, match="malformed message"):
        protocol.parse_arrays([protocol.ArrayForm("O", (1,))], bytearray(8))
    theirs.close()
    ours.close()


class Borrowed:
    """The module's engine lent to one hub, which does not stop it."""

    def __init__(self, engine: ShardedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def drain(self) -> None:
        """It serves on."""

    def stop(self) -> None:
        """It serves on."""
