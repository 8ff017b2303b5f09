"""Model runner interface: samples in, predictions and feature codes out; and the test double `EchoRunner`.

Rule: a runner never guesses. A sample of wrong shape, type or range, or not a number, is a `SampleError`.
"""

import math
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from models.bundle.manifest import (
    EDGE_FILE,
    GOLDEN_FILE,
    HUB_FILE,
    HUB_GRAPH_FILE,
    JOINT_FORMAT,
    HubModel,
    InputSpec,
    Manifest,
    ModelKind,
    Precision,
    TargetPlatform,
)
from models.bundle.measurements import (
    CalibrationFigures,
    DomainFigures,
    DomainScore,
    GateFigures,
    LeakageRow,
    LeakKind,
    QualityMetric,
)
from models.runtime.chain import FeatureChain, digest_chain
from models.runtime.feature_codec import NUMPY_DTYPES, FeatureCodec, build_codec
from models.runtime.novelty import is_novelty_usual
from wire.protocol.messages import FieldSpec, Prediction, SensitivityLevel, TensorDType

Sample = npt.NDArray[Any]


class SampleError(ValueError):
    """A sample that is not what the model's manifest asks for; the message says what it asks for."""


class RunnerError(RuntimeError):
    """A failure of the runtime on a sound sample: a fault of the model or of the machine, one line."""


class Inference(msgspec.Struct, frozen=True, gc=False):
    """Result for one sample: the local prediction, and per feature its codes in the manifest's shape.

    `novelty`: share of calibration samples that look more usual, 0..1; -1 if the model has no such output.
    """

    prediction: Prediction
    features: dict[str, npt.NDArray[np.uint8]]
    novelty: float = -1.0


class Runner(Protocol):
    """Interface of a model runner, owned by one thread. Batches are arrays `[n, *manifest.input.shape]`."""

    @property
    def manifest(self) -> Manifest:
        """Manifest of the bundle that it runs."""
        ...

    @property
    def codec(self) -> FeatureCodec:
        """Codec that its features are encoded with."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about how it runs here, one line each; none if it runs as it was made to."""
        ...

    def infer(self, batch: Sample) -> list[Inference]:
        """Run a batch; return one `Inference` per sample, in order. SampleError if any sample is unfit; RunnerError."""
        ...

    def infer_one(self, sample: Sample) -> Inference:
        """Run one sample of exactly `manifest.input.shape`: the hot path. Errors as `infer`."""
        ...

    def close(self) -> None:
        """Free what the runner holds; it cannot be used afterwards."""
        ...


def check_samples(batch: Sample, spec: InputSpec) -> None:
    """Check a batch: `[n, *shape]` (n >= 1) of the right type with every value inside `low..high`.

    SampleError otherwise.
    """
    if batch.ndim != len(spec.shape) + 1 or batch.shape[1:] != spec.shape or not batch.shape[0]:
        raise SampleError(f"{spec.name}: shape {list(batch.shape)}, the model takes [n, {_format_dims(spec.shape)}]")
    check_values(batch, spec)


def check_sample(sample: Sample, spec: InputSpec) -> None:
    """Check one sample without the batch axis, as `check_samples`."""
    if sample.shape != spec.shape:
        raise SampleError(f"{spec.name}: shape {list(sample.shape)}, the model takes [{_format_dims(spec.shape)}]")
    check_values(sample, spec)


_SEARCHED_VALUES = 4096  # up to here the place of the least value is found sooner than the value of many


def check_values(values: Sample, spec: InputSpec) -> None:
    """Check type and range of values, of any shape.

    SampleError for another type, NaN, infinities or a value out of range.
    """
    if values.dtype != NUMPY_DTYPES[spec.dtype]:
        raise SampleError(f"{spec.name}: {values.dtype}, the model takes {spec.dtype}")
    # NaN wins every minimum and maximum and fails every comparison: two passes refuse NaN, infinities and range at once
    if values.size <= _SEARCHED_VALUES:  # a search costs 1.5 us, a reduction 4, however few there are
        flat = values.reshape(-1)
        low, high = flat[flat.argmin()], flat[flat.argmax()]
    else:
        low, high = np.minimum.reduce(values, None), np.maximum.reduce(values, None)
    if not (low >= spec.low and high <= spec.high):
        found = f"{low}..{high}" if math.isfinite(low) and math.isfinite(high) else "NaN or infinite values"
        raise SampleError(f"{spec.name}: {found}, the model takes {spec.low:g}..{spec.high:g}")


def _format_dims(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


class EchoRunner:
    """Runner test double, shipped: a sample *is* the scores.

    Its label is the argmax, its codes are `round(15 * score)`.

    So a test decides label, confidence and features by the sample it sends; nothing is trained, nothing is loaded.
    `labels`: number of classes; `version`: of the model it claims to be. `novel_above`: with it, the smallest score is
    the sample's novelty, and above it the sample is out of domain. `closed`: whether `close` was called.
    """

    def __init__(self, labels: int = 10, version: int = 1, novel_above: float | None = None) -> None:
        self.manifest = echo_manifest(labels, version, novel_above)
        self.codec = build_codec(self.manifest.codec, self.manifest.features)
        self.notes: tuple[str, ...] = ()
        self.closed = False

    def infer(self, batch: Sample) -> list[Inference]:
        check_samples(batch, self.manifest.input)
        return [self.infer_one(sample) for sample in batch]

    def infer_one(self, sample: Sample) -> Inference:
        check_sample(sample, self.manifest.input)
        scores = tuple(sample.tolist())
        label = int(sample.argmax())
        codes = np.rint(sample * np.float32(15)).astype(np.uint8)
        novelty = min(scores) if self.manifest.gate.novelty_output else -1.0
        known = is_novelty_usual(novelty, self.manifest.gate.domain)
        said = Prediction(label, scores[label], scores, self.manifest.model, known)
        return Inference(said, {"features": codes}, novelty)

    def close(self) -> None:
        self.closed = True


def echo_manifest(labels: int = 10, version: int = 1, novel_above: float | None = None) -> Manifest:
    """Build the manifest of `EchoRunner`: `labels` scores in, the same scores and their 4-bit codes out."""
    domain = None if novel_above is None else DomainFigures(DomainScore.NOVELTY, novel_above, 0.05, 0.0, 0.0, 1.0, 0)
    codes = FieldSpec("features", TensorDType.UINT8, (labels,), 0.0, 15.0, SensitivityLevel.P2, "features")
    known = digest_chain("echo", "pack4", (FeatureChain(codes),))
    return Manifest(
        format=JOINT_FORMAT,
        name="echo",
        version=version,
        kind=ModelKind.CLASSIFIER,
        labels=tuple(str(i) for i in range(labels)),
        outputs=labels,
        input=InputSpec("scores", TensorDType.FP32, (labels,), 0.0, 1.0),
        features=(codes,),
        cut="echo",
        codec="pack4",
        fixed_bytes=512,
        temperature=1.0,
        gate=GateFigures(novelty_output=domain is not None, domain=domain),
        calibration=CalibrationFigures(QualityMetric.ACCURACY, 0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.0, 0.0, 0.0),
        # the codes are the sample itself, so a reconstruction attack succeeds in full
        leakage=(LeakageRow(known, LeakKind.RECONSTRUCTION, "", "copy", "explained_variance", 0, 1.0, 1.0, 0.0, 1.0),),
        hub=HubModel(),
        target=TargetPlatform("none", 0, Precision.FLOAT32, "any"),
        files=dict.fromkeys((EDGE_FILE, HUB_FILE, HUB_GRAPH_FILE, GOLDEN_FILE), "0" * 64),
    )
