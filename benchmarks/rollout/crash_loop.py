"""Benchmark: a new model that crashes the agent; number of crashes, and seconds until the old model answers.

`python -m benchmarks.rollout.crash_loop`. A real agent process, a bundle that passes lint, self-test and golden set, a
division inside ONNX Runtime that the processor answers with a signal, and no hub, no broker, nobody.
"""

import asyncio
import sys
from pathlib import Path
from statistics import median

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from edge_agent.update.recovery import InstallTable
from tests.edge_agent.doubles.deadly import assign_deadly, crash_once, measure_rollback
from tests.edge_agent.doubles.updates_bench import open_bench
from wire.protocol.rollout import InstallState

TIMES = 5
LIMIT_STARTS, LIMIT_S = 3, 2.0


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    crashes, spent_s, listening_s = [], [], []
    for number in range(TIMES):
        (place := folder / f"device-{number}").mkdir()
        found = await asyncio.to_thread(_crash_once, place)
        crashes.append(found[0])
        spent_s.append(found[1])
        listening_s.append(found[2])
    worst = f"worst {max(spent_s):.2f} s of {TIMES}; until it listens: {median(listening_s):.2f} s"
    return [
        Figure("crash loop without a hub: processes that ended", max(crashes), "starts", LIMIT_STARTS),
        Figure(
            "crash loop: model before answers, from the start after the last",
            max(spent_s),
            "s",
            LIMIT_S,
            terms=(worst,),
        ),
    ]


def _crash_once(folder: Path) -> tuple[int, float, float]:
    """(processes that crashed, seconds until the model before answers, of these until anybody listens)."""
    with open_bench(folder) as device:
        config = assign_deadly(device, 2)
        crashes = 0
        while True:
            crash_once(config)
            crashes += 1
            if InstallTable(device.store).read_row().attempts <= 1:
                break
        spent_s, listening_s = measure_rollback(config)
        if InstallTable(device.store).read_row().state not in (InstallState.IDLE, InstallState.ROLLED_BACK):
            raise RuntimeError("it has not come back")
        return crashes, spent_s, listening_s


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
