"""The sample itself by a transform that is weighted by what the given model reads of it, axis by axis.

Rule: the sample's own label, as of all codes of the sample. Weighting spends the bytes on what changes answers: at the
same payload it lost half as much as a plain transform on pictures of clothing (300 B: 0.6 points against 1.3).
"""

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from models.forge.data.types import Data
from models.forge.partition.cuts import TracedModel
from models.forge.partition.layout import AxisOrder, FeatureLayout
from models.forge.partition.split import SplitModel
from models.forge.routes.features.draft_codes import (
    FittedTransform,
    ShownSamples,
    build_draft,
    choose_rows,
    find_limits,
    fit_source,
)
from models.forge.routes.features.feature_codes import FeatureReader, FeatureRestorer
from models.forge.routes.features.feature_transform import sample_gradients
from models.forge.routes.sample.transform_code import LEVELS
from models.forge.training.code_path import CodePath, Route
from models.runtime.feature_codec import ANS_STEPS
from wire.protocol.messages import SensitivityLevel

WEIGHTED_SAMPLE = "sample-weighted-"  # what names of these paths begin with; the payload in bytes follows
MOST_SAMPLE_VALUES = 16_384


def fit_sample_transform(traced: TracedModel, data: Data, *, softness: float, seed: int) -> FittedTransform | None:
    """Fit the transform on training samples.

    None for samples that are no pictures and no sequences of floats, and for those of more than `MOST_SAMPLE_VALUES`.
    """
    x = data.training.x[0]
    layout = _find_sample_layout(tuple(x.shape[1:]))
    if x.dtype.kind != "f" or layout is None or math.prod(layout.shape) > MOST_SAMPLE_VALUES:
        return None
    half = SplitModel(nn.Identity(), traced.gm)  # type: ignore[arg-type]  # nothing comes before the sample
    shown = ShownSamples(half.head, x[choose_rows(len(x), seed)])
    source = FeatureReader(layout), FeatureRestorer(layout, find_limits(shown, layout))
    slopes = partial(sample_gradients, regressor=not data.labels, softness=softness, seed=seed)
    return next(fit_source(half, shown, source, slopes))


def _find_sample_layout(shape: tuple[int, ...]) -> FeatureLayout | None:
    """Layout of a picture `[channels, rows, columns]` or a sequence `[length, channels]`; None for all others."""
    if len(shape) == 3:
        return FeatureLayout(AxisOrder.GRID, (shape,), shape)
    if len(shape) == 2 and min(shape) > 1:
        return FeatureLayout(AxisOrder.CHANNELS_LAST, (shape,), (shape[1], 1, shape[0]))
    return None


def build_weighted_path(
    traced: TracedModel, data: Data, fitted: FittedTransform, max_bytes: int, level: SensitivityLevel
) -> CodePath:
    """Code path of at most `max_bytes` by a transform of `fit_sample_transform`, under this label."""
    x = data.training.x[0]
    draft = build_draft(fitted, max_bytes)
    return CodePath(
        name=f"{WEIGHTED_SAMPLE}{max_bytes}",
        route=Route.SAMPLE,
        coder=_SampleFeatures(draft.coder).eval(),
        decoder=draft.decoder.eval(),
        tail=traced.gm,
        shape=(len(draft.grid.kept),),
        levels=LEVELS,
        level=level,
        codec=ANS_STEPS,
        tables=draft.build_tables(ShownSamples(nn.Identity(), x[choose_rows(len(x), 0)])),
    )


class _SampleFeatures(nn.Module):
    """Coder of features that is given the sample in their place."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, sample: Tensor, _features: Sequence[Tensor], hidden: Tensor) -> Tensor:
        codes: Tensor = self.inner(sample, (sample,), hidden)
        return codes
