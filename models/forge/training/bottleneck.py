"""Learned bottleneck: an encoder that makes a cut's features few whole numbers, and a decoder that restores features.

Rule: codes are whole numbers in `0..levels-1`, rounded half to even, so torch and ONNX Runtime agree on them in the
same
precision; the encoder stays within the multiply-accumulates it is given. Few-level bottlenecks trained with what
follows them: Matsubara et al. 2022 (BottleFit), Mentzer et al. 2024 (finite scalar quantisation); straight-through
rounding: Bengio et al. 2013.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from models.forge.partition.layout import FeatureLayout

_GRID = 8  # largest side of the code grid of an image
_LEVELS = (4, 8, 16, 32, 64, 128, 256)  # tried in this order: few train best, more use bytes that few codes leave over
_MAX_CHANNELS = 64
_MAX_VECTOR = 4096  # codes of one vector: 1,024 B at 4 levels
_MOST = 0.75
_WIDTHS = tuple(range(8, 257, 8))
_VECTOR_HIDDEN = 256
_SPREAD = 1.7  # sigmoid(1.7 z) is close to the normal distribution function: normalised values use all levels alike


class Codebook(NamedTuple):
    """Shape of the codes of one sample, and the number of levels of each code."""

    shape: tuple[int, ...]
    levels: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of one sample if each code takes its share of bits, before entropy coding."""
        return math.ceil(math.prod(self.shape) * math.log2(self.levels) / 8)


def choose_codebook(feature: FeatureLayout, max_bytes: int, *, spatial: bool = True) -> Codebook:
    """The finest codes within `max_bytes` per sample.

    On a grid (`spatial`, where the feature has one), else one vector.
    """
    bits = 8 * max_bytes
    if spatial and feature.spatial:
        height, width = find_code_grid(feature)
        while height * width * 2 > bits and height * width > 1:
            height, width = -(-height // 2), -(-width // 2)
        channels, levels = _fill_bits(bits / (height * width), _MAX_CHANNELS)
        return Codebook((channels, height, width), levels)
    count, levels = _fill_bits(bits, min(_MAX_VECTOR, math.prod(feature.shape)))
    return Codebook((count,), levels)


def _fill_bits(bits: float, most: int) -> tuple[int, int]:
    """How many codes (1 to `most`), and of how many levels: the fewest levels that use most of the bits."""
    found = (1, 2)
    for levels in _LEVELS:
        count = min(most, int(bits / math.log2(levels)))
        if count * math.log2(levels) * _MOST > found[0] * math.log2(found[1]):
            found = (count, levels)
    return found


def find_code_grid(feature: FeatureLayout) -> tuple[int, int]:
    """The feature's grid, halved until no side is longer than the codes' may be (a sequence: 4 times as long)."""
    _, height, width = feature.shape
    longest = _GRID if height > 1 else 4 * _GRID
    while max(height, width) > longest:
        height, width = -(-height // 2), -(-width // 2)
    return height, width


def round_straight_through(levels: Tensor) -> Tensor:
    """Straight-through rounding: whole numbers forward, the identity backward."""
    return levels + (torch.round(levels) - levels).detach()


class BottleneckEncoder(nn.Module):
    """Encoder on the device: the cut's features -> codes as floats.

    `trunk` is what the early exit and the gate read too. `budget_macs`: multiply-accumulates it may take.
    """

    def __init__(self, feature: FeatureLayout, codebook: Codebook, budget_macs: float) -> None:
        super().__init__()
        self.feature, self.codebook = feature, codebook
        self.layers: nn.Module
        if feature.spatial:
            plan = _plan_layers(feature, codebook, budget_macs)
            self.layers = nn.Sequential(*_build_grid_layers(feature, plan))
            self.hidden: tuple[int, ...] = (plan.widths[-1], *plan.grid)
        else:
            width = _vector_width(feature.shape[0], math.prod(codebook.shape), budget_macs)
            self.layers = nn.Sequential(nn.Linear(feature.shape[0], width), nn.BatchNorm1d(width), nn.ReLU())
            self.hidden = (width,)
        self.on_grid = len(codebook.shape) == 3 and feature.spatial
        self.neck: nn.Module
        self.spread: nn.Module
        if self.on_grid:
            self.neck = nn.Conv2d(self.hidden[0], codebook.shape[0], 1)
            self.spread = nn.BatchNorm2d(codebook.shape[0])
        else:
            self.neck = nn.Linear(math.prod(self.hidden), math.prod(codebook.shape))
            self.spread = nn.BatchNorm1d(math.prod(codebook.shape))

    def forward(self, *features: Tensor) -> Tensor:
        return self.quantise(self.trunk(*features))

    def trunk(self, *features: Tensor) -> Tensor:
        """Hidden features before the bottleneck, `[n, *hidden]`."""
        hidden: Tensor = self.layers(self.feature.to_canonical(*features))
        return hidden

    def quantise(self, hidden: Tensor) -> Tensor:
        """Codes `[n, *codebook.shape]` as floats, from hidden features."""
        narrow = self.neck(hidden if self.on_grid else hidden.flatten(1)).float()
        levels = torch.sigmoid(_SPREAD * self.spread(narrow)) * (self.codebook.levels - 1)
        if self.training:
            return round_straight_through(levels).reshape(-1, *self.codebook.shape)
        return torch.round(levels).reshape(-1, *self.codebook.shape)


class _LayerPlan(NamedTuple):
    widths: tuple[int, ...]  # of each halving of the grid; at least one layer
    grid: tuple[int, int]
    blocks: int


def _plan_layers(feature: FeatureLayout, codebook: Codebook, budget_macs: float) -> _LayerPlan:
    """The widest layers within the budget, one residual block first; what is left goes into more blocks."""
    grid = codebook.shape[1:] if len(codebook.shape) == 3 else find_code_grid(feature)
    sides = list(_iter_halvings(feature.shape[1:], grid))
    best = _double_widths(_WIDTHS[0], len(sides), 0, grid)
    for width in _WIDTHS:
        plan = _double_widths(width, len(sides), 1, grid)
        if _count_macs(feature, plan, sides) <= budget_macs:
            best = plan
    while best.blocks < 3 and _count_macs(feature, best._replace(blocks=best.blocks + 1), sides) <= budget_macs:
        best = best._replace(blocks=best.blocks + 1)
    return best


def _double_widths(width: int, halvings: int, blocks: int, grid: tuple[int, ...]) -> _LayerPlan:
    return _LayerPlan(tuple(width * 2**index for index in range(halvings)), (grid[0], grid[1]), blocks)


def _iter_halvings(start: tuple[int, ...], end: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The grid after each layer; one layer that halves nothing where the grid is right already."""
    height, width = start
    if (height, width) == tuple(end):
        yield height, width
    while (height, width) != tuple(end):
        height, width = -(-height // 2), -(-width // 2)
        yield height, width


def _count_macs(feature: FeatureLayout, plan: _LayerPlan, sides: list[tuple[int, int]]) -> float:
    taps = 9 if feature.shape[1] > 1 else 3
    total, inputs = 0, feature.shape[0]
    for width, (rows, columns) in zip(plan.widths, sides, strict=True):
        total += taps * inputs * width * rows * columns
        inputs = width
    return total + plan.blocks * 2 * taps * inputs * inputs * math.prod(plan.grid)


def _build_grid_layers(feature: FeatureLayout, plan: _LayerPlan) -> Iterator[nn.Module]:
    inputs, flat = feature.shape[0], feature.shape[1] == 1
    before = feature.shape[1:]
    for width, after in zip(plan.widths, _iter_halvings(before, plan.grid), strict=True):
        yield from conv_layers(inputs, width, flat=flat, stride=2 if after != before else 1)
        inputs, before = width, after
    for _ in range(plan.blocks):
        yield BottleneckBlock(inputs, flat=flat)


def conv_layers(inputs: int, outputs: int, *, flat: bool, stride: int = 1) -> list[nn.Module]:
    """Convolution, normalisation, ReLU; `flat`: along a sequence, held as a grid of one row."""
    kernel, padding, steps = ((1, 3), (0, 1), (1, stride)) if flat else ((3, 3), (1, 1), (stride, stride))
    layer = nn.Conv2d(inputs, outputs, kernel, stride=steps, padding=padding, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]


class BottleneckBlock(nn.Module):
    """Residual block: two convolutions beside the identity (He et al. 2016)."""

    def __init__(self, width: int, *, flat: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(*conv_layers(width, width, flat=flat), *conv_layers(width, width, flat=flat))

    def forward(self, x: Tensor) -> Tensor:
        deeper: Tensor = self.inner(x)
        return x + deeper


def _vector_width(inputs: int, outputs: int, budget_macs: float) -> int:
    return int(max(16, min(_VECTOR_HIDDEN, 2 * inputs, budget_macs / (inputs + outputs))))


class BottleneckDecoder(nn.Module):
    """Decoder on the hub: codes as floats -> the entry cut's features, one tensor or a tuple of them."""

    def __init__(self, codebook: Codebook, entry: FeatureLayout, blocks: int = 1, width: int = 0) -> None:
        super().__init__()
        self.entry = entry
        self.middle = (codebook.levels - 1) / 2
        if entry.spatial:
            self.layers: nn.Module = _GridDecoder(codebook, entry, blocks, width)
        else:
            hidden = max(width, _VECTOR_HIDDEN)
            self.layers = nn.Sequential(
                nn.Flatten(1),
                *(nn.Linear(math.prod(codebook.shape), hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
                *(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
                nn.Linear(hidden, math.prod(entry.shape)),
            )

    def set_initial_mean(self, mean: Tensor) -> None:
        """Make the untrained decoder answer about the mean features, in their canonical form `[1, *entry.shape]`.

        A mask that travels as a feature is so never empty: attention to nothing at all is not a number.
        """
        layers = self.layers
        place = layers.place if isinstance(layers, _GridDecoder) else layers[-1].bias  # type: ignore[index]
        with torch.no_grad():
            place.copy_(mean.reshape(place.shape))

    def forward(self, codes: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.entry.from_canonical(self.layers(codes / self.middle - 1))


class _GridDecoder(nn.Module):
    def __init__(self, codebook: Codebook, entry: FeatureLayout, blocks: int, width: int) -> None:
        super().__init__()
        channels, *sides = entry.shape
        flat = sides[0] == 1
        self.size = (sides[0], sides[1])
        self.vector = len(codebook.shape) != 3 or (codebook.shape[1] == 1) != flat
        self.grid = find_code_grid(entry) if self.vector else (codebook.shape[1], codebook.shape[2])
        width = width or min(192, max(64, -(-channels * 3 // 32) * 8))
        self.width = width
        self.first: nn.Module
        if self.vector:
            self.first = nn.Linear(math.prod(codebook.shape), width * math.prod(self.grid))
        else:
            self.first = nn.Sequential(*conv_layers(codebook.shape[0], width, flat=flat))
        self.blocks = nn.Sequential(*(BottleneckBlock(width, flat=flat) for _ in range(blocks)))
        self.last = nn.Sequential(*conv_layers(width, width, flat=flat), nn.Conv2d(width, channels, 1))
        self.place = nn.Parameter(torch.zeros(1, channels, *self.size))  # mean features at each place of the grid

    def forward(self, codes: Tensor) -> Tensor:
        wide = self.first(codes.flatten(1)).reshape(-1, self.width, *self.grid) if self.vector else self.first(codes)
        wide = self.blocks(wide)
        if self.grid != self.size:
            wide = interpolate(wide, size=self.size, mode="nearest")
        features: Tensor = self.last(wide) + self.place
        return features
