"""Benchmark: memory of a running agent with one small model and its API on, after real work.

`python -m benchmarks.agent.memory`. RSS and PSS come from /proc/PID/smaps_rollup of the real process, after HTTP
requests and escalations. Linux only.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.harness.rig import BenchmarkRig
from models.bundle.bundle import open_bundle
from models.forge.data.digits import load_heldout
from simulations.processes import AgentHandle

REQUESTS = 300
SETTLE_S = 2.0
LIMIT_MB = 95.0


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    async with BenchmarkRig(folder, bundle) as rig, rig.run_hub():
        agent = await rig.add_agent("device-0", threshold=0.95)
        await rig.stage.start_agent(agent)
        escalated = await _ask_answers(rig, agent)
        await asyncio.sleep(SETTLE_S)
        rss, pss = read_memory_mib(agent.child.pid)
        maps = Path(f"/proc/{agent.child.pid}/maps").read_text(encoding="utf-8")
    asked = f"{REQUESTS} requests over HTTP, {escalated} of them escalated"
    return [
        Figure(
            "agent RSS, one small model, API on", rss, "MB", LIMIT_MB, terms=(f"PSS {format_number(pss)} MB; {asked}",)
        ),
        Figure("shared objects of torch mapped by the agent", float(maps.count("libtorch")), "", 0.0),
    ]


async def _ask_answers(rig: BenchmarkRig, agent: AgentHandle) -> int:
    """Ask for `REQUESTS` answers over HTTP; how many carried an escalation id."""
    manifest = open_bundle(rig.bundle).manifest
    x, _ = load_heldout()
    url, escalated = f"{agent.url}/v2/models/{manifest.name}/infer", 0
    for number in range(REQUESTS):
        values = x[number % len(x)].ravel().tolist()
        tensor = {"name": manifest.input.name, "shape": [1, *x.shape[1:]], "datatype": "FP32", "data": values}
        async with rig.stage.session.post(url, json={"inputs": [tensor]}) as response:
            body: dict[str, Any] = await response.json()
            escalated += bool(body["parameters"]["escalation_id"])
    return escalated


def read_memory_mib(pid: int) -> tuple[float, float]:
    """(RSS, PSS) in units of 1024 kB, as the kernel counts them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.endswith("kB")}
    return found["Rss"], found["Pss"]


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
