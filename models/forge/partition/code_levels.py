"""Training-free feature codec: clip, uniform quantisation and static entropy coding, to size a cut before training.

Rule: what is fitted (range, tables) is fitted on training samples and measured on others. The bytes are what a link
would carry: as many for every sample, for a length reveals something.

Method: Cohen, Choi and Bajic 2021, "Lightweight Compression of Intermediate Neural Network Features for Collaborative
Intelligence" (arXiv 2105.06002): clip at a quantile, uniform levels whose ends are the clip's, entropy coding by
static tables.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LEVELS = (2, 3, 4, 8, 16)
_CLIP = 0.995  # quantile
_LOOKED_AT = 1_000_000  # most values a quantile is taken of
_PRIOR = 2.0  # samples' worth of the whole tensor's histogram in each position's table
_SPARE = 0.999  # share of samples whose code fits the length that all are padded to
_CHUNK = 64


class QuantisationRange(NamedTuple):
    """Uniform quantisation of one tensor between `low` and `high`. Codes are 0..levels-1."""

    low: float
    high: float
    levels: int

    def quantise(self, feature: Tensor) -> Tensor:
        """Codes of a feature: uint8, in its shape. Changes `feature` in place."""
        scaled = (feature - self.low) * ((self.levels - 1) / (self.high - self.low))
        return scaled.clamp_(0, self.levels - 1).round_().to(torch.uint8)

    def dequantise(self, codes: Tensor) -> Tensor:
        """Features from codes, float32."""
        return codes.float() * ((self.high - self.low) / (self.levels - 1)) + self.low


class CodedSize(NamedTuple):
    """Bytes of one sample. `packed`: levels side by side; `capped`: entropy code, padded; `mean`: before padding."""

    packed: int
    capped: int
    mean: float

    @property
    def least(self) -> int:
        """The smaller of packed and padded entropy code."""
        return min(self.packed, self.capped)


def fit_range(feature: Tensor, levels: int, *, whole: bool = False) -> QuantisationRange:
    """Quantisation range of a feature `[n, ...]`, clipped at quantiles.

    `whole`: a mask, whose every number is kept if there are at most 256.
    """
    flat = feature.reshape(-1)[:: max(1, feature.numel() // _LOOKED_AT)]
    low, high = float(feature.min()), float(feature.max())
    if whole and high - low < 256:
        return QuantisationRange(low, max(high, low + 1), max(2, round(high - low) + 1))
    ends = torch.quantile(flat, torch.tensor([1 - _CLIP, _CLIP]))
    clipped_low = 0.0 if low >= 0 else float(ends[0])
    clipped_high = float(ends[1])
    if clipped_high <= clipped_low:  # nearly constant: keep the rare other values
        clipped_low, clipped_high = min(low, clipped_low), max(high, clipped_low + 1e-6)
    return QuantisationRange(clipped_low, clipped_high, levels)


def measure_coded_size(seen: Sequence[Tensor], coded: Sequence[Tensor], levels: Sequence[int]) -> CodedSize:
    """Coded bytes of several tensors together.

    `seen`: codes of training samples, for the tables; `coded`: of others; `levels`: per tensor.
    """
    packed = sum(math.prod(one.shape[1:]) * math.log2(count) for one, count in zip(coded, levels, strict=True))
    bits = torch.stack([_code_bits(*one) for one in zip(seen, coded, levels, strict=True)]).sum(0)
    longest = float(torch.quantile(bits, _SPARE))
    return CodedSize(math.ceil(packed / 8 - 1e-9), math.ceil(longest / 8), float(bits.mean()) / 8)


def _code_bits(seen: Tensor, coded: Tensor, levels: int) -> Tensor:
    """Length in bits `[n]` of each sample's code under static tables, one per position."""
    costs = _level_bits(seen.flatten(1), levels)
    pieces = [costs.gather(0, chunk.long()).sum(1) for chunk in torch.split(coded.flatten(1), _CHUNK)]
    return torch.cat(pieces)


def _level_bits(seen: Tensor, levels: int) -> Tensor:
    """Bits of each level at each position `[levels, positions]`.

    What was rarely seen leans on the whole tensor's histogram.
    """
    counts = torch.stack([(seen == level).sum(0) for level in range(levels)]).float()
    whole = counts.sum(1, keepdim=True) + 1
    table = (counts + _PRIOR * whole / whole.sum()) / (len(seen) + _PRIOR)
    return -table.log2()
