"""Gangs of every shape on gloo, and a hub process that loses ranks while it is asked."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_hub.engine.base import Engine, EngineError
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.sharded.launcher import LocalLauncher
from cloud_hub.engine.types import EngineOptions, WorkItem
from cloud_hub.system.client import ApiAddress, call_hub_api, read_running_address
from models.bundle.manifest import ParallelPlan
from simulations.processes import find_free_port, list_children
from tests import ROOT
from tests.cloud_hub.doubles.gangs import SHAPES, gang_bundle

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
TOLERANCE = 1e-5
READY_S = 300.0  # for ranks that start on a machine that does other things


def works(kind: str, count: int) -> list[WorkItem]:
    chance = np.random.default_rng(count)
    return [WorkItem({"features": chance.integers(0, 16, SHAPES[kind], np.uint8)}) for _ in range(count)]


def ranks_of(engine: Engine, replica: int = 0) -> tuple[int, ...]:
    assert isinstance(engine, ShardedEngine)
    gang = engine.gangs[replica].rank_group
    assert gang is not None
    return gang.pids


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        ("transformer", ParallelPlan(pipeline=2)),
        ("pictures", ParallelPlan(tensor=2, pipeline=2)),
        ("pictures", ParallelPlan(tensor=2, replicas=2)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.tensor}x{value.pipeline}x{value.replicas}",
)
def test_every_spread_answers_as_one_process_does_on_every_bucket(tmp_path, kind, plan):
    path = gang_bundle(tmp_path, kind, plan).path
    alone = open_engine(path, EngineOptions(max_batch=6, tensor=1, pipeline=1, replicas=1, ready_s=READY_S))
    ranks = max(1, plan.tensor) * max(1, plan.pipeline) * max(1, plan.replicas)
    engine = open_engine(path, EngineOptions(max_batch=6, devices=ranks, ready_s=READY_S))
    try:
        engine.warm()
        for replica in engine.replicas:
            for count in engine.card.buckets:
                batch = works(kind, count)
                for found, wanted in zip(replica.infer(batch), alone.infer(batch), strict=True):
                    assert found.scores == pytest.approx(wanted.scores, abs=TOLERANCE)
        assert (
            engine.card.slots
            == len(engine.replicas)
            == (plan.replicas or 4 // max(2, plan.tensor * plan.pipeline) // 2 or 1)
        )
    finally:
        engine.stop()


def test_a_pipeline_answers_alike_in_any_number_of_microbatches_and_measures_how_many_it_takes(tmp_path):
    engine = open_engine(gang_bundle(tmp_path).path, EngineOptions(6, pipeline=2, devices=2, ready_s=READY_S))
    assert isinstance(engine, ShardedEngine)
    try:
        gang = engine.gangs[0]
        assert gang.count_pieces("tail", 6) == 1, "nothing was measured yet"
        x = np.random.default_rng(0).integers(0, 16, (6, *SHAPES["transformer"])).astype(np.float32)
        found = gang.run("tail", [x])
        assert 1 <= gang.count_pieces("tail", 6) <= 6
        assert gang.rank_group is not None
        for pieces in (1, 2, 4, 6, 99):
            made = gang.rank_group.step("tail", [x], READY_S, pieces).outputs[0]
            np.testing.assert_allclose(made, found, atol=TOLERANCE)
    finally:
        engine.stop()


@pytest.mark.heavy
def test_a_dead_fork_server_is_replaced(tmp_path):
    engine = open_engine(gang_bundle(tmp_path, "echo").path, EngineOptions(tensor=2, devices=2, ready_s=READY_S))
    assert isinstance(engine, ShardedEngine)
    launcher = engine.gangs[0]._launcher
    assert isinstance(launcher, LocalLauncher)
    assert launcher._server is not None
    launcher._server._process.kill()
    launcher._server._process.wait()
    os.kill(ranks_of(engine)[0], signal.SIGKILL)
    with pytest.raises(EngineError):
        engine.infer(works("echo", 1))
    assert engine.infer(works("echo", 1))
    engine.stop()


def test_the_gang_ends_with_its_engine_and_leaves_no_process_and_no_folder(tmp_path):
    engine = open_engine(gang_bundle(tmp_path, "echo").path, EngineOptions(tensor=2, devices=2, ready_s=READY_S))
    assert isinstance(engine, ShardedEngine)
    gang = engine.gangs[0].rank_group
    assert gang is not None
    mine, folder = gang.pids, Path(gang._ranks.store).parent
    assert folder.exists()
    engine.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in mine)
    assert not folder.exists()


class GangHub:
    """A hub process whose model is spread over two ranks."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder = folder
        engine = f"[engine]\ntensor = 2\ndevices = 2\nready_s = {READY_S}\n"
        places = f'state = "state"\nmodels = ["{bundle}"]\n[api]\nport = 0\n[broker]\nport = {find_free_port()}\n'
        (folder / "hub.toml").write_text(places + engine)
        self.log = (folder / "hub.log").open("w+")
        words = [sys.executable, "-m", "cloud_hub", "--config", str(folder / "hub.toml")]
        self.process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=self.log, text=True)

    def until(self, look: Any, timeout_s: float = READY_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := look()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        return found

    def address(self) -> ApiAddress:
        found = self.until(lambda: read_running_address(self.folder / "state" / "api.json"))
        assert isinstance(found, ApiAddress)
        return found

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{self.address().url}/readyz", timeout=5).status == 200)
        return False

    def answer(self, seed: int) -> list[float]:
        data = np.random.default_rng(seed).random((1, 10)).astype(np.float32)
        tensor = {"name": "image", "shape": [1, 10], "datatype": "FP32", "data": data.tolist()}
        found = call_hub_api(self.address(), "POST", "/v2/models/echo/infer", {"inputs": [tensor]})
        return next(list(out["data"]) for out in found["outputs"] if out["datatype"] == "FP32" and len(out["data"]) > 1)

    def family(self) -> list[int]:
        """The nursery and its ranks."""
        mine = [int(pid) for pid in _children(self.process.pid)]
        nursery = next(pid for pid in mine if pid not in list_children(self.process.pid, "mosquitto"))
        return [nursery, *_children(nursery)]

    def said(self) -> str:
        return (self.folder / "hub.log").read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[GangHub]:
    started = GangHub(tmp_path, gang_bundle(tmp_path / "bundles", "echo").path)
    yield started
    started.close()


def test_a_hub_that_loses_ranks_while_it_is_asked_answers_every_request_the_same(hub):
    hub.until(hub.ready)
    wanted = {seed: hub.answer(seed) for seed in range(4)}
    for number in (signal.SIGKILL, signal.SIGSTOP):
        nursery, *ranks = hub.family()
        assert len(ranks) == 2
        os.kill(ranks[1], number)
        for seed in range(4):
            assert hub.answer(seed) == pytest.approx(wanted[seed], abs=TOLERANCE)
        assert hub.family()[0] == nursery
        assert not set(hub.family()[1:]) & set(ranks)
    assert "engine_failed" in hub.said()


def test_kill_9_of_the_hub_leaves_no_rank_behind(hub):
    hub.until(hub.ready)
    family = hub.family()
    hub.process.kill()
    hub.process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in family):
        assert time.monotonic() < deadline
        time.sleep(0.05)
