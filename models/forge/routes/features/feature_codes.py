"""Coder and decoder of transformed features: the device's linear transform and rounding, and the hub's way back.

Rule: both start as the fitted transform and its inverse, and every matrix may be taught further. The decoder enters the
given model at the cut itself, so nothing of the model is replaced.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from models.forge.partition.layout import FeatureLayout
from models.forge.routes.features.feature_transform import TransformBasis, apply_modes, count_transform_macs
from models.forge.routes.features.step_rounding import PlaceGrid, StepRounding
from models.forge.routes.sample.transform_code import CENTRE, LEVELS


class FeatureReader(nn.Module):
    """What is transformed: the canonical form of a cut's features, as float32."""

    def __init__(self, layout: FeatureLayout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, *features: Tensor) -> Tensor:
        return self.layout.to_canonical(*features).float()


class FeatureRestorer(nn.Module):
    """The way back from what was transformed to the cut's features, one tensor or a tuple of them.

    `limits`: least and largest value that is ever right.
    """

    def __init__(self, layout: FeatureLayout, limits: tuple[float, float]) -> None:
        super().__init__()
        self.layout, self.limits = layout, limits

    def forward(self, rows: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.layout.from_canonical(rows.reshape(-1, *self.layout.shape).clamp(*self.limits))


class FeatureCoder(nn.Module):
    """Coder: a cut's features -> codes `[n, k]` on the fine grid, whole floats; of a coefficient 0 the middle code.

    While it is taught it rounds as `rounding` does, which is as the codec will. `macs`: multiply-accumulates of one
    sample.
    """

    mean: Tensor
    places: Tensor

    def __init__(self, reader: FeatureReader, basis: TransformBasis, grid: PlaceGrid) -> None:
        super().__init__()
        self.reader = reader
        axes, places = _bound_axes(basis, grid)
        self.analysis = nn.ParameterList(
            nn.Parameter(matrix[:kept].clone()) for matrix, kept in zip(basis.analysis, axes, strict=True)
        )
        self.finesse = nn.Parameter(1 / grid.grids)
        self.register_buffer("mean", basis.mean.clone())
        self.register_buffer("places", places)
        self.rounding: StepRounding | None = None
        self.macs = count_transform_macs(basis.mean.shape[1:], axes)

    def forward(self, _sample: Tensor | None, features: Sequence[Tensor], _hidden: Tensor | None) -> Tensor:
        found = apply_modes(self.reader(*features) - self.mean, list(self.analysis))
        scaled = found.flatten(1).index_select(1, self.places) * self.finesse
        rounded = self.rounding(scaled) if self.training and self.rounding else torch.round(scaled)
        return rounded.clamp(-CENTRE, LEVELS - 1 - CENTRE) + CENTRE

    def count_steps(self, codes: Tensor) -> Tensor:
        """Codes of the latest batch in units of the step that each sample was rounded to, around 0."""
        return (codes - CENTRE) / self.rounding.multiples if self.rounding else codes - CENTRE


class FeatureDecoder(nn.Module):
    """Decoder: codes `[n, k]` -> the cut's features, one tensor or a tuple of them."""

    sources: Tensor

    def __init__(self, restorer: FeatureRestorer, basis: TransformBasis, grid: PlaceGrid) -> None:
        super().__init__()
        self.restorer = restorer
        self.axes, places = _bound_axes(basis, grid)
        self.synthesis = nn.ParameterList(
            nn.Parameter(matrix[:, :kept].clone()) for matrix, kept in zip(basis.synthesis, self.axes, strict=True)
        )
        self.grids = nn.Parameter(grid.grids.clone())
        self.mean = nn.Parameter(basis.mean.clone())
        sources = torch.full((int(np.prod(self.axes)),), len(places))  # a place that does not travel: the zero behind
        sources[places] = torch.arange(len(places))
        self.register_buffer("sources", sources)

    def forward(self, codes: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = (codes - CENTRE) * self.grids
        found = torch.cat([found, torch.zeros_like(found[:, :1])], 1).index_select(1, self.sources)
        restored: Tensor | tuple[Tensor, ...] = self.restorer(
            apply_modes(found.reshape(-1, *self.axes), list(self.synthesis)) + self.mean
        )
        return restored


def _bound_axes(basis: TransformBasis, grid: PlaceGrid) -> tuple[tuple[int, ...], Tensor]:
    """How many axes of each mode the kept places reach, and the places among those alone."""
    found = np.unravel_index(grid.kept.numpy(), tuple(basis.deviations.shape))
    axes = tuple(int(one.max()) + 1 for one in found)
    return axes, torch.from_numpy(np.ravel_multi_index(found, axes).astype(np.int64))
