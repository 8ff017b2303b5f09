"""Driver of a Ray cluster: a process of its own that places the hosts of a rank group and watches that they live.

The only module that imports Ray. Ray ends a driver whose cluster is gone; here that ends this process, never the hub.
Rule: Ray places and watches; no step and no tensor goes through it. When the hub closes the socket this process ends,
and when it ends, however, Ray ends the job with all its actors.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cloud_hub.engine.sharded.cluster.host import RankHost
from cloud_hub.engine.sharded.cluster.messages import (
    MAX_LINE_BYTES,
    DriverFailed,
    DriverReport,
    HeadLost,
    HostFacts,
    HostLost,
    HostsPlaced,
    KillRanks,
    PlaceHosts,
    RankDied,
    RanksKilled,
    SpawnRanks,
    decode_order,
    encode_line,
)
from policies.serving.cluster import explain_shortage

_HEAD_EVERY_S = 1.0
_HEAD_TRIES = 3
_CONNECT_S = 2.0
_ROOM_S = 20.0  # until a generation before has given its room back, or Ray says that a node is gone
_NODE_LABEL = "ray.io/node-id"
_THREADS = 8  # of a host: one holds, one watches, the others are for the calls of generations


class PlacementFailedError(Exception):
    """The hosts cannot be placed: one line."""


class RemoteHost(Protocol):
    """`RankHost` as Ray shows it: every method has a `remote` that returns an awaitable reference."""

    prepare: Any
    spawn: Any
    watch: Any
    kill: Any
    hold: Any


class PlacedHosts(NamedTuple):
    """Hosts that run, what their nodes say of themselves, and Ray's ids of the nodes; all by stage."""

    hosts: list[RemoteHost]
    facts: tuple[HostFacts, ...]
    nodes: tuple[str, ...]


def place_hosts(order: PlaceHosts) -> PlacedHosts:
    """Connect to the cluster and start one prepared host a stage. PlacementFailedError if that cannot be done."""
    if not reach_head(order.address):
        raise PlacementFailedError(f"no Ray head at {order.address}")
    try:
        ray.init(address=order.address, namespace="skerry", log_to_driver=False, configure_logging=False)
        group = _reserve_stages(order)
        hosts = [_start_host(group, stage, order.resources) for stage in range(order.stages)]
        facts = ray.get([host.prepare.remote(order.bundle) for host in hosts], timeout=order.limit_s)
        nodes = placement_group_table(group)["bundles_to_node_id"]
    except GetTimeoutError:
        raise PlacementFailedError(f"the nodes were not ready in {order.limit_s:.0f} s") from None
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise PlacementFailedError(f"Ray at {order.address}: {_first_line(error)}") from None
    return PlacedHosts(hosts, tuple(facts), tuple(nodes[stage] for stage in range(order.stages)))


def _reserve_stages(order: PlaceHosts) -> PlacementGroup:
    """Reserve one bundle of resources a stage, spread over the nodes. PlacementFailedError if there is no room."""
    every: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    alive = {str(node["NodeID"]): dict(node["Resources"]) for node in every if node["Alive"]}
    if why := explain_shortage(list(alive.values()), order.stages, order.resources):
        raise PlacementFailedError(why)
    kept = {node: has for node, has in alive.items() if node not in order.avoid}
    if explain_shortage(list(kept.values()), order.stages, order.resources):
        kept = alive  # rather a node that may answer again than none
    where = {_NODE_LABEL: f"in({','.join(kept)})"}
    group: PlacementGroup = placement_group(
        [order.resources] * order.stages, strategy="SPREAD", bundle_label_selector=[where] * order.stages
    )
    if not group.wait(timeout_seconds=min(order.limit_s, _ROOM_S)):
        raise PlacementFailedError("the nodes have what the plan takes, but others use it")
    return group


def _start_host(group: PlacementGroup, stage: int, resources: dict[str, float]) -> RemoteHost:
    make: Any = ray.remote  # its types know no options of a class
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=stage)
    host: RemoteHost = (
        make(RankHost)
        .options(
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_THREADS,
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            scheduling_strategy=strategy,
        )
        .remote()
    )
    return host


def reach_head(address: str) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


class HostWatch:
    """Obeys the hub's orders for hosts that are placed, and reports what Ray says of them."""

    def __init__(self, hosts: list[RemoteHost], address: str, report: Callable[[DriverReport], None]) -> None:
        self._hosts = hosts
        self._address = address
        self._report = report
        self._lost: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Watch head and hosts from now on."""
        self._begin(self._watch_head())
        for stage, host in enumerate(self._hosts):
            self._begin(self._call(stage, host.hold.remote()))

    async def spawn_ranks(self, order: SpawnRanks) -> None:
        """Fork all ranks, and report the first of them that dies."""
        calls = [
            self._call(stage, host.spawn.remote(orders, order.limit_s))
            for stage, (host, orders) in enumerate(zip(self._hosts, order.orders, strict=True))
        ]
        await asyncio.gather(*calls)
        for stage in range(len(self._hosts)):
            self._begin(self._watch_ranks(order.generation, stage))

    async def kill_ranks(self, order: KillRanks) -> None:
        """Kill all ranks; each host that did so is reported."""
        await asyncio.gather(*(self._kill_stage(order.generation, stage) for stage in range(len(self._hosts))))

    async def _kill_stage(self, generation: int, stage: int) -> None:
        await self._call(stage, self._hosts[stage].kill.remote())
        if stage not in self._lost:
            self._report(RanksKilled(generation, stage))

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, stage: int, answer: Awaitable[Any]) -> Any:
        """Result of a call of a host; a host that Ray gave up is reported once, and gives None."""
        try:
            return await answer
        except (RayError, OSError, RuntimeError) as error:
            if stage not in self._lost:
                self._lost.add(stage)
                self._report(HostLost(stage, _first_line(error)))
        return None

    async def _watch_ranks(self, generation: int, stage: int) -> None:
        at = await self._call(stage, self._hosts[stage].watch.remote())
        if at is not None and at >= 0:
            self._report(RankDied(generation, stage, at))

    async def _watch_head(self) -> None:
        missed = 0
        while missed < _HEAD_TRIES:
            await asyncio.sleep(_HEAD_EVERY_S)
            missed = 0 if await asyncio.to_thread(reach_head, self._address) else missed + 1
        self._report(HeadLost())


def _first_line(error: BaseException) -> str:
    """The cause of an error of Ray in one line, without the traces that it carries."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join((lines or [type(error).__name__])[0].split())[:300]


async def serve_hub(link: socket.socket) -> None:
    """Place hosts as the hub's first order says, then obey until it closes the socket; then this process ends."""
    reader, writer = await asyncio.open_connection(sock=link, limit=MAX_LINE_BYTES)
    orders: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive() -> None:
        while line := await reader.readline():
            orders.put_nowait(line)
        os._exit(0)  # whatever waits for Ray; Ray ends the job

    def report(word: DriverReport) -> None:
        writer.write(encode_line(word))

    receiving = asyncio.create_task(receive())
    first = decode_order(await orders.get())
    assert isinstance(first, PlaceHosts)
    try:
        placed = await asyncio.to_thread(place_hosts, first)
    except PlacementFailedError as error:
        report(DriverFailed(str(error)))
        await receiving
        return
    watch = HostWatch(placed.hosts, first.address, report)
    watch.start()
    report(HostsPlaced(placed.facts, placed.nodes))
    while True:
        word = decode_order(await orders.get())
        if isinstance(word, SpawnRanks):
            await watch.spawn_ranks(word)
        elif isinstance(word, KillRanks):
            await watch.kill_ranks(word)


def main(descriptor: int) -> None:
    """Main function of the driver process; `descriptor`: of the socket to the hub."""
    asyncio.run(serve_hub(socket.socket(fileno=descriptor)))
