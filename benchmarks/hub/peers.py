"""Benchmark: the hub's web API beside LitServe, MLServer, BentoML and Ray Serve: same model and client.

`python -m benchmarks.hub.peers [--install] [NAME ...]`. The model costs 5 ms + 0.2 ms for each item of a batch of at
most 16 (`hub_model`), one batch at a time. Each peer lives in an environment of its own, made by `--install`.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.environments import BENTOML, LITSERVE, MLSERVER, RAY, PythonEnvironment
from benchmarks.harness.figures import Figure, find_median, find_percentile, format_number
from benchmarks.harness.rig import read_line, run_child
from benchmarks.hub.engines import CARD, IDEAL_ONE_S, IDEAL_PER_S, VALUES
from benchmarks.hub.load import HttpTarget, LoadResult, run_closed_loop
from simulations.processes import find_free_port

ROUNDS = 3
SECONDS = 5.0
CLIENTS = 32
START_S = 90.0
STARTS = 3  # of a peer that ends before it answers
HERE = Path(__file__).parents[1] / "peers"


class PeerServer(NamedTuple):
    """One other server: where it lives, where it is asked, and with what. Its program is `peers/NAME_server.py`."""

    environment: PythonEnvironment
    path: str
    body: Mapping[str, object]

    @property
    def name(self) -> str:
        return self.environment.name

    @property
    def python(self) -> Path:
        return self.environment.python


_ROW = [0.5] * VALUES
V2 = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, VALUES], "data": _ROW}]}
PEERS = (
    PeerServer(LITSERVE, "/predict", {"input": _ROW}),
    PeerServer(MLSERVER, "/v2/models/cost/infer", V2),
    PeerServer(BENTOML, "/predict", {"input": [_ROW]}),
    PeerServer(RAY, "/predict", {"input": _ROW}),
)


class PeerRounds(NamedTuple):
    """One server's rounds: with 32 clients, and with one."""

    many: list[LoadResult]
    one: list[LoadResult]

    @property
    def per_s(self) -> float:
        return median(seen.per_s for seen in self.many)

    @property
    def one_s(self) -> float:
        return median(find_median(seen.taken) for seen in self.one)

    def describe(self) -> str:
        tail = median(find_percentile(seen.taken, 0.99) for seen in self.many) * 1e3
        one_ms = format_number(self.one_s * 1e3)
        return f"{format_number(self.per_s)}/s (p99 {format_number(tail)} ms), one client p50 {one_ms} ms"


@asynccontextmanager
async def run_skerry(folder: Path) -> AsyncIterator[HttpTarget]:
    async with run_child("benchmarks.hub.server", str(folder), log=folder / "hub.log") as hub:
        yield HttpTarget(f"{await read_line(hub)}/v2/models/{CARD.ref.name}/infer", json.dumps(V2).encode())


@asynccontextmanager
async def run_peer(peer: PeerServer, folder: Path) -> AsyncIterator[HttpTarget]:
    """The peer, until it answers. It is ended with every process it started."""
    process, target = await _start_peer(peer, folder)
    try:
        yield target
    finally:
        await _end_peer(process)


async def _start_peer(peer: PeerServer, folder: Path) -> tuple[asyncio.subprocess.Process, HttpTarget]:
    """A peer that answers; one that ends at once (its port was taken meanwhile) is started again."""
    environment = {"PATH": f"{peer.python.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    for left in reversed(range(STARTS)):
        port = find_free_port()
        target = HttpTarget(f"http://127.0.0.1:{port}{peer.path}", json.dumps(peer.body).encode())
        with (folder / f"{peer.name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(str(peer.python), str(HERE / f"{peer.name}_server.py"), str(port)),
                cwd=HERE, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            await _wait_until_up(target, process)
        except (RuntimeError, TimeoutError):
            await _end_peer(process)
            if not left:
                raise
        else:
            return process, target
    raise AssertionError("a start returns or raises")


async def _end_peer(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 20)
    _kill_group(process.pid)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


async def _wait_until_up(target: HttpTarget, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
        while process.returncode is None and not await _is_up(session, target):
            await asyncio.sleep(0.2)
    if process.returncode is not None:
        raise RuntimeError(f"{target.url} never answered")


async def _is_up(session: aiohttp.ClientSession, target: HttpTarget) -> bool:
    asked: dict[str, Any] = {"data": target.body, "headers": {"Content-Type": "application/json"}}
    try:
        async with session.post(target.url, **asked) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def compare_servers(folder: Path, peers: tuple[PeerServer, ...]) -> dict[str, PeerRounds]:
    """Servers take turns, round by round; only one of them runs at a time."""
    found: dict[str, PeerRounds] = {name: PeerRounds([], []) for name in ("skerry", *(peer.name for peer in peers))}
    for _ in range(ROUNDS):
        async with run_skerry(folder) as target:
            await _measure_round(target, found["skerry"])
        for peer in peers:
            async with run_peer(peer, folder) as target:
                await _measure_round(target, found[peer.name])
            print(f"    {peer.name}: {found[peer.name].describe()}", file=sys.stderr, flush=True)
    return found


async def _measure_round(target: HttpTarget, into: PeerRounds) -> None:
    into.many.append(await run_closed_loop(target, CLIENTS, SECONDS))
    into.one.append(await run_closed_loop(target, 1, SECONDS / 2))


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    """The peers that are installed, all of them if `make bench-hub` made their environments."""
    peers = tuple(peer for peer in PEERS if peer.environment.is_installed())
    found = await compare_servers(folder, peers)
    ours, others = found["skerry"], {name: pair for name, pair in found.items() if name != "skerry"}
    best = max((pair.per_s for pair in others.values()), default=float("nan"))
    terms = tuple(f"{name}: {pair.describe()}" for name, pair in found.items())
    return [
        Figure("32 clients over HTTP, of the ideal", ours.per_s / IDEAL_PER_S * 100, "%", 90.0, more_is_better=True,
               terms=(f"ideal {format_number(IDEAL_PER_S)}/s and {format_number(IDEAL_ONE_S * 1e3)} ms", *terms)),
        Figure("32 clients over HTTP, over the best peer", ours.per_s / best, "x", 1.5, more_is_better=True),
        Figure("one client over HTTP, p50, over the ideal", ours.one_s / IDEAL_ONE_S, "x", 1.15),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hub.peers", description=__doc__)
    parser.add_argument("--install", action="store_true", help="make the peers' environments and end")
    asked = parser.parse_args()
    if not asked.install:
        return run_alone(run_benchmark)
    for peer in PEERS:
        if not peer.environment.is_installed():
            peer.environment.install()
    return 0


if __name__ == "__main__":
    sys.exit(main())
