"""Coder and decoder of transformed features: the device's linear transform and rounding, and the hub's way back.

Rule: both start as the fitted transform and its exact inverse, and every matrix may be taught further. The decoder
enters the given model at the cut itself, so nothing of the model is replaced.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from models.forge.partition.layout import FeatureLayout
from models.forge.routes.feature_transform import TransformBasis, apply_modes, count_transform_macs
from models.forge.routes.place_levels import PlaceLevels
from models.forge.training.bottleneck import round_straight_through


class FeatureCoder(nn.Module):
    """Coder: a cut's features -> codes `[n, k]`, whole floats in `0..levels - 1`; of a coefficient 0 the middle code.

    `macs`: multiply-accumulates of one sample.
    """

    mean: Tensor
    places: Tensor
    halves: Tensor

    def __init__(self, layout: FeatureLayout, basis: TransformBasis, levels: PlaceLevels) -> None:
        super().__init__()
        self.layout = layout
        axes, places = _bound_axes(basis, levels)
        self.analysis = nn.ParameterList(
            nn.Parameter(matrix[:kept].contiguous()) for matrix, kept in zip(basis.analysis, axes, strict=True)
        )
        self.finesse = nn.Parameter(1 / levels.steps)
        self.register_buffer("mean", basis.mean)
        self.register_buffer("places", places)
        self.register_buffer("halves", levels.halves)
        self.middle = levels.levels // 2
        self.macs = count_transform_macs(layout.shape, axes)

    def forward(self, _sample: Tensor, features: Sequence[Tensor], _hidden: Tensor) -> Tensor:
        scaled = self.scale_coefficients(features)
        rounded = round_straight_through(scaled) if self.training else torch.round(scaled)
        return torch.minimum(torch.maximum(rounded, -self.halves), self.halves) + self.middle

    def scale_coefficients(self, features: Sequence[Tensor]) -> Tensor:
        """Coefficients `[n, k]` in units of their steps, before they are rounded."""
        found = apply_modes(self.layout.to_canonical(*features).float() - self.mean, list(self.analysis))
        return found.flatten(1).index_select(1, self.places) * self.finesse


class FeatureDecoder(nn.Module):
    """Decoder: codes `[n, k]` -> the cut's features, one tensor or a tuple of them."""

    mean: Tensor
    sources: Tensor

    def __init__(
        self, layout: FeatureLayout, basis: TransformBasis, levels: PlaceLevels, *, above_zero: bool = False
    ) -> None:
        super().__init__()
        self.layout, self.above_zero = layout, above_zero
        self.axes, places = _bound_axes(basis, levels)
        self.synthesis = nn.ParameterList(
            nn.Parameter(matrix[:, :kept].contiguous()) for matrix, kept in zip(basis.synthesis, self.axes, strict=True)
        )
        self.steps = nn.Parameter(levels.steps.clone())
        self.mean = nn.Parameter(basis.mean.clone())
        sources = torch.full((int(np.prod(self.axes)),), len(places))  # a place that does not travel: the zero behind
        sources[places] = torch.arange(len(places))
        self.register_buffer("sources", sources)
        self.middle = levels.levels // 2

    def forward(self, codes: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = (codes - self.middle) * self.steps
        found = torch.cat([found, torch.zeros_like(found[:, :1])], 1).index_select(1, self.sources)
        found = apply_modes(found.reshape(-1, *self.axes), list(self.synthesis)) + self.mean
        return self.layout.from_canonical(torch.relu(found) if self.above_zero else found)


def _bound_axes(basis: TransformBasis, levels: PlaceLevels) -> tuple[tuple[int, ...], Tensor]:
    """How many axes of each mode the kept places reach, and the places among those alone."""
    whole = tuple(basis.deviations.shape)
    found = np.unravel_index(levels.kept.numpy(), whole)
    axes = tuple(int(one.max()) + 1 for one in found)
    return axes, torch.from_numpy(np.ravel_multi_index(found, axes).astype(np.int64))
