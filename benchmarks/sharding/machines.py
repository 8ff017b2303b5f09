"""Benchmark: a gang on the nodes of a Ray cluster beside the same gang forked here: steps, rebuilds, lost nodes.

`python -m benchmarks ray`. Three nodes, each with a bundle of its own, and a head without ranks, all on loopback of one
machine: what Ray, sockets and TLS add is seen, a network is not. Steps of both gangs alternate in one run.
"""

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.harness.figures import Figure, find_median
from benchmarks.sharding.nets import bundle_of, transformer
from benchmarks.sharding.run import BATCH, MS, draw_sample, open_started, time_alternating, time_loss
from cloud_hub.engine.sharded.engine import ShardedEngine, ShardedGraphRunner
from cloud_hub.engine.types import EngineOptions, RayOptions
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.doubles.gangs import Borrowed, gang_bundle
from tests.cloud_hub.doubles.site import Ear, Site, serving
from tests.live.doubles.ray_cluster import RayCluster

NODES, CPUS = 3, 2
LAYOUTS = {"pipeline 2, a node each": (1, 2), "tensor 2, on one node": (2, 1)}
LOSSES = 3
READY_S = 120.0
LOOK_S = 0.002
AHEAD = 8  # questions on the way
NOTICED_S, REBUILT_S = 6.0, 5.0


class Machines:
    """The cluster, and the hub's own copy of a bundle that each node has as well."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.bundle = bundle
        self._folder = folder
        self.cluster = RayCluster()
        self._made = 0
        self.nodes: list[int] = []

    def complete(self) -> None:
        """Start nodes until there are three."""
        while len(self.nodes) < NODES:
            self._made += 1
            own = shutil.copytree(self.bundle.parent, self._folder / f"node-{self._made}")
            self.nodes.append(self.cluster.add(Path(own), CPUS))

    def options(self, tensor: int, pipeline: int) -> EngineOptions:
        ray = RayOptions(self.cluster.address, nodes=NODES)
        return EngineOptions(
            BATCH, tensor=tensor, pipeline=pipeline, replicas=1, devices=CPUS, ready_s=READY_S, ray=ray
        )

    def find_node(self, gang: ShardedGraphRunner) -> int:
        """The node of the gang's last rank."""
        assert gang.rank_group is not None
        last = gang.rank_group.pids[-1]
        return next(node for node in self.nodes if last in self.cluster.list_processes(node))

    def lose(self, node: int, number: signal.Signals) -> None:
        """Kill a node, or stop all of it, as one that nobody reaches any more."""
        self.nodes.remove(node)
        if number is signal.SIGKILL:
            self.cluster.kill(node)
        else:
            for pid in self.cluster.list_processes(node):
                os.kill(pid, number)


@contextmanager
def open_machines(folder: Path, bundle: Path) -> Iterator[Machines]:
    machines = Machines(folder, bundle)
    with machines.cluster:
        machines.complete()
        yield machines


async def run_steps(folder: Path, _bundle: Path) -> list[Figure]:
    """Steps of a gang on nodes over those of a gang forked here, and how soon each is made anew."""
    found: list[Figure] = []
    with open_machines(folder, bundle_of(folder / "hub", transformer()).path) as machines:
        for name, (tensor, pipeline) in LAYOUTS.items():
            here = EngineOptions(BATCH, tensor=tensor, pipeline=pipeline, devices=2, replicas=1)
            with (
                open_started(machines.bundle, here) as local,
                open_started(machines.bundle, machines.options(tensor, pipeline)) as spread,
            ):
                found += _compare_gangs(name, local.gangs[0], spread.gangs[0])
    return found


def _compare_gangs(name: str, local: ShardedGraphRunner, spread: ShardedGraphRunner) -> list[Figure]:
    x = draw_sample()
    error = float(np.abs(local.run("tail", [x]) - spread.run("tail", [x])).max())
    theirs, ours = time_alternating(lambda x: local.run("tail", [x]), lambda x: spread.run("tail", [x]))
    rebuilt = {kind: [time_loss(gang, signal.SIGKILL)[1] for _ in range(LOSSES)] for kind, gang in
               (("here", local), ("ray", spread))}  # fmt: skip
    terms = (
        f"p50 {find_median(ours) * MS:.2f} ms, forked here {find_median(theirs) * MS:.2f} ms; batch {BATCH},"
        f" {len(ours)} steps each, alternating; largest difference {error:.1e}",
    )
    again = (f"{_list_seconds(rebuilt['ray'])}; forked here {_list_seconds(rebuilt['here'])}; with weights of 24 MiB",)
    return [
        Figure(f"Ray gang over local gang, {name}: step", find_median(ours) / find_median(theirs), "x", 1.35,
               terms=terms),
        Figure(f"Ray gang, {name}: a rank killed, until the next generation is warm", find_median(rebuilt["ray"]),
               "s", REBUILT_S, terms=again),
    ]  # fmt: skip


async def run_losses(folder: Path, _bundle: Path) -> list[Figure]:
    """Nodes that are lost while a device asks: noticed, answered again, lost and doubled."""
    figures: list[Figure] = []
    with open_machines(folder, gang_bundle(folder / "hub", "echo").path) as machines:
        for name, number in (("killed", signal.SIGKILL), ("cut off (stopped)", signal.SIGSTOP)):
            with open_started(machines.bundle, machines.options(1, 2)) as engine:
                figures += await _lose_nodes(name, number, machines, engine, folder)
    return figures


async def _lose_nodes(
    name: str, number: signal.Signals, machines: Machines, engine: ShardedEngine, folder: Path
) -> list[Figure]:
    device, noticed, answered = SimDevice(), list[float](), list[float]()
    place = folder / f"hub-{number.name}"
    place.mkdir()
    async with serving(place, device, engine=Borrowed(engine), max_batch=4) as site:
        load = _Load(site, await Ear.listen(device, site.broker))
        asking = asyncio.create_task(load.ask_on())
        for _ in range(LOSSES):
            await asyncio.to_thread(machines.complete)
            await load.wait_verdicts(4 * AHEAD)
            seen = await _time_loss(number, machines, engine.gangs[0], load)
            print(
                f"  node {name}: noticed after {seen[0]:.2f} s, answers after {seen[1]:.2f} s",
                file=sys.stderr,
                flush=True,
            )
            noticed.append(seen[0])
            answered.append(seen[1])
        load.stop()
        await asking
        lost, doubled = load.count_lost(), load.doubled()
    of = f"of {load.asked} questions"
    title = f"node {name} under load"
    return [
        Figure(f"{title}: noticed", max(noticed), "s", NOTICED_S, terms=(f"each time {_list_seconds(noticed)}",)),
        Figure(f"{title}: answers lost", lost, "answers", 0, terms=(of,)),
        Figure(f"{title}: answers doubled", doubled, "answers", 0, terms=(of,)),
        Figure(
            f"{title}: next answers, by a generation that was placed anew", find_median(answered), "s", 30.0,
            terms=(f"each time {_list_seconds(answered)}, of nodes that share two cores with everything else",),
        ),
    ]  # fmt: skip


async def _time_loss(
    number: signal.Signals, machines: Machines, gang: ShardedGraphRunner, load: "_Load"
) -> tuple[float, float]:
    """Seconds from the loss of a node until the group is given up, and until the next verdict."""
    while gang.rank_group is None:  # on a busy machine a rank may be silent for two seconds, and is lost as well
        await asyncio.sleep(LOOK_S)
    group, node = gang.rank_group, await asyncio.to_thread(machines.find_node, gang)
    began = time.monotonic()
    await asyncio.to_thread(machines.lose, node, number)
    while gang.rank_group is group:
        await asyncio.sleep(LOOK_S)
    noticed = time.monotonic() - began
    await load.wait_verdicts(1)
    return noticed, time.monotonic() - began


class _Load:
    """A device that always has some questions on the way, and counts what it gets."""

    def __init__(self, site: Site, ear: Ear) -> None:
        self._site, self._ear = site, ear
        self._stopping = False
        self.asked = 0
        self._answered: set[int] = set()

    def stop(self) -> None:
        self._stopping = True

    async def ask_on(self) -> None:
        """Ask until it is stopped, then until everything is answered."""
        while not self._stopping or self._open():
            if not self._stopping and self._open() < AHEAD:
                self.asked += 1
                self._ear.ask(self.asked)
            else:
                self._answered |= (await self._ear.verdicts(1, within_s=READY_S)).keys()

    async def wait_verdicts(self, more: int) -> None:
        """Wait for so many further verdicts."""
        wanted = len(self._answered) + more
        while len(self._answered) < wanted:
            await asyncio.sleep(LOOK_S)

    def count_lost(self) -> int:
        return self.asked - len(self._answered)

    def doubled(self) -> int:
        """Verdicts that the hub made beyond one for each question."""
        return int(self._site.hub.counters()["verdicts"]) - len(self._answered)

    def _open(self) -> int:
        return self.asked - len(self._answered)


def _list_seconds(seconds: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds) + " s"
