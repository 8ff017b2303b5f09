"""Benchmark of a hub with room for one of two versions of 1 GiB: how long a question waits for the one that is away."""

import asyncio
import time
from pathlib import Path

import numpy as np

from benchmarks.harness.figures import Figure, find_median
from benchmarks.large.loading import back_memory, drop_pages, time_reading
from models.bundle.hub_part import open_hub_part
from simulations.processes import ProcessHarness
from tests.live.doubles.stack import LAYER_BYTES, make_stack_version

GIB = 1 << 30
LAYERS = GIB // LAYER_BYTES
VERSIONS = (1, 2)
ROUNDS = 3
READY_S = 600.0
SAMPLE = {"name": "scores", "shape": [1, 10], "datatype": "FP32", "data": np.full(10, 0.1, np.float32).tolist()}


def measure_on_demand(folder: Path) -> list[Figure]:
    """Time from a question for a version that made room until its answer, over reading its files once."""
    made = [make_stack_version(folder, LAYERS, version=version, sparse=False) for version in VERSIONS]
    parts = [open_hub_part(each.path, each.manifest) for each in made]
    files = [[part.path / name for name in part.manifest.weights] for part in parts]
    read_s = find_median([time_reading(each) for _ in range(ROUNDS) for each in files])
    cold_s, warm_s = asyncio.run(_ask_in_turns(folder / "stage", [each.path for each in made], files))
    spent = find_median(cold_s)
    terms = (
        f"{spent:.2f} s over {read_s:.2f} s for weights of {parts[0].manifest.weight_bytes / GIB:.2f} GiB, the longest "
        f"{max(cold_s):.2f} s; {len(cold_s)} questions over the web, page cache dropped before each; the next question "
        f"took {find_median(warm_s) * 1e3:.0f} ms; loaded_gib = 1.5, max_batch = 1",
    )
    return [
        Figure("version that is away, 1 GiB: answer over reading its file once", spent / read_s, "x", 2.0, terms=terms)
    ]


async def _ask_in_turns(
    stage_folder: Path, paths: list[Path], files: list[list[Path]]
) -> tuple[list[float], list[float]]:
    """Seconds of questions for versions that have to be loaded first, and of those right after them."""
    cold, warm = list[float](), list[float]()
    async with ProcessHarness(stage_folder) as stage:
        engine = {"ready_s": READY_S, "loaded_gib": 1.5, "precision": "float32"}
        await stage.start_hub(paths, {"engine": engine, "hub": {"max_batch": 1}})
        await _time_question(stage, VERSIONS[-1])  # the newest is the one that is loaded
        for version, own in [*zip(VERSIONS, files, strict=True)] * ROUNDS:
            drop_pages(own)
            back_memory(GIB)
            cold.append(await _time_question(stage, version))
            warm.append(await _time_question(stage, version))
    return cold, warm


async def _time_question(stage: ProcessHarness, version: int) -> float:
    began = time.perf_counter()
    answer = await stage.call_admin("POST", f"/v2/models/echo/versions/{version}/infer", {"inputs": [SAMPLE]})
    if answer["model_version"] != str(version):
        raise RuntimeError(f"asked version {version}, got {answer}")
    return time.perf_counter() - began
