"""Static int8 for x86 (VNNI): QUInt8 activations, per-channel QInt8 weights; float stays where int8 costs accuracy.

Law: what is kept is decided by figures measured here and reported, never by belief. Timings go to the report, not to
the manifest: they differ from run to run.
"""

import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from models.forge.export import anonymous, serialise

_CALIBRATION_BATCH = 64
_KEPT_FLOAT = ("Clip", "Round", "Cast")  # what makes codes of numbers: a second rounding there would move them
_WARM_UP, _RUNS = 50, 600


class Candidate(NamedTuple):
    """One way to ship the edge graph. `p50_us`: microseconds per sample at batch 1, one thread, on this machine."""

    precision: str
    graph: bytes
    p50_us: float


def candidates(model: onnx.ModelProto, samples: npt.NDArray[np.float32]) -> tuple[Candidate, Candidate]:
    """(float32, int8) of one graph; `samples` `[n, *shape]` show the range of every activation."""
    exact, small = serialise(model), serialise(quantise(model, samples))
    return tuple(  # type: ignore[return-value]
        Candidate(precision, graph, p50_us(graph, samples[:1]))
        for precision, graph in (("float32", exact), ("int8", small))
    )


def quantise(model: onnx.ModelProto, samples: npt.NDArray[np.float32]) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory(prefix="skerry-forge-") as folder, _quiet():
        source, ready, small = (str(Path(folder) / name) for name in ("source", "ready", "small"))
        onnx.save(model, source)
        quant_pre_process(source, ready, skip_symbolic_shape=True)
        graph = onnx.load(ready).graph
        quantize_static(
            ready,
            small,
            _Reader(graph.input[0].name, samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[node.name for node in graph.node if node.op_type in _KEPT_FLOAT],
        )
        return anonymous(onnx.load(small))


def run(graph: bytes, samples: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """All outputs of a graph for a whole array, in the graph's order."""
    session = _session(graph)
    found: list[npt.NDArray[Any]] = session.run(None, {session.get_inputs()[0].name: samples})
    return found


def p50_us(graph: bytes, sample: npt.NDArray[Any]) -> float:
    """Median microseconds of one `InferenceSession.run`."""
    session = _session(graph)
    feed = {session.get_inputs()[0].name: sample}
    for _ in range(_WARM_UP):
        session.run(None, feed)
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        session.run(None, feed)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def _session(graph: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str, samples: npt.NDArray[np.float32]) -> None:
        self._feeds = iter(
            {name: samples[start : start + _CALIBRATION_BATCH]} for start in range(0, len(samples), _CALIBRATION_BATCH)
        )

    def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
        return next(self._feeds, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser advises pre-processing on the root logger, even after it was done."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
