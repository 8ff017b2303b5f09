"""Engine that runs a version's ONNX graphs (tail and whole model) on ONNX Runtime, in this process.

Rule: sessions are made from the hub part's hashed bytes, after the same lint as a device's graph; inputs are ordered as
the manifest's features.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from cloud_hub.engine.base import EngineError, EngineHealth, EngineState
from cloud_hub.engine.bundle import TAIL, WHOLE, Array, BundleEngine
from cloud_hub.engine.types import EngineSetup, make_bundle_card
from models.bundle.bundle import Bundle
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import BundleError, Manifest
from models.runtime.feature_codec import NUMPY_DTYPES
from models.runtime.onnx_runner import CPU, ORT_ERRORS, session_options
from models.verification.lint import LintError, lint_graph
from policies.serving.computing import ComputeOptions, NoTarget, Precision, choose_targets

CUDA = "CUDAExecutionProvider"


class OnnxGraphRunner:
    """The two ONNX Runtime sessions of a bundle.

    BundleError at `start` if a graph does not load, run or fit the manifest.
    """

    depth = 1
    ranks = ()

    def __init__(self, bundle: Bundle, threads: int = 1, options: ComputeOptions | None = None) -> None:
        self._manifest = bundle.manifest
        self._part = open_hub_part(bundle.path, bundle.manifest)
        self._threads = threads
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._providers, self._fallback = choose_providers(bundle.manifest.model, options or ComputeOptions())
        self.inline = self._providers == [CPU]

    @property
    def setup(self) -> EngineSetup:
        held = sum(file.size_bytes for file in self._part.manifest.files.values())
        return EngineSetup("cpu" if self.inline else "cuda:0", Precision.FLOAT32, held, self._fallback)

    def start(self) -> None:
        if len(self._sessions) == 2:
            return  # started before
        hub = self._part.manifest
        for graph, name in ((TAIL, hub.graph), (WHOLE, hub.whole)):
            try:
                self._sessions[graph] = self._open_session(name, self._part.read_file(name))
                self._check_graph(graph, self._manifest)
            except BundleError as error:
                raise BundleError(f"{self._manifest.model}: {error}") from None

    def run(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        session = self._sessions[graph]
        names = [node.name for node in session.get_inputs()]
        try:
            found: Any = session.run(None, dict(zip(names, columns, strict=True)))[0]
        except ORT_ERRORS as error:
            raise EngineError(str(error).splitlines()[0][:200]) from None
        return np.asarray(found, np.float32)

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY if len(self._sessions) == 2 else EngineState.NEW)

    def stop(self) -> None:
        self._sessions = {}

    def _open_session(self, name: str, data: bytes) -> ort.InferenceSession:
        try:
            lint_graph(data)
            return ort.InferenceSession(data, session_options(self._threads), providers=self._providers)
        except LintError as error:
            raise BundleError(f"{name}: {str(error).partition(': ')[2]}") from None
        except ORT_ERRORS as error:
            raise BundleError(f"{name}: ONNX Runtime cannot load it: {str(error).splitlines()[0][:200]}") from None

    def _check_graph(self, graph: str, manifest: Manifest) -> None:
        """Check input and output sizes by running two lowest samples, since declared shapes may be symbolic."""
        spec = manifest.input
        low = [np.full((2, *field.shape), field.low, np.float32) for field in manifest.features]
        if graph == WHOLE:
            low = [np.full((2, *spec.shape), spec.low, NUMPY_DTYPES[spec.dtype])]
        if len(self._sessions[graph].get_inputs()) != len(low):
            raise BundleError(f"graph {graph}: its inputs are not {len(low)}, as its manifest says")
        try:
            made = self.run(graph, low)
        except EngineError as error:
            raise BundleError(f"graph {graph}: does not run: {error}") from None
        if made.reshape(2, -1).shape != (2, manifest.outputs):
            raise BundleError(
                f"graph {graph}: gives {list(made.shape[1:])}, the manifest says {manifest.outputs} outputs"
            )


def choose_providers(model: str, options: ComputeOptions) -> tuple[list[str], str]:
    """Choose ONNX Runtime's providers by the hub's options, and say what they fall back to ("" = nothing).

    EngineError if a card or a precision is asked for that ONNX Runtime cannot give, and no fallback is allowed.
    """
    if options.precision not in (Precision.AUTO, Precision.FLOAT32) and not options.allow_fallback:
        raise EngineError(f"{model}: an ONNX hub model computes as it was exported, not in {options.precision}")
    chosen = choose_targets(options, cards=int(CUDA in ort.get_available_providers()))
    if isinstance(chosen, NoTarget):
        raise EngineError(f"{model}: {chosen.why} (to ONNX Runtime)")
    why = chosen.fallback
    if options.precision not in (Precision.AUTO, Precision.FLOAT32):
        why = f"{model}: an ONNX hub model computes as it was exported, not in {options.precision}"
    return ([CUDA, CPU] if chosen.targets[0].cuda else [CPU]), why


class OnnxEngine(BundleEngine):
    """Bundle engine on ONNX Runtime."""

    def __init__(
        self, bundle: Bundle, max_batch: int = 32, threads: int = 1, options: ComputeOptions | None = None
    ) -> None:
        runner = OnnxGraphRunner(bundle, threads, options)
        super().__init__(bundle.manifest, make_bundle_card(bundle, max_batch), runner)
