"""Benchmark: CPU seconds of the hub per request, for a picture of 150 KB as binary tensor and as JSON.

`python -m benchmarks.hub.binary`. One connection, one request at a time, a model that answers at once.
"""

import json
import sys
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, find_median, format_number
from benchmarks.harness.rig import read_line, run_child
from benchmarks.hub.engines import IMAGE
from benchmarks.hub.load import HttpTarget, run_closed_loop
from benchmarks.hub.sealed import read_cpu_s
from wire.http.oip import HEADER_LENGTH, encode_infer_request

ROUNDS, SECONDS = 3, 3.0


def build_bodies() -> dict[str, tuple[bytes, tuple[tuple[str, str], ...]]]:
    """By form: the body, and its headers."""
    picture = np.random.default_rng(1).integers(0, 256, (1, *IMAGE.input_shape), np.uint8)
    binary = encode_infer_request({"input": picture})
    tensor = {"name": "input", "datatype": "UINT8", "shape": list(picture.shape), "data": picture.ravel().tolist()}
    text = json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()
    length = ((HEADER_LENGTH, str(binary.header_length)), ("Content-Type", binary.content_type))
    return {"JSON": (text, ()), "binary": (binary.body, length)}


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    spent: dict[str, list[float]] = {"JSON": [], "binary": []}
    taken: dict[str, list[float]] = {"JSON": [], "binary": []}
    async with run_child("benchmarks.hub.server", str(folder), log=folder / "hub.log") as hub:
        url = f"{await read_line(hub)}/v2/models/{IMAGE.ref.name}/infer"
        for _ in range(ROUNDS):
            for form, (body, headers) in build_bodies().items():
                before = read_cpu_s(hub.pid)
                seen = await run_closed_loop(HttpTarget(url, body, headers), 1, SECONDS, warm_s=0.0)
                spent[form].append((read_cpu_s(hub.pid) - before) / len(seen.taken))
                taken[form].append(find_median(seen.taken))
    cost = {form: median(found) for form, found in spent.items()}
    terms = tuple(
        f"{form}: {len(body):,} bytes, {format_number(cost[form] * 1e3)} ms of CPU, "
        f"p50 {format_number(median(taken[form]) * 1e3)} ms"
        for form, (body, _) in build_bodies().items()
    )
    name = "CPU of a 150 KB picture as JSON, over binary"
    return [Figure(name, cost["JSON"] / cost["binary"], "x", 5.0, more_is_better=True, terms=terms)]


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
