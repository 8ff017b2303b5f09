"""Latency and memory benchmark of edge graphs in ONNX Runtime on this machine, with the options a device uses.

Rule: graphs that are compared take turns in short blocks, so that other load on the machine affects all of them; a
ratio is the median over rounds of two blocks that followed each other. No torch and no onnx here: the child process
that loads a graph to measure its memory imports this file.
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from models.forge.data.types import ForgeError
from models.forge.export.targets import CPU
from models.forge.timing import LoadMeter
from models.verification.onnx_reader import read_onnx_model
from wire.process.files import PACKAGES_FOLDER

# "1": DequantizeLinear of a constant is computed once, when the graph is loaded
FOLD_OPTION = "session.disable_quant_qdq"
_WARM_UP = 10
_BLOCK_S = 4e-3
_MAX_BLOCK = 200
_MIN_ROUNDS, _MAX_ROUNDS = 9, 60
_STEADY = 0.006  # half a confidence interval of a median ratio below this: no more rounds are needed
_QUIET = 4
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from models.forge.export.benchmark import weigh; print(weigh(*sys.argv[2:]))"
)
_ACTIVE = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})

Values = npt.NDArray[Any]


class GraphSpeed(NamedTuple):
    """Median latency of a graph: `p50_us` microseconds of one run; `ratio` to the first graph that took part.

    `busy`: others had the processor meanwhile, so that the microseconds mean little; the ratio holds nevertheless.
    """

    p50_us: float
    ratio: float
    busy: bool = False


def open_session(graph: bytes, providers: Sequence[str] = (CPU,)) -> ort.InferenceSession:
    """ONNX Runtime session as a device makes it: one thread, no arena; weights stored as int8 become float at load."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = _QUIET
    if has_int8_weights_only(graph):
        options.add_session_config_entry(FOLD_OPTION, "1")
    return ort.InferenceSession(graph, options, providers=list(providers))


def has_int8_weights_only(graph: bytes) -> bool:
    """True if weights are stored in eight bits and no activation ever is: such a graph is folded when it is loaded."""
    found = read_onnx_model(graph).graph
    operators = {node.operator for node in found.nodes} if found else set()
    return "DequantizeLinear" in operators and not operators & _ACTIVE


def run_graph(graph: bytes, samples: Values) -> list[Values]:
    """All outputs of a graph for a whole array, in the graph's order."""
    opened = open_session(graph)
    found: list[Values] = opened.run(None, {opened.get_inputs()[0].name: samples})
    return found


def measure_p50_us(graph: bytes, sample: Values) -> float:
    """Median microseconds of one run on `sample` `[1, *shape]`."""
    return compare_graphs([graph], sample)[0].p50_us


def compare_graphs(
    graphs: Sequence[bytes], sample: Values, providers: Sequence[str] = (CPU,), most_s: float = 4.0
) -> list[GraphSpeed]:
    """Latency of each graph, in order, and its ratio to the first.

    Takes as many rounds as the ratios need to become stable, and stops after `most_s` seconds.
    """
    runs = [_TimedGraph(graph, sample, providers) for graph in graphs]
    blocks: list[list[float]] = []
    end = time.perf_counter() + most_s
    load = LoadMeter()
    while len(blocks) < _MIN_ROUNDS or (len(blocks) < _MAX_ROUNDS and not _is_steady(blocks)):
        if len(blocks) >= 3 and time.perf_counter() > end:
            break
        with load:
            blocks.append(_time_round(runs, len(blocks)))
    busy = load.busy and tuple(providers) == (CPU,)  # a processor that waits for another device is not busy
    columns = list(zip(*blocks, strict=True))
    return [
        GraphSpeed(statistics.median(column) * 1e6, statistics.median(_block_ratios(column, columns[0])), busy)
        for column in columns
    ]


class _TimedGraph:
    """One graph ready to be timed, in blocks long enough for the clock."""

    def __init__(self, graph: bytes, sample: Values, providers: Sequence[str]) -> None:
        self._session = open_session(graph, providers)
        self._feed = {self._session.get_inputs()[0].name: sample}
        alone = min(self._time_run() for _ in range(_WARM_UP))
        self._times = max(1, min(_MAX_BLOCK, int(_BLOCK_S / alone)))

    def time_block(self) -> float:
        return statistics.median(self._time_run() for _ in range(self._times))

    def _time_run(self) -> float:
        begun = time.perf_counter()
        self._session.run(None, self._feed)
        return time.perf_counter() - begun


def _time_round(runs: Sequence[_TimedGraph], number: int) -> list[float]:
    """Time each graph once; who is first rotates, for the first finds the caches of the last."""
    found = [0.0] * len(runs)
    for turn in range(len(runs)):
        index = (turn + number) % len(runs)
        found[index] = runs[index].time_block()
    return found


def _block_ratios(column: Sequence[float], first: Sequence[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(column, first, strict=True)]


def _is_steady(blocks: Sequence[Sequence[float]]) -> bool:
    columns = list(zip(*blocks, strict=True))
    return all(_median_uncertainty(_block_ratios(column, columns[0])) < _STEADY for column in columns[1:])


def _median_uncertainty(ratios: Sequence[float]) -> float:
    """Half the width of the median's 95 % interval, from the quartiles (McGill, Tukey & Larsen 1978), as a share."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    width: float = 1.57 * (high - low) / math.sqrt(len(ratios)) / middle
    return width


def measure_resident_bytes(graph: bytes, sample: Values) -> int:
    """Peak memory that loading the graph and running it once adds to a fresh process, in bytes.

    Returns 0 where that cannot be read. Raises ForgeError if the process fails.
    """
    with tempfile.TemporaryDirectory(prefix="skerry-forge-") as folder:
        model, given = Path(folder) / "graph.onnx", Path(folder) / "sample.npy"
        model.write_bytes(graph)
        np.save(given, sample, allow_pickle=False)
        command = [sys.executable, "-I", "-B", "-c", _BOOT, str(PACKAGES_FOLDER), str(model), str(given)]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
        child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if child.returncode:
        line = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise ForgeError(f"a fresh process cannot load the graph: {line}")
    return int(child.stdout.split()[-1])


def weigh(model: str, given: str) -> int:
    """Entry point of the child process: peak resident bytes of loading and running a graph once."""
    graph, sample = Path(model).read_bytes(), np.load(given, allow_pickle=False)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak (VmHWM)
    before = _read_status("VmRSS")
    opened = open_session(graph)
    opened.run(None, {opened.get_inputs()[0].name: sample})
    return max(0, _read_status("VmHWM") - before)


def _read_status(key: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)
