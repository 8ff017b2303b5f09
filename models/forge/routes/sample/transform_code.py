"""Samples as coefficients of a transform, dead-zone rounding and static tables, one code for each wanted payload.

Rule: nothing is taught and no label is read; everything is fitted on training samples alone.

Coefficients are rounded on a fine grid in the device's graph; the codec `ans-steps` (`models/runtime/codec_steps.py`)
then takes for each sample the finest multiple of it that fits into the payload. The grid is chosen so that the median
training sample fits at `_MEDIAN_MULTIPLE` times the grid: finer ones are left for samples that have less to say.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.bundle.manifest import InputSpec
from models.forge.data.types import Values
from models.forge.routes.sample.sample_types import TORCH_DTYPES, SampleCode, draw_rows
from models.forge.routes.sample.transforms import (
    AnalysisTransform,
    LinearTransform,
    Samples,
    SynthesisTransform,
    fit_transform,
)
from models.runtime.codec_steps import (
    MAX_FACTOR,
    MULTIPLES,
    StepClass,
    StepSettings,
    build_step_tables,
    estimate_bits,
    most_payload_bytes,
    read_step_tables,
)
from models.runtime.feature_codec import ANS_STEPS

LEVELS, CENTRE = 256, 128
_LARGEST = CENTRE - 1  # magnitude that codes have room for on both sides
_MARGIN = 1.1  # of the largest training coefficient: others may be larger
_MEDIAN_STEP = MULTIPLES.index(8)
_MEDIAN_MULTIPLE = MULTIPLES[_MEDIAN_STEP]
_MOST_FACTOR = 32  # of the grid, for the farthest coefficients
_CLASSES = 32  # of positions of like variance, which share a table
_JUDGED = 512  # of them, those whose median size is judged
_SEARCHES = 10  # halvings of the search for the grid
_EXACT = 1e-3  # of the mean deviation of a coefficient: finer grids carry nothing that counts
_END_BITS = 8.0  # step number and the coder's end


def fit_transform_codes(x: Values, spec: InputSpec, payloads: Sequence[int], seed: int) -> list[SampleCode]:
    """Fit one code per payload (bytes, rising) to training samples `[n, *spec.shape]`.

    None beyond the first that carries samples all but exactly; none at all of samples that are all alike.
    """
    transform = fit_transform(_as_float(x))
    shown = transform.apply(_as_float(x[draw_rows(len(x), seed)]))
    found: list[SampleCode] = []
    for payload in payloads if shown.any() else ():
        found.append(fit_code(transform, shown, spec, payload))
        if _fits(shown, _finest_grid(shown), payload):
            break
    return found


class TransformCoder(nn.Module):
    """Coder: a sample's coefficients over their grids, rounded, as codes around `CENTRE`."""

    def __init__(self, transform: LinearTransform, grids: Samples) -> None:
        super().__init__()
        self.analysis = AnalysisTransform(transform, len(grids), float(grids.min()) * _MEDIAN_MULTIPLE)
        self.register_buffer("rates", torch.from_numpy(1 / grids))

    def forward(self, sample: Tensor) -> Tensor:
        rounded: Tensor = torch.round(self.analysis(sample) * self.get_buffer("rates"))
        return rounded.clamp(-CENTRE, LEVELS - 1 - CENTRE) + CENTRE


class TransformDecoder(nn.Module):
    """Decoder: codes -> samples within the range that the specification of the input gives."""

    def __init__(self, transform: LinearTransform, grids: Samples, spec: InputSpec) -> None:
        super().__init__()
        self.synthesis = SynthesisTransform(transform, len(grids))
        self.register_buffer("grids", torch.from_numpy(grids))
        self.low, self.high, self.dtype = spec.low, spec.high, TORCH_DTYPES[spec.dtype]

    def forward(self, codes: Tensor) -> Tensor:
        found: Tensor = self.synthesis((codes - CENTRE) * self.get_buffer("grids"))
        found = found.clamp(self.low, self.high)
        return (found if self.dtype.is_floating_point else found.round()).to(self.dtype)


def fit_code(transform: LinearTransform, shown: Samples, spec: InputSpec, payload: int) -> SampleCode:
    """Build the code whose grid is the finest at which the median sample fits the payload (bytes).

    `shown`: coefficients `[n, values]` of training samples, not all zero.
    """
    grids, classes = fit_grids(shown, payload)
    size = min(payload, most_payload_bytes(len(grids)))
    tables = build_step_tables(_quantise(shown, grids), StepSettings(LEVELS, CENTRE, size, classes))
    return SampleCode(
        name=f"sample-{payload}",
        coder=TransformCoder(transform, grids).eval(),
        decoder=TransformDecoder(transform, grids, spec).eval(),
        shape=(len(grids),),
        levels=LEVELS,
        codec=ANS_STEPS,
        tables=tables,
        payload_bytes=size,
    )


def fit_grids(shown: Samples, payload: int) -> tuple[Samples, tuple[StepClass, ...]]:
    """Grid of each coefficient that travels (the first ones), and their classes, for payloads of so many bytes.

    `shown` `[n, values]`: coefficients of training samples by falling variance, not all zero. So few coefficients may
    be left that they cannot have a payload so long: see `most_payload_bytes`.
    """
    far = float(np.abs(shown).max())
    # a grid so fine that far coefficients need one many times coarser leaves no step that would shorten a sample
    low, high = np.log2(max(_finest_grid(shown), far * _MARGIN / (_LARGEST * _MOST_FACTOR))), np.log2(far)
    for _ in range(_SEARCHES):
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(shown, 2.0**middle, payload) else (middle, high)
    return _plan_grids(shown, 2.0**high)


def _finest_grid(shown: Samples) -> float:
    """The finest grid that is of use: all but nothing is lost, and the codes still span the largest coefficient."""
    return max(float(shown.std()) * _EXACT, float(np.abs(shown).max()) * _MARGIN / (_LARGEST * MAX_FACTOR))


def _fits(shown: Samples, grid: float, payload: int) -> bool:
    """Whether the median sample fits at the step that is meant for it."""
    grids, classes = _plan_grids(shown, grid)
    codes = _quantise(shown, grids)
    (table,) = read_step_tables(build_step_tables(codes, StepSettings(LEVELS, CENTRE, 1, classes)))
    return float(np.median(estimate_bits(codes[:_JUDGED], table, _MEDIAN_STEP))) + _END_BITS <= 8 * payload


def _plan_grids(shown: Samples, grid: float) -> tuple[Samples, tuple[StepClass, ...]]:
    """Grid of each position that is ever non-zero at the median step, and their classes of like variance."""
    largest = np.abs(shown).max(0)
    used = np.flatnonzero(largest >= grid * _MEDIAN_MULTIPLE / 2)
    count = int(used[-1]) + 1 if used.size else 1
    edges = np.unique(np.rint(np.geomspace(1, count + 1, _CLASSES + 1)).astype(int) - 1)
    classes = []
    for start, end in pairwise(edges.tolist()):
        factor = math.ceil(float(largest[start:end].max()) * _MARGIN / (grid * _LARGEST))
        classes.append(StepClass(end - start, min(MAX_FACTOR, max(1, factor))))
    factors = np.repeat([each.factor for each in classes], [each.size for each in classes])
    return (grid * factors).astype(np.float32), tuple(classes)


def _quantise(coefficients: Samples, grids: Samples) -> npt.NDArray[np.uint8]:
    rounded = np.rint(coefficients[:, : len(grids)] * (1 / grids))
    return (rounded.clip(-CENTRE, LEVELS - 1 - CENTRE) + CENTRE).astype(np.uint8)


def _as_float(x: Values) -> Samples:
    return np.ascontiguousarray(x, np.float32)
