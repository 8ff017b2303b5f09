"""The device's runner: ONNX Runtime on a verified bundle.

Law: the session is made from the bundle's hashed bytes and nothing else; per answer it adds a few microseconds to
`InferenceSession.run` (input check, softmax with temperature, the answer's struct).
"""

import os
from math import exp
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from models.bundle import Bundle
from models.codec import NUMPY_DTYPES
from models.manifest import EDGE_FILE, BundleError, Kind
from models.runner import Inference, Sample, check_sample, check_samples
from wire.messages import Prediction

LOGITS = "logits"  # name of the early exit's output; every feature's output bears the feature's name
_QUIET = 4  # fatal only: every failure arrives as an exception and becomes one line of ours
# ONNX Runtime's errors share no base class but Exception
ORT_ERRORS = (
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NoModel,
    ort_state.NoSuchFile,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
    RuntimeError,
    ValueError,
)


class OnnxRunner:
    """Runs the edge graph on the CPU. BundleError if the graph does not load or does not fit its manifest."""

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        self.manifest = bundle.manifest
        if self.manifest.kind is not Kind.CLASSIFIER:
            raise BundleError(f"{self.manifest.model}: a {self.manifest.kind} has no confidence to gate on")
        self._session = _session(bundle, threads)
        self._outputs = [LOGITS, *(feature.name for feature in self.manifest.features)]
        self._names = self._outputs[1:]
        self._feed_name = self.manifest.input.name
        self._model = self.manifest.model
        self._cold = 1.0 / self.manifest.temperature
        _check_graph(self._session, bundle)

    def infer(self, batch: Sample) -> list[Inference]:
        check_samples(batch, self.manifest.input)
        logits, *features = self._session.run(self._outputs, {self._feed_name: batch})
        rows = logits.tolist()
        return [self._inference(row, [codes[i] for codes in features]) for i, row in enumerate(rows)]

    def infer_one(self, sample: Sample) -> Inference:
        check_sample(sample, self.manifest.input)
        logits, *features = self._session.run(self._outputs, {self._feed_name: sample[None]})
        return self._inference(logits[0].tolist(), [codes[0] for codes in features])

    def close(self) -> None:
        del self._session

    def _inference(self, logits: list[float], features: list[Sample]) -> Inference:
        # pure Python: for a few labels it is 2 microseconds faster than numpy
        peak = max(logits)
        cold = self._cold
        weights = [exp((logit - peak) * cold) for logit in logits]
        share = 1.0 / sum(weights)
        scores = tuple([weight * share for weight in weights])
        prediction = Prediction(logits.index(peak), share, scores, self._model)
        return Inference(prediction, dict(zip(self._names, features, strict=True)))


def _session(bundle: Bundle, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = _QUIET
    # a device that waits for samples must not burn a core while it waits
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # "external data" would be read from the working directory, unverified; below a file that is no folder lies nothing
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    # else bytes 4..8 of the file could choose a format that no lint has read
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return ort.InferenceSession(bundle.read(EDGE_FILE), options, providers=["CPUExecutionProvider"])
    except ORT_ERRORS as error:
        line = str(error).splitlines()[0]
        raise BundleError(f"{bundle.manifest.model}: ONNX Runtime cannot load {EDGE_FILE}: {line}") from None


def _check_graph(session: ort.InferenceSession, bundle: Bundle) -> None:
    """One run on zeros tells more than declared shapes: every output must be there, in type and shape."""
    manifest = bundle.manifest
    inputs = [node.name for node in session.get_inputs()]
    outputs = {node.name for node in session.get_outputs()}
    wanted: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    wanted = {LOGITS: (np.dtype("float32"), (len(manifest.labels),))}
    wanted |= {f.name: (NUMPY_DTYPES[f.dtype], f.shape) for f in manifest.features}
    if inputs != [manifest.input.name] or not wanted.keys() <= outputs:
        raise BundleError(f"{manifest.model}: {EDGE_FILE} maps {inputs} to {sorted(outputs)}, not as its manifest says")
    sample = np.full((2, *manifest.input.shape), manifest.input.low, NUMPY_DTYPES[manifest.input.dtype])
    try:
        found = session.run(list(wanted), {manifest.input.name: sample})
    except ORT_ERRORS as error:
        raise BundleError(f"{manifest.model}: {EDGE_FILE} does not run: {str(error).splitlines()[0]}") from None
    for (name, (dtype, shape)), value in zip(wanted.items(), found, strict=True):
        if value.dtype != dtype or value.shape != (2, *shape):
            raise BundleError(
                f"{manifest.model}: output {name} is {value.dtype} {list(value.shape[1:])}, not {list(shape)}"
            )
