"""Benchmark: seconds from `make demo` to the first escalated answer with nothing cached.

`python -m benchmarks.agent.first_answer`. The demo's own clock starts inside its process; what make and Python need
before that is added.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.harness.rig import ROOT

LIMIT_S = 60.0


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    """Cold: the reference model is trained on the way. Then once more with the model cached."""
    del bundle
    cold_s, cold = await _run_demo(folder)
    warm_s, warm = await _run_demo(folder)
    terms = (
        f"whole demo {format_number(cold['seconds'])} s; with the model cached: "
        f"first escalated answer after {format_number(warm_s)} s",
        f"lost {cold['lost'] + warm['lost']}, doubled {cold['doubled'] + warm['doubled']}",
    )
    return [Figure("make demo, model not cached, to the first escalated answer", cold_s, "s", LIMIT_S, terms=terms)]


async def _run_demo(folder: Path) -> tuple[float, dict[str, float]]:
    """(seconds to the first escalated answer, the demo's figures). The model cache lies in `folder`."""
    out = folder / "demo.json"
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *("make", "demo", f"ARGS=--json '{out}'"),
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    wall_s = time.monotonic() - began
    if process.returncode:
        raise RuntimeError(f"make demo failed: {errors.decode(errors='replace')[-500:]}")
    figures: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
    return wall_s - figures["seconds"] + figures["first_escalated_answer_s"], figures


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
