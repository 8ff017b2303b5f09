"""Benchmark of a sealed escalation to a large model: a device's question and its answer, over the model's own time.

The model is a stack of wide layers that a sample passes as often as it takes to compute for `OWN_S` seconds, so that
the same row can be measured on any card and on a processor.
"""

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.figures import Figure, find_median
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.types import EngineOptions
from models.bundle.bundle import Bundle
from policies.serving.computing import ComputeOptions, DeviceChoice
from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import PATIENT_S, QUICK, ask, policy
from tests.live.doubles.stack import make_stack_version

LAYERS = 4  # of 64 MiB
OWN_S = 0.03  # of the model alone, at least
TIMES, WARM = 60, 10
READY_S = 600.0


def measure_escalation(folder: Path, device: DeviceChoice) -> Figure:
    """The median of escalations, one at a time, over the median of the engine alone in this process."""
    once_s, _ = _time_alone(make_stack_version(folder / "once", LAYERS), device)
    rounds = max(1, math.ceil(OWN_S / once_s))
    made = make_stack_version(folder / "stack", LAYERS, rounds=rounds)
    own_s, setup = _time_alone(made, device)
    asked_s = asyncio.run(_time_escalations(folder, made, device))
    terms = (
        f"escalation p50 {asked_s * 1e3:.1f} ms by the agent's own API, the model alone {own_s * 1e3:.1f} ms, {setup}, "
        f"{LAYERS * rounds} layers of {LAYERS} x 64 MiB, one sample; {TIMES} of each",
    )
    name = f"{device.value}: p50 of a sealed escalation over the model's own time"
    return Figure(name, asked_s / own_s, "x", 1.3, terms=terms)


def measure_cpu_escalation(folder: Path) -> list[Figure]:
    """The same with the model on this machine's processor."""
    return [measure_escalation(folder, DeviceChoice.CPU)]


def _time_alone(made: Bundle, device: DeviceChoice) -> tuple[float, str]:
    """Seconds of one sample in an engine of this process, and what it computes on."""
    engine = open_engine(made.path, EngineOptions(max_batch=1, ready_s=READY_S, compute=ComputeOptions(device)))
    try:
        engine.warm()
        taken = []
        for _ in range(WARM + TIMES):
            began = time.perf_counter()
            engine.infer([engine.sample()])
            taken.append(time.perf_counter() - began)
        return find_median(taken[WARM:]), f"{engine.setup.precision} on {engine.setup.device}"
    finally:
        engine.stop()


async def _time_escalations(folder: Path, made: Bundle, device: DeviceChoice) -> float:
    """Seconds of a question to an agent that asks the hub about every sample."""
    settings: dict[str, dict[str, Any]] = {"engine": {"ready_s": READY_S, "device": device.value}}
    async with ProcessHarness(folder / "stage") as stage:
        await stage.start_hub(made.path, settings, [policy(folder, budget_s=PATIENT_S)])
        agent = await stage.add_agent("a", "tuf:echo", "tuf:live", QUICK)
        await stage.start_agent(agent)
        x, taken = np.full(10, 0.1, np.float32), list[float]()
        for _ in range(WARM + TIMES):
            began = time.perf_counter()
            answer = await ask(stage, agent, made, x)
            taken.append(time.perf_counter() - began)
            if answer["source"] != "hub":
                raise RuntimeError(f"asked the hub, got {answer}")
    return find_median(taken[WARM:])
