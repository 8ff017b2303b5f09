"""Benchmark: memory of a running agent with one small model and its API on, after real work.

`python -m benchmarks.agent.memory`. RSS and PSS come from /proc/PID/smaps_rollup of the real process, after HTTP
requests and escalations, and again after 50,000 samples that are answered on the device. Linux only.
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
SAMPLES, AT_ONCE = 50_000, 32
SETTLE_S = 2.0
LIMIT_MB = 95.0
LATER_LIMIT_MB = 100.0


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    async with BenchmarkRig(folder, bundle) as rig, rig.run_hub():
        agent = await rig.add_agent("device-0", threshold=0.95)
        await rig.stage.start_agent(agent)
        caller = _Caller(rig, agent)
        sure = await caller.ask_answers()
        await asyncio.sleep(SETTLE_S)
        rss, pss = read_memory_mib(agent.child.pid)
        await caller.ask_many(sure)
        await asyncio.sleep(SETTLE_S)
        later, _ = read_memory_mib(agent.child.pid)
        maps = Path(f"/proc/{agent.child.pid}/maps").read_text(encoding="utf-8")
    asked = f"{REQUESTS} requests over HTTP, {REQUESTS - len(sure)} of them escalated"
    return [
        Figure(
            "agent RSS, one small model, API on", rss, "MB", LIMIT_MB, terms=(f"PSS {format_number(pss)} MB; {asked}",)
        ),
        Figure(
            f"agent RSS after {SAMPLES:,} samples", later, "MB", LATER_LIMIT_MB,
            terms=(f"none of them escalated, {AT_ONCE} a request",),
        ),
        Figure("shared objects of torch mapped by the agent", float(maps.count("libtorch")), "", 0.0),
    ]  # fmt: skip


class _Caller:
    """A caller of one agent's API, with the held-out samples of the demo."""

    def __init__(self, rig: BenchmarkRig, agent: AgentHandle) -> None:
        manifest = open_bundle(rig.bundle).manifest
        self._session, self._name = rig.stage.session, manifest.input.name
        self._url = f"{agent.url}/v2/models/{manifest.name}/infer"
        self._x, _ = load_heldout()

    async def ask_answers(self) -> list[int]:
        """Ask for `REQUESTS` answers; the samples whose answers carried no escalation id."""
        asked = [number % len(self._x) for number in range(REQUESTS)]
        return [number for number in asked if not (await self._infer([number]))["escalation_id"]]

    async def ask_many(self, sure: list[int]) -> None:
        """Ask for `SAMPLES` answers of these samples."""
        for first in range(0, SAMPLES, AT_ONCE):
            await self._infer([sure[(first + place) % len(sure)] for place in range(AT_ONCE)])

    async def _infer(self, numbers: list[int]) -> dict[str, Any]:
        """Ask for the answers of some samples in one request; its reply's parameters."""
        values, shape = self._x[numbers].ravel().tolist(), [len(numbers), *self._x.shape[1:]]
        tensor = {"name": self._name, "shape": shape, "datatype": "FP32", "data": values}
        async with self._session.post(self._url, json={"inputs": [tensor]}) as response:
            body: dict[str, Any] = await response.json()
            return dict(body["parameters"])


def read_memory_mib(pid: int) -> tuple[float, float]:
    """(RSS, PSS) in units of 1024 kB, as the kernel counts them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.endswith("kB")}
    return found["Rss"], found["Pss"]


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
