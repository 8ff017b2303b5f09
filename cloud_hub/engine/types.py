"""What a model takes and what one item of its work is: plain values that core, engines and web API share.

What a hub has for engines, and how it wants models spread over it.
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError, Manifest
from models.bundle.measurements import Leakage
from models.runtime.codec import NUMPY_DTYPES, CodecError, open_codec, tables_of
from policies.serving.placement import Asked
from wire.protocol.messages import DType, FieldSpec, ModelRef


class ModelCard(msgspec.Struct, frozen=True):
    """`features`: the forwardable fields of the bundle, as codes; `input_*` describe one raw sample, no batch axis."""

    ref: ModelRef
    features: tuple[FieldSpec, ...]
    labels: tuple[str, ...] = ()
    input_name: str = "input"
    input_dtype: str = "FP32"
    input_shape: tuple[int, ...] = ()
    input_low: float = -math.inf
    input_high: float = math.inf
    outputs: int = 1  # values of a regressor, which has no labels; else one a label
    max_batch: int = 32
    tables: bytes = b""  # of the codec, if it has some
    leakage: tuple[Leakage, ...] = ()
    buckets: tuple[int, ...] = ()  # batch sizes that are computed; a batch is filled up to the next
    slots: int = 1  # batches that may be under way at once

    @property
    def name(self) -> str:
        """`digits@7`: how predictions, metrics and the web API call this model."""
        return f"{self.ref.name}@{self.ref.version}"

    def takes(self, inputs: npt.NDArray[np.generic]) -> bool:
        """Whether `inputs` is `[n, *input_shape]`, n >= 1, of the right type, made of finite numbers of its range."""
        if inputs.shape[1:] != self.input_shape or inputs.ndim < 1 or not len(inputs):
            return False
        if inputs.dtype != NUMPY_DTYPES[DType(self.input_dtype)] or not np.isfinite(inputs).all():
            return False
        return bool(self.input_low <= inputs.min() and inputs.max() <= self.input_high)


class Work(msgspec.Struct, frozen=True):
    """One item of a batch: decoded feature codes by field name, or (hub's own web API) one whole raw sample."""

    codes: dict[str, npt.NDArray[np.uint8]] = {}
    raw: npt.NDArray[np.generic] | None = None
    weight: float = 1.0  # what it costs beside others of its model: turns and batches are counted in it


def card_of(manifest: Manifest, max_batch: int = 32, tables: bytes = b"") -> ModelCard:
    """The card of the hub model a manifest describes. `tables`: of its codec, if it has some."""
    return ModelCard(
        ref=manifest.ref,
        features=manifest.features,
        labels=manifest.labels,
        input_name=manifest.input.name,
        input_dtype=manifest.input.dtype.value,
        input_shape=manifest.input.shape,
        input_low=manifest.input.low,
        input_high=manifest.input.high,
        outputs=manifest.outputs,
        max_batch=max_batch,
        tables=tables,
        leakage=manifest.leakage,
    )


def card_of_bundle(bundle: Bundle, max_batch: int = 32) -> ModelCard:
    """As `card_of`, with the tables. BundleError if its codec cannot be opened."""
    manifest = bundle.manifest
    try:
        open_codec(manifest, bundle.read)
    except CodecError as error:
        raise BundleError(f"{manifest.model}: {error}") from None
    return card_of(manifest, max_batch, tables_of(manifest, bundle.read))


class Means(msgspec.Struct, frozen=True):
    """What this hub has for engines, and how it wants them spread; 0 = not said.

    `max_batch`: items at most; `threads`: of torch, in each process; `ready_s`: for an engine to get ready.
    """

    max_batch: int = 32
    threads: int = 1
    devices: int = 0
    memory_bytes: int = 0
    tensor: int = 0
    pipeline: int = 0
    replicas: int = 0
    ready_s: float = 60.0


def asked(manifest: Manifest, means: Means) -> Asked:
    """The hub's own words count more than the bundle's."""
    plan = manifest.parallel
    replicas = means.replicas or plan.replicas
    return Asked(means.tensor or plan.tensor, means.pipeline or plan.pipeline, replicas or (0 if means.devices else 1))


def spreads(manifest: Manifest, means: Means) -> bool:
    """Whether one process is not settled from the start."""
    wanted = asked(manifest, means)
    several = max(wanted.tensor, wanted.pipeline, wanted.replicas) > 1
    return several or means.devices > 1 or means.memory_bytes > 0
