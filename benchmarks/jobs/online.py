"""Benchmark: what a backlog of 10,000 jobs costs those who wait for an answer.

`python -m benchmarks.jobs.online`. One hub process whose model takes 50 ms + 2 ms a sample in batches of 16, as an
accelerator would, at 40 % of its capacity in Poisson requests: with and without 10,000 jobs waiting, in turns. The
backlog is of another tenant, and is cancelled after each turn.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, find_median, find_percentile, format_number
from benchmarks.harness.rig import read_line, run_child
from benchmarks.hub.open_load import OpenLoad, RequestKind
from benchmarks.hub.slow_hub import CAPACITY_PER_S, VALUES, HubAddressLine

JOBS, ROUNDS, SPAN_S = 10_000, 3, 20.0
SHARE = 0.4
CALLERS = (RequestKind("online", 0, 4.0, 1.0),)


class Backlog:
    """Jobs of one tenant at a hub."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self._session, self._url = session, url
        self._headers = {"Authorization": f"Bearer {key}"}

    async def ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        async with self._session.request(method, self._url + path, data=body, headers=self._headers) as response:
            text = await response.text()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {text}")
            return dict(json.loads(text))

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[dict[str, Any]]:
        """Have 10,000 jobs wait for as long as the block lasts; yields what becomes of their batch."""
        tensor = {"name": "input", "shape": [1, VALUES], "datatype": "FP32", "data": [0.5] * VALUES}
        line = json.dumps({"model": "slow", "request": {"inputs": [tensor]}}).encode() + b"\n"
        batch = (await self.ask("POST", "/v1/batches", line * JOBS))["id"]
        progress: dict[str, Any] = {}
        yield progress
        progress |= await self.ask("GET", f"/v1/batches/{batch}")
        await self.ask("DELETE", f"/v1/batches/{batch}")
        await asyncio.sleep(1.0)


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    taken: dict[bool, list[float]] = {False: [], True: []}
    done, late, began = 0, list[float](), time.perf_counter()
    async with (
        run_child("benchmarks.hub.slow_hub", str(folder / "hub"), log=folder / "hub.log") as hub,
        aiohttp.ClientSession() as session,
    ):
        told = msgspec.json.decode(await read_line(hub), type=HubAddressLine)
        backlog, online = Backlog(session, told.url, told.keys[0]), told.keys[1:]
        await _ask(told.url, online, 3.0)  # the cost of a batch is learnt
        for number in range(ROUNDS):
            for beside in (False, True) if number % 2 else (True, False):
                load, answered = await _take_turn(told.url, online, backlog if beside else None)
                done += answered
                taken[beside] += [each.seconds for each in load.outcomes if each.status == 200]
                late += load.lags
    return [_judge(taken, done, late, time.perf_counter() - began)]


async def _take_turn(url: str, keys: list[str], backlog: Backlog | None) -> tuple[OpenLoad, int]:
    """Requests, with a backlog or without, and how many of its jobs were answered."""
    if backlog is None:
        return await _ask(url, keys, SPAN_S), 0
    async with backlog.waiting() as progress:
        load = await _ask(url, keys, SPAN_S)
    return load, int(progress["jobs"]["answered"])


async def _ask(url: str, keys: list[str], seconds: float) -> OpenLoad:
    load = OpenLoad(url, keys, CALLERS)
    await load.come(SHARE * CAPACITY_PER_S, seconds)
    load.close()
    if load.lost or any(each.status != 200 for each in load.outcomes):
        raise RuntimeError(f"{load.lost[:1]} {[each.status for each in load.outcomes if each.status != 200][:3]}")
    return load


def _judge(taken: dict[bool, list[float]], done: int, late: list[float], took_s: float) -> Figure:
    def describe(beside: bool) -> str:
        found = taken[beside]
        return (
            f"{'with' if beside else 'without'} them: p50 {find_median(found) * 1e3:.0f} ms, "
            f"p99 {find_percentile(found, 0.99) * 1e3:.0f} ms of {len(found)}"
        )

    ratio = find_percentile(taken[True], 0.99) / find_percentile(taken[False], 0.99)
    terms = (
        describe(True),
        describe(False),
        f"{format_number(done / ROUNDS / SPAN_S)} jobs/s were computed beside {SHARE * CAPACITY_PER_S:.0f} requests/s",
        f"the client was late by p99 {find_percentile(late, 0.99) * 1e3:.0f} ms; {took_s:.0f} s in all",
    )
    return Figure(f"online p99 with {JOBS:,} jobs waiting, over without", ratio, "x", 1.1, terms=terms)


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
