"""Benchmark: what faults cost a region of three hubs under load: a hub killed, stopped, restarted; the database killed.

`python -m benchmarks.region.stories`. One region for all of them, one after another: three hub processes, four agents
with two callers each who never rest. Lost and doubled are judged by the devices' databases and the hubs', after each
story for everything so far. A story that fails is a figure that was not measured; the next one goes on.
"""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.harness.benchmark import measure_row, run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.region.stage import HUBS, LEASE_S, SHARDS, RegionStage, open_stage

REVOKED = 3
STOPPED_S, DOWN_S = 10.0, 3.0
_ENDED = "select device, epoch, seq, ended_ms from questions.effects"


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    figures: list[Figure] = []
    async with open_stage(folder, bundle) as stage:
        for name, story in STORIES.items():
            print(f"    {name} ...", file=sys.stderr, flush=True)
            figures += await measure_row(name, story(stage))
    return figures


async def measure_orders(stage: RegionStage) -> list[Figure]:
    """A device revoked, and one that is denied everything, at the first hub: until all others know."""
    one, others = stage.members[0], stage.members[1:]
    revoked, denied = [], []
    for number in range(REVOKED):
        agent = await one.add_agent(f"spare-{number}", "none", "tuf:none")

        async def have(wanted: str, device: str = agent.device) -> bool:
            lists = [(await each.call_admin("GET", "/v1/admin/devices"))["devices"] for each in others]
            return all(any(d["device"] == device and d["state"] == wanted for d in found) for found in lists)

        await stage.until(lambda: have("active"), "a device is not known to all")
        began = time.monotonic()
        notice = await one.call_admin("POST", "/v1/admin/deny-all", {"why": "a drill", "scope": agent.device})

        async def know(counter: int = notice["counter"]) -> bool:
            lists = [(await each.call_admin("GET", "/v1/admin/deny-all"))["notices"] for each in others]
            return all(any(each["counter"] == counter for each in found) for found in lists)

        await stage.until(know, "a notice is not known to all")
        denied.append(time.monotonic() - began)
        began = time.monotonic()
        await one.call_admin("POST", f"/v1/admin/devices/{agent.device}/state", {"state": "revoked"})
        await stage.until(lambda: have("revoked"), "a device is not revoked at all")
        revoked.append(time.monotonic() - began)
        one.agents.remove(agent)
    seen = {"revoked": revoked, "denied": denied}
    terms = tuple(f"{what}: {', '.join(map(format_number, found))} s" for what, found in seen.items())
    name = "device revoked, or denied all, at one hub: known to all"
    return [Figure(name, max(*revoked, *denied), "s", 1.5, terms=terms)]


async def measure_killed(stage: RegionStage) -> list[Figure]:
    """The last hub is killed: until the others say that they serve all shards."""
    victim, rest = stage.members[-1], range(HUBS - 1)
    async with stage.under_load() as answered:
        before = answered[0]
        await stage.hub(HUBS - 1).child.kill()
        taken = await stage.until(lambda: _serve(stage, *rest), "its shards are not served")
        meanwhile = answered[0] - before
    await victim.launch_hub()
    await stage.until_shared()
    name = f"hub killed under load, lease {LEASE_S:g} s"
    terms = (f"{meanwhile} answers to callers meanwhile",)
    return [Figure(f"{name}: its shards served again", taken, "s", LEASE_S + 1, terms=terms), _judge(name, stage)]


async def measure_stopped(stage: RegionStage) -> list[Figure]:
    """A hub is stopped for longer than its lease, then woken when nobody asks any more."""
    pid = stage.hub(1).child.pid
    try:
        async with stage.under_load():
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            await stage.until(lambda: _serve(stage, 0, 2), "its shards are not served")
        before = set(stage.query(_ENDED))
    finally:
        os.kill(pid, signal.SIGCONT)
    await stage.until_shared()
    changed = len(before ^ set(stage.query(_ENDED)))
    name = f"holder stopped for {STOPPED_S:g} s under load, then woken"
    return [Figure(f"{name}: rows written of shards it lost", changed, "rows", 0.0), _judge(name, stage)]


async def measure_database_killed(stage: RegionStage) -> list[Figure]:
    """PostgreSQL is killed and comes back: until every hub is ready, since it takes connections."""
    async with stage.under_load():
        await asyncio.to_thread(stage.server.kill)
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(stage.server.start)
        taken = await stage.until(stage.are_ready, "not every hub is ready")
        shared = await stage.until(lambda: _serve(stage, *range(HUBS)), "the shards are not served")
    await stage.until_shared()
    name = "database killed under load, back after 3 s"
    terms = (f"all shards served {format_number(shared)} s later",)
    return [Figure(f"{name}: every hub ready, since it accepts", taken, "s", 5.0, terms=terms), _judge(name, stage)]


async def measure_restarted(stage: RegionStage) -> list[Figure]:
    """Each hub drains, ends and starts again, one after another: as an upgrade does, from a release to itself."""
    refused: Counter[str] = Counter()
    for number in range(HUBS):
        refused.subtract(await _count_refused(stage, number))  # of the stories before
    async with stage.under_load() as answered:
        for number in reversed(range(HUBS)):
            refused.update(await _count_refused(stage, number))
            await stage.hub(number).child.stop()
            await stage.members[number].launch_hub()
            await stage.until_shared()
        told = answered[0]
    for number in range(HUBS):
        refused.update(await _count_refused(stage, number))
    del refused["draining"]
    name = "three hubs restarted one by one under load, same release"
    others = {reason: count for reason, count in refused.items() if count}
    terms = (
        f"{told} answers to callers meanwhile; refusals by reason: {others or 'none'}",
        "counted until each hub is told to stop, and from its start on; a release of another schema has no row yet",
    )
    return [
        _judge(name, stage),
        Figure(f"{name}: refusals other than `draining`", sum(others.values()), "refusals", 0.0, terms=terms),
    ]


async def _count_refused(stage: RegionStage, number: int) -> Counter[str]:
    """Refusals that a hub's process has counted since it began, by reason."""
    counters = (await stage.members[number].call_admin("GET", "/v1/admin/status"))["counters"]
    return Counter({name.removeprefix("refused."): n for name, n in counters.items() if name.startswith("refused.")})


async def _serve(stage: RegionStage, *numbers: int) -> bool:
    return await stage.count_served(*numbers) == SHARDS


def _judge(name: str, stage: RegionStage) -> Figure:
    report = stage.judge()
    terms = (f"of {report.accepted} questions so far: {report.lost} lost, {report.doubled} doubled",)
    return Figure(f"{name}: lost and doubled", report.lost + report.doubled, "questions", 0.0, terms=terms)


STORIES: dict[str, Callable[[RegionStage], Coroutine[Any, Any, list[Figure]]]] = {
    "device revoked, or denied all, at one hub": measure_orders,
    "hub killed under load": measure_killed,
    "holder stopped for 10 s under load, then woken": measure_stopped,
    "database killed under load": measure_database_killed,
    "three hubs restarted one by one under load": measure_restarted,
}


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
