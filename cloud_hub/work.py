"""What a model takes and what one item of its work is: plain values that core, engines and web API share."""

import msgspec
import numpy as np
import numpy.typing as npt

from models.codec import NUMPY_DTYPES
from models.manifest import Manifest
from wire.messages import DType, FieldSpec, ModelRef


class ModelCard(msgspec.Struct, frozen=True):
    """`features`: the forwardable fields of the bundle, as codes; `input_*` describe one raw sample, no batch axis."""

    ref: ModelRef
    features: tuple[FieldSpec, ...]
    labels: tuple[str, ...] = ()
    input_name: str = "input"
    input_dtype: str = "FP32"
    input_shape: tuple[int, ...] = ()
    max_batch: int = 32

    @property
    def name(self) -> str:
        """`digits@7`: how predictions, metrics and the web API call this model."""
        return f"{self.ref.name}@{self.ref.version}"

    def takes(self, inputs: npt.NDArray[np.generic]) -> bool:
        """Whether `inputs` is `[n, *input_shape]`, n >= 1, of the right type and made of finite numbers."""
        if inputs.shape[1:] != self.input_shape or inputs.ndim < 1 or not len(inputs):
            return False
        return inputs.dtype == NUMPY_DTYPES[DType(self.input_dtype)] and bool(np.isfinite(inputs).all())


class Work(msgspec.Struct, frozen=True):
    """One item of a batch: decoded feature codes by field name, or (hub's own web API) one whole raw sample."""

    codes: dict[str, npt.NDArray[np.uint8]] = {}
    raw: npt.NDArray[np.generic] | None = None


def card_of(manifest: Manifest, max_batch: int = 32) -> ModelCard:
    """The card of a bundle's hub model."""
    return ModelCard(
        ref=manifest.ref,
        features=manifest.features,
        labels=manifest.labels,
        input_name=manifest.input.name,
        input_dtype=manifest.input.dtype.value,
        input_shape=manifest.input.shape,
        max_batch=max_batch,
    )
