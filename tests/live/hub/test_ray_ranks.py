"""A gang on three nodes of a real Ray cluster on this machine, each with a bundle of its own, killed by process ids."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from cloud_hub.engine.base import ClusterError, EngineError, EngineState
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.types import EngineOptions, RayOptions, WorkItem
from models.bundle.manifest import ParallelPlan
from simulations.processes import find_free_port
from tests import ROOT
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.doubles.gangs import SHAPES, Borrowed, gang_bundle
from tests.cloud_hub.doubles.site import Ear, serving
from tests.live.doubles.ray_cluster import RayCluster
from wire.process.exit_codes import ExitCode

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
TOLERANCE = 1e-5
READY_S = 300.0  # on a machine that does other things
QUESTIONS = 24
NODES = 3


class Site:
    """A cluster of three nodes, beside a head that has no ranks; and the hub's own bundle."""

    def __init__(self, folder: Path) -> None:
        self.bundle = gang_bundle(folder / "hub", "echo").path
        self.folder = folder
        self.cluster = RayCluster()
        self.nodes: set[int] = set()

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        self.complete()
        return self

    def __exit__(self, *_error: object) -> None:
        self.cluster.__exit__()

    def complete(self) -> None:
        """Start nodes until there are three beside the head."""
        while len(self.nodes) < NODES:
            self.nodes.add(self.cluster.add(self.copy_bundle(f"node-{len(self.nodes)}")))

    def options(self, tensor: int = 1) -> EngineOptions:
        ray = RayOptions(self.cluster.address, nodes=NODES)
        return EngineOptions(max_batch=4, pipeline=2, tensor=tensor, devices=tensor, ready_s=READY_S, ray=ray)

    def node_of(self, pid: int) -> int:
        return next(node for node in self.nodes if pid in self.cluster.list_processes(node))

    def kill(self, node: int) -> None:
        self.nodes.discard(node)
        self.cluster.kill(node)

    def restart_head(self) -> None:
        """A new cluster at the old address: nodes of the old one do not join it."""
        for node in (0, *self.nodes):
            self.kill(node)
        self.cluster.start_head(int(self.cluster.address.rpartition(":")[2]))
        self.complete()

    def copy_bundle(self, name: str) -> Path:
        return Path(shutil.copytree(self.bundle.parent, self.folder / name, dirs_exist_ok=True))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("ray")) as opened:
        yield opened


@pytest.fixture(scope="module")
def spread(site) -> Iterator[ShardedEngine]:
    """One engine of two stages for the whole module."""
    opened = open_engine(site.bundle, site.options())
    assert isinstance(opened, ShardedEngine)
    opened.warm()
    yield opened
    opened.stop()


@pytest.fixture
def engine(site: Site, spread: ShardedEngine) -> ShardedEngine:
    """The engine, serving again after what the last test did to it, on a whole cluster."""
    site.complete()
    wait_ready(spread)
    return spread


def wait_ready(engine: ShardedEngine) -> None:
    deadline = time.monotonic() + READY_S
    while (health := engine.health()).state is not EngineState.READY:
        assert time.monotonic() < deadline, health.why
        time.sleep(0.25)


def pids(engine: ShardedEngine) -> tuple[int, ...]:
    group = engine.gangs[0].rank_group
    assert group is not None
    return group.pids


def works(count: int) -> list[WorkItem]:
    chance = np.random.default_rng(count)
    return [WorkItem({"features": chance.integers(0, 16, SHAPES["echo"], np.uint8)}) for _ in range(count)]


def test_stages_on_two_nodes_answer_as_one_process_does_on_every_bucket(site, engine):
    alone = open_engine(site.bundle, EngineOptions(max_batch=4))
    assert site.node_of(pids(engine)[0]) != site.node_of(pids(engine)[1])
    for count in engine.card.buckets:
        for found, wanted in zip(engine.infer(works(count)), alone.infer(works(count)), strict=True):
            assert found.label == wanted.label
            assert found.scores == pytest.approx(wanted.scores, abs=TOLERANCE)


def test_a_rank_that_dies_alone_is_forked_again_where_it_was(site, engine):
    before, driver = pids(engine), engine.gangs[0].fork_server_pid
    os.kill(before[1], signal.SIGKILL)
    with pytest.raises(EngineError, match=r"echo@1: rank 1 of generation \d+ on .* \(127\.0\.0\.1\): (gone|died)"):
        engine.infer(works(1))
    assert engine.infer(works(1))
    assert engine.gangs[0].fork_server_pid == driver, "the hosts live, so Ray was not asked again"
    assert site.node_of(pids(engine)[1]) in site.nodes
    assert not set(pids(engine)) & set(before)


async def test_a_node_killed_under_load_costs_no_question_and_doubles_none(site, engine, tmp_path):
    before = engine.health().generation
    victim = max(site.node_of(pid) for pid in pids(engine))
    device = SimDevice()
    async with serving(tmp_path, device, engine=Borrowed(engine), max_batch=4) as hub:
        ear = await Ear.listen(device, hub.broker)
        ear.ask(*range(1, QUESTIONS // 2 + 1))
        first = await ear.verdicts(1)
        site.kill(victim)
        ear.ask(*range(QUESTIONS // 2 + 1, QUESTIONS + 1))
        later = await ear.verdicts(QUESTIONS - len(first), within_s=READY_S)
        assert first.keys() | later.keys() == set(range(1, QUESTIONS + 1))
        assert hub.hub.counters()["verdicts"] == QUESTIONS
    assert engine.health().generation > before
    assert victim not in {site.node_of(pid) for pid in pids(engine)}


def test_a_node_that_is_cut_off_is_noticed_by_its_silence_and_not_chosen_again(site, engine):
    """All of it is stopped: no connection ends, and Ray believes for a while that it is there."""
    for _ in range(10):
        engine.infer(works(1))  # a step's limit is learnt
    victim = site.node_of(pids(engine)[1])
    for pid in site.cluster.list_processes(victim):
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EngineError, match=r"rank \d of generation \d+ on .*: silent for \d"):
        engine.infer(works(1))
    wait_ready(engine)
    assert engine.infer(works(1))
    assert victim not in {site.node_of(pid) for pid in pids(engine)}
    site.kill(victim)


async def test_a_head_killed_under_load_costs_no_question_and_a_new_one_answers_them(site, engine, tmp_path):
    device = SimDevice()
    async with serving(tmp_path, device, engine=Borrowed(engine), max_batch=4) as hub:
        ear = await Ear.listen(device, hub.broker)
        ear.ask(*range(1, QUESTIONS // 2 + 1))
        first = await ear.verdicts(1)
        for node in (0, *site.nodes):  # all that Ray had, ranks included
            site.kill(node)
        ear.ask(*range(QUESTIONS // 2 + 1, QUESTIONS + 1))
        site.restart_head()
        later = await ear.verdicts(QUESTIONS - len(first), within_s=READY_S)
        assert first.keys() | later.keys() == set(range(1, QUESTIONS + 1))
        assert hub.hub.counters()["verdicts"] == QUESTIONS


def test_ranks_answer_on_while_their_head_is_gone_and_a_new_generation_says_that_it_is(site, engine):
    site.cluster.kill(0)
    assert engine.infer(works(2))
    site.kill(site.node_of(pids(engine)[0]))
    with pytest.raises(EngineError, match="of generation"):
        engine.infer(works(2))
    with pytest.raises(ClusterError, match=r"generation \d+: no Ray head at 127\.0\.0\.1:\d+$"):
        engine.infer(works(2))
    site.restart_head()
    wait_ready(engine)
    assert engine.infer(works(2))


def test_a_plan_that_no_nodes_satisfy_is_one_line(site, engine):
    with pytest.raises(ClusterError) as caught:
        open_engine(site.bundle, site.options(tensor=2))
    assert re.fullmatch(
        r"echo@1: generation 1: no nodes satisfy the plan: it takes 2 stages of 2 CPU, each on one node; the nodes that"
        r" are alive have: (1 CPU, )+0 CPU",  # of a node that was killed a moment ago Ray hears later
        str(caught.value),
    )


def test_a_node_with_another_bundle_is_refused_by_name_and_no_rank_is_started(site, engine):
    """The nodes' folders are changed, and changed back: the engine that runs holds the files that it checked."""
    others = [site.folder / f"node-{at}" / site.bundle.name for at in range(NODES)]
    engine.stop()
    for path in others:
        shutil.rmtree(path)
        gang_bundle(path.parent, "echo", ParallelPlan(tensor=2))
    with pytest.raises(EngineError) as caught:
        open_engine(site.bundle, site.options())
    assert not isinstance(caught.value, ClusterError)
    assert re.fullmatch(
        r"echo@1: generation 1: node .* \(127\.0\.0\.1\): .*/node-\d/echo-1: is another bundle of echo@1 than the"
        r" hub's: its digest is [0-9a-f]{12}\.\.\., the hub's [0-9a-f]{12}\.\.\.",
        str(caught.value),
    )
    for path in others:
        shutil.rmtree(path)
        shutil.copytree(site.bundle, path)


def test_a_node_with_another_torch_is_refused_by_name(site, engine, tmp_path):
    engine.stop()
    shadow = tmp_path / "torch-2.0.1.dist-info"
    shadow.mkdir()
    (shadow / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0.1\n")
    for node in tuple(site.nodes):
        site.kill(node)
    old = [site.cluster.add(site.copy_bundle("node-0"), PYTHONPATH=str(tmp_path)) for _ in range(2)]
    with pytest.raises(EngineError, match=r"^echo@1: generation 1: node .*: has torch 2\.0\.1, this hub \d"):
        open_engine(site.bundle, site.options())
    for node in old:
        site.cluster.kill(node)


def run_hub(site: Site, folder: Path, address: str) -> subprocess.Popen[str]:
    """A hub process whose model is spread over two nodes of the cluster at `address`."""
    places = f'state = "state"\nmodels = ["{site.bundle}"]\n[api]\nport = 0\n[broker]\nport = {find_free_port()}\n'
    engine = f'[engine]\npipeline = 2\nready_s = {READY_S}\n[ray]\naddress = "{address}"\nnodes = 2\n'
    (folder / "hub.toml").write_text(places + engine)
    words = [sys.executable, "-m", "cloud_hub", "--config", str(folder / "hub.toml")]
    return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_a_hub_without_its_cluster_ends_with_code_39_and_one_line(site, tmp_path):
    hub = run_hub(site, tmp_path, f"127.0.0.1:{find_free_port()}")
    said = hub.communicate(timeout=READY_S)[1]
    assert hub.returncode == ExitCode.CLUSTER
    assert re.fullmatch(r"[^\n]*: echo@1: generation 1: no Ray head at 127\.0\.0\.1:\d+\n", said)


def test_kill_9_of_the_hub_leaves_no_rank_on_any_node(site, engine, tmp_path):
    engine.stop()
    hub = run_hub(site, tmp_path, site.cluster.address)
    address = tmp_path / "state" / "api.json"
    wait_until(address.exists)
    ranks = find_ranks(site)
    assert len(ranks) >= 2
    hub.kill()
    hub.communicate()
    wait_until(lambda: not find_ranks(site))


def find_ranks(site: Site) -> list[int]:
    """Fork servers and ranks on the nodes."""
    found = []
    for pid in (pid for node in site.nodes for pid in site.cluster.list_processes(node)):
        with contextlib.suppress(OSError):
            if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def wait_until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.1)
