"""Benchmark of a sealed escalation to a large model: a device's question and its answer, over the model's own time.

The model is a stack of wide layers that a sample passes as often as it takes to compute for `OWN_S` seconds, so that
the same row can be measured on any card and on a processor.
"""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.figures import Figure, find_median
from cloud_hub.engine.base import Engine
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.types import EngineOptions
from models.bundle.bundle import Bundle
from policies.serving.computing import ComputeOptions, DeviceChoice, Precision
from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import PATIENT_S, QUICK, ask, policy
from tests.live.doubles.stack import make_stack_version

LAYERS = 4  # of 64 MiB
OWN_S = 0.03  # of the model alone, at least
TIMES, WARM = 60, 10
ATTEMPTS = 4  # to find how often a sample passes the layers: one pass is mostly overhead on a quick card
READY_S = 600.0
PRECISIONS = {
    DeviceChoice.CPU: Precision.FLOAT32,
    DeviceChoice.CUDA: Precision.BFLOAT16,
}  # the same for hub and engine alone


def measure_escalation(folder: Path, device: DeviceChoice) -> Figure:
    """The median of escalations, one at a time, over the median of the engine alone in this process, in turns."""
    rounds, wanted = 1, 1
    for attempt in range(ATTEMPTS):
        rounds = wanted
        made = make_stack_version(folder / f"stack-{attempt}", LAYERS, rounds=rounds)
        with _open_alone(made, device) as engine:
            own_s = find_median([time_batch(engine) for _ in range(WARM)])
        if own_s >= OWN_S:
            break
        wanted = math.ceil(1.1 * rounds * OWN_S / own_s)
    with _open_alone(made, device) as engine:
        asked, alone = asyncio.run(_time_in_turns(folder, made, engine, device))
        setup = engine.setup
    asked_s, own_s = find_median(asked), find_median(alone)
    terms = (
        f"escalation p50 {asked_s * 1e3:.1f} ms by the agent's own API, the model alone {own_s * 1e3:.1f} ms, "
        f"{setup.precision} on {setup.device}, {LAYERS * rounds} layers of {LAYERS} x 64 MiB, one sample; "
        f"{TIMES} of each in turns",
    )
    name = f"{device.value}: p50 of a sealed escalation over the model's own time"
    return Figure(name, asked_s / own_s, "x", 1.3, terms=terms)


def measure_cpu_escalation(folder: Path) -> list[Figure]:
    """The same with the model on this machine's processor."""
    return [measure_escalation(folder, DeviceChoice.CPU)]


@contextmanager
def _open_alone(made: Bundle, device: DeviceChoice) -> Iterator[Engine]:
    compute = ComputeOptions(device, PRECISIONS[device])
    engine = open_engine(made.path, EngineOptions(max_batch=1, ready_s=READY_S, compute=compute))
    try:
        engine.warm()
        yield engine
    finally:
        engine.stop()


def time_batch(engine: Engine, samples: int = 1) -> float:
    """Seconds that an engine takes for a batch of its zero sample."""
    items = [engine.sample() for _ in range(samples)]
    began = time.perf_counter()
    engine.infer(items)
    return time.perf_counter() - began


async def _time_in_turns(
    folder: Path, made: Bundle, engine: Engine, device: DeviceChoice
) -> tuple[list[float], list[float]]:
    """Seconds of questions to an agent that asks the hub about every sample, and of the engine in this process."""
    told = {"ready_s": READY_S, "device": device.value, "precision": PRECISIONS[device].value}
    settings: dict[str, dict[str, Any]] = {"engine": told}
    asked, alone = list[float](), list[float]()
    async with ProcessHarness(folder / "stage") as stage:
        await stage.start_hub(made.path, settings, [policy(folder, budget_s=PATIENT_S)])
        agent = await stage.add_agent("a", "tuf:echo", "tuf:live", QUICK)
        await stage.start_agent(agent)
        x = np.full(10, 0.1, np.float32)
        for _ in range(WARM + TIMES):
            alone.append(time_batch(engine))
            began = time.perf_counter()
            answer = await ask(stage, agent, made, x)
            asked.append(time.perf_counter() - began)
            if answer["source"] != "hub":
                raise RuntimeError(f"asked the hub, got {answer}")
    return asked[WARM:], alone[WARM:]
