"""Benchmark: a hub that is told under load that its machine goes: everything is answered or owed elsewhere within 15 s.

`python -m benchmarks.jobs.notice`. Three hub processes over one PostgreSQL and one broker; four agents whose callers
never rest, web requests of its own, and a file of jobs. The last hub is told by SIGTERM, with `drain_s = 15`: measured
is when its shards are served by the others, when its process has ended, and what became of everything.
"""

import asyncio
import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.region.stage import HUBS, SHARDS, RegionStage, open_stage

NOTICE_S = 15.0
PATIENCE_S = 60.0
JOBS, CALLERS = 2000, 4
_ENDED = "select state, count(*) from questions.jobs group by state"


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    async with open_stage(folder, bundle, NOTICE_S) as stage:
        return await measure_notice(stage)


async def measure_notice(stage: RegionStage) -> list[Figure]:
    """Tell the last hub, under load of all kinds."""
    victim, rest = HUBS - 1, range(HUBS - 1)
    answers: list[int] = []
    async with stage.under_load():
        await _hand_over(stage, victim)
        callers = [asyncio.create_task(_call(stage, victim, answers)) for _ in range(CALLERS)]
        await asyncio.sleep(1.0)
        began = time.monotonic()
        process = stage.hub(victim).child.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        leaving = asyncio.create_task(process.wait())
        served = await stage.until(lambda: _serve(stage, *rest), "its shards are not served")
        await asyncio.wait_for(leaving, PATIENCE_S)
        ended = time.monotonic() - began
        await asyncio.gather(*callers)
        await stage.until(lambda: _are_ended(stage), "jobs stay open", 0.2)
    return [*_judge(stage, (served, ended), answers)]


async def _hand_over(stage: RegionStage, number: int) -> None:
    """Hand a file of jobs over to a hub."""
    line = json.dumps({"model": stage.bundle.manifest.name, "request": _make_request(stage)}).encode() + b"\n"
    hub = stage.hub(number)
    headers = {"Authorization": f"Bearer {hub.token}"}
    async with stage.members[0].session.post(f"{hub.url}/v1/batches", data=line * JOBS, headers=headers) as response:
        if response.status != 202:
            raise RuntimeError(await response.text())


async def _call(stage: RegionStage, number: int, answers: list[int]) -> None:
    """Ask the hub itself, until it refuses as one that stops; the status of each answer, 0 of a broken one."""
    hub, asked = stage.hub(number), _make_request(stage)
    url = f"{hub.url}/v2/models/{stage.bundle.manifest.name}/infer"
    headers = {"Authorization": f"Bearer {hub.token}"}
    status = 200
    while status == 200:
        status = await _ask_once(stage.members[0].session, url, asked, headers)
        answers += [status] if status >= 0 else []


async def _ask_once(session: aiohttp.ClientSession, url: str, asked: dict[str, Any], headers: dict[str, str]) -> int:
    """Status of an answer; 0 if it broke off, -1 if nobody listens any more."""
    try:
        async with session.post(url, json=asked, headers=headers) as response:
            await response.read()
            return response.status
    except aiohttp.ClientConnectorError:
        return -1
    except aiohttp.ClientError:
        return 0


def _make_request(stage: RegionStage) -> dict[str, Any]:
    spec = stage.bundle.manifest.input
    values = [0.0] * math.prod(spec.shape)
    return {"inputs": [{"name": spec.name, "shape": [1, *spec.shape], "datatype": "FP32", "data": values}]}


async def _serve(stage: RegionStage, *numbers: int) -> bool:
    return await stage.count_served(*numbers) == SHARDS


async def _are_ended(stage: RegionStage) -> bool:
    return not any(state in ("accepted", "queued", "running") for state, _ in stage.query(_ENDED))


def _judge(stage: RegionStage, times: tuple[float, float], answers: list[int]) -> list[Figure]:
    (served, ended), report = times, stage.judge()
    states = dict(stage.query(_ENDED))
    lost = report.lost + report.doubled + JOBS - int(states.get("answered", 0)) + answers.count(0)
    terms = (
        f"its shards served elsewhere after {format_number(served)} s, its process gone after {format_number(ended)} s",
        f"questions of devices: {report.accepted}, {report.lost} lost, {report.doubled} doubled",
        f"jobs: {states}; web requests at it: {answers.count(200)} answered, {answers.count(503)} told to ask again, "
        f"{answers.count(0)} broken off",
    )
    name = "notice under load: everything answered or owed elsewhere"
    return [
        Figure(name, max(served, ended), "s", NOTICE_S, terms=terms),
        Figure("notice under load: lost, doubled or broken off", lost, "", 0.0),
    ]


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
