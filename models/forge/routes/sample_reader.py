"""Linear reader of the sample from a cut's features, for cuts so early that features are the sample many times over.

Rule: it reads features and nothing else, so what it gives is no more than they hold; it is a convolution fitted by
least squares to training samples. Codes of what it gives need far fewer bytes than codes of the features themselves
where dozens of channels repeat a few; where the features have forgotten the sample it explains too little of it, and
is not used.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from models.forge.partition.layout import FeatureLayout

LEAST_EXPLAINED = 0.7  # share of the sample's variance, for a reader to be of use
_RIDGE = 1e-4
READER_SAMPLES = 256  # samples that it is fitted to


class SampleGrid(NamedTuple):
    """A sample as a grid, `shape` `[channels, rows, columns]`, and how to get it.

    `rank` of the sample: 3, or 2 for a sequence; `swapped`: that is `[columns, channels]`. `finer`: rows and columns of
    the sample for each of the features.
    """

    shape: tuple[int, int, int]
    rank: int
    swapped: bool
    finer: tuple[int, int]

    def to_grid(self, sample: Tensor) -> Tensor:
        """`[n, *sample shape]` -> `[n, channels, rows, columns]`."""
        turned = sample.transpose(1, 2) if self.swapped else sample
        return turned if turned.dim() == 4 else turned.unsqueeze(2)

    def from_grid(self, grid: Tensor) -> Tensor:
        """The way back to samples."""
        if self.rank == 3:
            return grid
        flat = grid.squeeze(2)
        return flat.transpose(1, 2) if self.swapped else flat


def find_grid(sample: tuple[int, ...], layout: FeatureLayout) -> SampleGrid | None:
    """The sample as a grid that is a whole number of times finer than the features'; None if it is no such thing."""
    if not layout.spatial or len(sample) not in {2, 3} or (len(sample) == 3) != (layout.shape[1] > 1):
        return None
    shapes = [(sample, False)]
    if len(sample) == 2:
        shapes = [((sample[0], 1, sample[1]), False), ((sample[1], 1, sample[0]), True)]
    for (channels, *sides), swapped in shapes:
        finer = [side / own for side, own in zip(sides, layout.shape[1:], strict=True)]
        if all(each >= 1 and each == int(each) for each in finer):
            return SampleGrid((channels, sides[0], sides[1]), len(sample), swapped, (int(finer[0]), int(finer[1])))
    return None


class SampleReader(nn.Module):
    """Canonical features `[n, C, h, w]` -> the sample's grid `[n, c, rows, columns]`, nearly."""

    def __init__(self, features: int, grid: SampleGrid, kernel: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        padding = (kernel[0] // 2, kernel[1] // 2)
        self.layer = nn.Conv2d(features, grid.shape[0] * math.prod(grid.finer), kernel, padding=padding)

    def count_macs(self, layout: FeatureLayout) -> int:
        """Multiply-accumulates of one sample."""
        return self.layer.weight.numel() * math.prod(layout.shape[1:])

    def forward(self, features: Tensor) -> Tensor:
        (channels, rows, columns), (down, across) = self.grid.shape, self.grid.finer
        found: Tensor = self.layer(features)
        if down * across == 1:
            return found
        parts = found.reshape(-1, channels, down, across, rows // down, columns // across)
        return parts.permute(0, 1, 4, 2, 5, 3).reshape(-1, channels, rows, columns)


def fit_reader(features: Tensor, samples: Tensor, layout: FeatureLayout) -> SampleReader | None:
    """Fit a reader to canonical features and their samples `[n, ...]`; None if it cannot tell most of a sample."""
    grid = find_grid(tuple(samples.shape[1:]), layout)
    if grid is None:
        return None
    kernel = (3 if layout.shape[1] > 1 else 1, 3)
    reader = SampleReader(layout.shape[0], grid, kernel)
    wanted = grid.to_grid(samples.float())
    count = min(READER_SAMPLES, len(features))
    inputs = unfold(features[:count], kernel, padding=(kernel[0] // 2, kernel[1] // 2)).transpose(1, 2).flatten(0, 1)
    (channels, rows, columns), (down, across) = grid.shape, grid.finer
    parts = wanted[:count].reshape(count, channels, rows // down, down, columns // across, across)
    targets = parts.permute(0, 2, 4, 1, 3, 5).reshape(len(inputs), -1).double()
    inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], 1).double()
    square = inputs.T @ inputs
    square += _RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=torch.float64)
    weights = torch.linalg.solve(square, inputs.T @ targets).T.float()
    with torch.no_grad():
        reader.layer.weight.copy_(weights[:, :-1].reshape(reader.layer.weight.shape))
        assert reader.layer.bias is not None
        reader.layer.bias.copy_(weights[:, -1])
        missed = (reader(features[-count:]) - wanted[-count:]).square().mean() / wanted[-count:].var()
    return reader.eval() if 1 - float(missed) >= LEAST_EXPLAINED else None
