"""A code of samples: coder, decoder and codec, and what all kinds of such codes share."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wire.protocol.messages import TensorDType

FITTED = 2048  # training samples that tables and grids are fitted on
TORCH_DTYPES = {
    TensorDType.FP32: torch.float32,
    TensorDType.FP16: torch.float16,
    TensorDType.INT64: torch.int64,
    TensorDType.INT32: torch.int32,
    TensorDType.UINT8: torch.uint8,
}


@dataclass(frozen=True)
class SampleCode:
    """One way to code samples.

    - `coder`: samples `[n, *input shape]` -> codes as whole floats `[n, *shape]` in `0..levels - 1`;
    - `decoder`: such codes -> samples in the type that the given model takes;
    - `codec`, `tables`: name and table file of the feature codec; `payload_bytes`: of every sample.
    """

    name: str
    coder: nn.Module
    decoder: nn.Module
    shape: tuple[int, ...]
    levels: int
    codec: str
    tables: bytes
    payload_bytes: int


def draw_rows(count: int, seed: int, most: int = FITTED) -> npt.NDArray[np.int64]:
    """Places of at most `most` of `count` samples, drawn at random, in rising order."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])
