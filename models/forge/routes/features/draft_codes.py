"""Transforms of one cut's features, fitted to training samples, and untaught codes of any size made with them.

Rule: nothing is taught here and the training part alone is read. Several transforms are fitted, and the one whose codes
change the given model's answers least on training samples is kept.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.forge.data.types import Data, Values
from models.forge.partition.cuts import Cut, TracedModel
from models.forge.partition.layout import FeatureLayout, find_layout
from models.forge.partition.split import SplitModel, run_head, split_model
from models.forge.routes.features.feature_codes import FeatureCoder, FeatureDecoder, FeatureReader, FeatureRestorer
from models.forge.routes.features.feature_transform import (
    UNWEIGHTED,
    WEIGHTED,
    TransformBasis,
    apply_modes,
    fit_basis,
    sample_gradients,
)
from models.forge.routes.features.step_rounding import PlaceGrid, StepRounding, fit_grid
from models.forge.training.modules import as_tuple

_FITTED, _INFORMED = 3000, 500  # training samples that the transform and its weights are fitted to
_MOST_VALUES = 24_000_000  # numbers held at once while fitting
_CHUNK = 128
_COMPARED = 384  # training samples on which transforms are compared
_COMPARED_BYTES = 128  # size of the codes with which they are


class FittedTransform(NamedTuple):
    """The transform of one cut's features.

    `rows` `[n, coefficients]`: of training samples.
    """

    reader: FeatureReader
    restorer: FeatureRestorer
    basis: TransformBasis
    rows: Tensor


class ShownSamples(NamedTuple):
    """Training samples `x`, and the head that makes features of them."""

    head: nn.Module
    x: Values

    def run_head(self) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """Batches of samples and their features."""
        for start in range(0, len(self.x), _CHUNK):
            part = torch.from_numpy(np.ascontiguousarray(self.x[start : start + _CHUNK]))
            with torch.no_grad():
                features = run_head(self.head, part)
            yield part, features


class CodesDraft(NamedTuple):
    """Coder and decoder in the making."""

    coder: FeatureCoder
    decoder: FeatureDecoder
    grid: PlaceGrid

    @torch.no_grad()
    def build_tables(self, shown: ShownSamples) -> bytes:
        """The codec's tables, from these samples."""
        coder = self.coder.eval()
        return self.grid.build_tables(torch.cat([coder(part, features, None) for part, features in shown.run_head()]))

    def refresh_rounding(self, shown: ShownSamples) -> None:
        """Round from now on as a codec fitted to the codes of these samples would."""
        self.coder.rounding = StepRounding(self.build_tables(shown))


def fit_feature_transform(traced: TracedModel, data: Data, cut: Cut, *, softness: float, seed: int) -> FittedTransform:
    """Fit transforms of a cut on training samples and keep the one whose codes lose least there.

    Tried: weighted by what the answer reads of the features, and unweighted. One serves all sizes of codes.
    """
    half, layout = split_model(traced, cut), find_layout(traced.gm, cut)
    shown = ShownSamples(half.head, data.training.x[0][choose_rows(len(data.training), seed)])
    source = FeatureReader(layout), FeatureRestorer(layout, find_limits(shown, layout))
    slopes = partial(sample_gradients, regressor=not data.labels, softness=softness, seed=seed)
    found = fit_source(half, shown, source, slopes)
    return min(found, key=lambda fit: measure_error(build_draft(fit, _COMPARED_BYTES), half, shown))


def find_limits(shown: ShownSamples, layout: FeatureLayout) -> tuple[float, float]:
    """The least and the largest feature."""
    few = shown._replace(x=shown.x[:_INFORMED])
    ends = [torch.stack(torch.aminmax(layout.to_canonical(*features))) for _, features in few.run_head()]
    return float(torch.stack(ends).min()), float(torch.stack(ends).max())


def fit_source(
    half: SplitModel,
    shown: ShownSamples,
    source: tuple[FeatureReader, FeatureRestorer],
    slopes: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor],
) -> Iterator[FittedTransform]:
    """Weighted and unweighted transform of what the source reads."""
    reader, restorer = source
    with torch.no_grad():
        first = reader(*next(iter(shown.run_head()))[1])
        count = max(_INFORMED, _MOST_VALUES // first[0].numel())
        seen = torch.cat([reader(*features) for _, features in shown._replace(x=shown.x[:count]).run_head()])
    gradients = slopes(
        lambda rows: as_tuple(half.tail(*as_tuple(restorer(rows))))[0], seen[:: max(1, len(seen) // _INFORMED)]
    )
    for damping in (WEIGHTED, UNWEIGHTED):
        with torch.no_grad():
            basis = fit_basis(seen, gradients, damping)
            rows = apply_modes(seen - basis.mean, basis.analysis).flatten(1)
        yield FittedTransform(reader, restorer, basis, rows)


def build_draft(fit: FittedTransform, max_bytes: int) -> CodesDraft:
    """Untaught codes of at most so many bytes, with modules of their own."""
    grid = fit_grid(fit.rows, max_bytes)
    reader, restorer = copy.deepcopy((fit.reader, fit.restorer))
    return CodesDraft(FeatureCoder(reader, fit.basis, grid), FeatureDecoder(restorer, fit.basis, grid), grid)


@torch.no_grad()
def measure_error(draft: CodesDraft, half: SplitModel, shown: ShownSamples) -> float:
    """Mean squared distance of answers through the codes from those without them, on some of the training samples."""
    few = shown._replace(x=shown.x[:_COMPARED])
    draft.refresh_rounding(few)
    coder, errors = draft.coder.train(), []
    for part, features in few.run_head():
        wanted = as_tuple(half.tail(*features))[0]
        found = as_tuple(half.tail(*as_tuple(draft.decoder(coder(part, features, None)))))[0]
        errors.append((found - wanted).square().mean(1))
    return float(torch.cat(errors).mean())


def choose_rows(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Training samples, of `count`, that transforms and tables are fitted to."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:_FITTED])
