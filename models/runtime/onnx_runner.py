"""ONNX Runtime runner: the device's implementation of `Runner` on a verified bundle.

Rule: the session is made from the bundle's hashed bytes and nothing else; per answer it adds a few microseconds to
`InferenceSession.run` (input check, softmax with temperature, the answer's struct). Where the execution provider that
the bundle was made for is not available, the CPU provider runs it, and `notes` says so.
"""

import os
from collections.abc import Callable, Sequence
from math import exp, isfinite, nan
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from models.bundle.bundle import Bundle
from models.bundle.manifest import EDGE_FILE, BundleError, Manifest, ModelKind, Precision
from models.runtime.feature_codec import NUMPY_DTYPES, CodecError, open_codec
from models.runtime.novelty import is_novelty_usual
from models.runtime.runner import Inference, RunnerError, Sample, check_sample, check_samples
from wire.protocol.messages import Prediction

LOGITS = "logits"  # name of the early exit's output; every feature's output bears the feature's name
CONFIDENCE, NOVELTY = "confidence", "novelty"  # optional outputs, one number a sample
CPU = "CPUExecutionProvider"
_VALUE_AND_SPREAD = 2  # a regressor's logits: the value, and the logarithm of its error's scale
_MAX_SPREAD = 60.0  # bound on the logarithm of the scale: beyond it the confidence is 0 or 1
_LOG_FATAL_ONLY = 4  # fatal only: every failure arrives as an exception and becomes one line of ours
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


class ManifestMismatchError(BundleError):
    """A graph that loads and is not what its own manifest says: other inputs or outputs, types or shapes."""


class OnnxRunner:
    """Runner of the edge graph in ONNX Runtime.

    BundleError if the graph does not load; ManifestMismatchError if it differs from its manifest.

    `threads`: of one operator. `providers`: execution providers to try, the preferred one first; None: those that the
    bundle was made for. `cpu_only`: none is tried. `notes`: one line for each provider that was to be used and is not,
    with the reason.
    """

    def __init__(
        self, bundle: Bundle, threads: int = 1, providers: Sequence[str] | None = None, *, cpu_only: bool = False
    ) -> None:
        manifest = self.manifest = bundle.manifest
        try:
            self.codec = open_codec(manifest, bundle.read_file)
        except CodecError as error:
            raise BundleError(f"{manifest.model}: {error}") from None
        self._session, self.notes = _create_session(
            bundle, threads, () if cpu_only else bundle.manifest.target.providers if providers is None else providers
        )
        self._run = _find_run(self._session)
        self._names = [feature.name for feature in manifest.features]
        self._feed_name = manifest.input.name
        self._model = manifest.model
        self._cold = 1.0 / manifest.temperature
        self._tolerance = manifest.gate.tolerance
        self._predict = self._predict_value if manifest.kind is ModelKind.REGRESSOR else self._predict_class
        self._outputs = list(_expected_outputs(manifest))  # logits, features, then what is optional
        self._gate_at = self._outputs.index(CONFIDENCE) - 1 if manifest.gate.confidence_output else 0
        self._domain = manifest.gate.domain
        self._novelty_at = self._outputs.index(NOVELTY) - 1 if manifest.gate.novelty_output else 0
        _check_graph(self._session, manifest)

    def infer(self, batch: Sample) -> list[Inference]:
        """Run a batch `[n, *shape]`. SampleError if a sample is unfit; RunnerError if ONNX Runtime fails."""
        check_samples(batch, self.manifest.input)
        logits, *rest = self._run_session(batch)
        return [self._build_inference(row, [each[i] for each in rest]) for i, row in enumerate(logits.tolist())]

    def infer_one(self, sample: Sample) -> Inference:
        """Run one sample `[*shape]`. Errors as `infer`."""
        check_sample(sample, self.manifest.input)
        logits, *rest = self._run_session(sample[None])
        return self._build_inference(logits[0].tolist(), [each[0] for each in rest])

    def close(self) -> None:
        """Free the session; the runner cannot be used afterwards."""
        del self._session, self._run

    def _run_session(self, batch: Sample) -> list[Sample]:
        try:
            return self._run(self._outputs, {self._feed_name: batch}, None)
        except ORT_ERRORS as error:
            raise RunnerError(f"{self._model}: {str(error).splitlines()[0]}"[:300]) from None

    def _build_inference(self, logits: list[float], rest: list[Sample]) -> Inference:
        """Build the result of one sample.

        `rest`: the features' codes, then a confidence and a novelty if the graph gives them.
        """
        gate = float(rest[self._gate_at]) if self._gate_at else -1.0
        novelty = float(rest[self._novelty_at]) if self._novelty_at else -1.0
        found = self._predict(logits, gate, is_novelty_usual(novelty, self._domain))
        return Inference(found, dict(zip(self._names, rest, strict=False)), novelty)

    def _predict_class(self, logits: list[float], gate: float, in_domain: bool | None) -> Prediction:
        """Turn logits into probabilities (softmax with the manifest's temperature) and the largest one's label."""
        # pure Python: for a few labels it is 2 microseconds faster than numpy
        peak = max(logits)
        cold = self._cold
        weights = [exp((logit - peak) * cold) for logit in logits]
        share = 1.0 / sum(weights)
        scores = tuple([weight * share for weight in weights])
        return Prediction(logits.index(peak), gate if self._gate_at else share, scores, self._model, in_domain)

    def _predict_value(self, logits: list[float], gate: float, in_domain: bool | None) -> Prediction:
        """Turn a regressor's logits (value, logarithm of the error's scale) into a value and its confidence.

        P(|error| <= tolerance) of a Laplace error of scale b is 1 - exp(-tolerance / b).
        """
        value, spread = logits
        if not self._gate_at:
            gate = 1.0 - exp(-self._tolerance * exp(-min(max(spread, -_MAX_SPREAD), _MAX_SPREAD)))
        return Prediction(-1, gate if isfinite(value) else nan, (value,), self._model, in_domain)


def _expected_outputs(manifest: Manifest) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return every output that the graph must have: name to (element type, shape of one sample), logits first."""
    numbers = np.dtype("float32")
    wide = _VALUE_AND_SPREAD if manifest.kind is ModelKind.REGRESSOR else len(manifest.labels)
    wanted: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {LOGITS: (numbers, (wide,))}
    wanted |= {f.name: (NUMPY_DTYPES[f.dtype], f.shape) for f in manifest.features}
    given = {CONFIDENCE: manifest.gate.confidence_output, NOVELTY: manifest.gate.novelty_output}
    return wanted | {name: (numbers, ()) for name, there in given.items() if there}


def _create_session(
    bundle: Bundle, threads: int, providers: Sequence[str]
) -> tuple[ort.InferenceSession, tuple[str, ...]]:
    """Create the session on the first providers that can be used, and return it with a note for each other one.

    Providers after the CPU's in `providers` are not asked for: it runs every operator of ours.
    """
    wished = [*dict.fromkeys(providers)]
    wished = wished[: wished.index(CPU)] if CPU in wished else wished
    there = ort.get_available_providers()
    offered = [name for name in wished if name in there]
    reasons = {name: f"this onnxruntime has {', '.join(there)}" for name in wished if name not in there}
    while True:
        try:
            session = _load_session(bundle, threads, [*offered, CPU])
            break
        except BundleError as error:
            if not offered:
                raise
            reasons[offered.pop(0)] = str(error)
    running = session.get_providers()
    return session, tuple(
        f"{name} is not used, {running[0]} is: {reasons.get(name, 'it started and left the session')}"
        for name in wished
        if name not in running
    )


def _find_run(session: ort.InferenceSession) -> Callable[[list[str], dict[str, Sample], None], list[Sample]]:
    """The function that runs a session: on the CPU alone that of the binding, without `InferenceSession.run` around it.

    What that adds in each run is 2 to 3 microseconds: it looks for WebGPU and for inputs that are missing, which
    `_check_graph` has tried, and knows other providers to fall back to.
    """
    binding = getattr(session, "_sess", None)
    alone = binding is not None and session.get_providers() == [CPU]
    return binding.run if alone else session.run  # type: ignore[no-any-return, union-attr]


def _load_session(bundle: Bundle, threads: int, providers: list[str]) -> ort.InferenceSession:
    options = session_options(threads, bundle.manifest.target.precision)
    try:
        # Its own fallback prints on standard output, where answers may go, and says the reason nowhere else.
        session = ort.InferenceSession(bundle.read_file(EDGE_FILE), options, providers=providers, enable_fallback=0)
    except ORT_ERRORS as error:
        line = str(error).splitlines()[0]
        raise BundleError(f"{bundle.manifest.model}: ONNX Runtime cannot load {EDGE_FILE}: {line}") from None
    session.enable_fallback()
    return session


def session_options(threads: int, precision: Precision = Precision.FLOAT32) -> ort.SessionOptions:
    """Create session options for any graph of ours: nothing is read but the bytes given, and idle threads do not spin.

    `threads`: of one operator; operators run one after another. `precision` int8-weights disables the fusion of
    quantised operators, so that weights are widened once when the graph loads.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = _LOG_FATAL_ONLY
    # idle threads must not spin: a device mostly waits for samples
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # "external data" would be read from the working directory, unverified; below /dev/null there is no file
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    # else bytes 4..8 of the file could select the ORT format, which the lint does not read
    options.add_session_config_entry("session.load_model_format", "ONNX")
    if precision == Precision.INT8_WEIGHTS:
        # the weights are widened once, when it loads, and not in each run
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return options


def _check_graph(session: ort.InferenceSession, manifest: Manifest) -> None:
    """Check inputs and outputs of the graph by one run on the lowest sample, which tells more than declared shapes.

    ManifestMismatchError if it takes no such sample, or an output is missing or has another element type or shape than
    the manifest says; BundleError if it does not run.
    """
    wanted = _expected_outputs(manifest)
    inputs = [node.name for node in session.get_inputs()]
    outputs = {node.name for node in session.get_outputs()}
    if inputs != [manifest.input.name] or not wanted.keys() <= outputs:
        raise ManifestMismatchError(
            f"{manifest.model}: {EDGE_FILE} maps {inputs} to {sorted(outputs)}, not as its manifest says"
        )
    sample = np.full((2, *manifest.input.shape), manifest.input.low, NUMPY_DTYPES[manifest.input.dtype])
    try:
        found = session.run(list(wanted), {manifest.input.name: sample})
    except ORT_ERRORS as error:
        line = str(error).splitlines()[0]
        kind = ManifestMismatchError if isinstance(error, ort_state.InvalidArgument) else BundleError
        raise kind(f"{manifest.model}: {EDGE_FILE} does not run: {line}") from None
    for (name, (dtype, shape)), value in zip(wanted.items(), found, strict=True):
        if value.dtype != dtype or value.shape != (2, *shape):
            raise ManifestMismatchError(
                f"{manifest.model}: output {name} is {value.dtype} {list(value.shape[1:])}, not {list(shape)}"
            )
