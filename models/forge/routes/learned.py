"""Learned codes of a cut's features: a linear transform fitted first, then taught together with what follows it.

Rule: head, trunk, early exit and gate of the device stay as they are; what is taught is the transform, the width of its
levels and the hub's layers. The start is a working path already (`models/forge/routes/feature_transform.py`), so
teaching improves it and need not find it. The loss counts most where the device would ask.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.forge.data.types import Data, Values
from models.forge.partition.cuts import Cut, TracedModel
from models.forge.partition.layout import FeatureLayout, find_layout
from models.forge.partition.split import run_head, split_model, split_shared
from models.forge.routes.feature_codes import FeatureCoder, FeatureDecoder
from models.forge.routes.feature_transform import TransformBasis, apply_modes, fit_basis, sample_gradients
from models.forge.routes.path_training import LearnedCourse, PathTrainer, ProgressCallback
from models.forge.routes.place_levels import count_payload, fit_levels
from models.forge.training.code_path import CodePath, Route
from models.forge.training.determinism import deterministic_torch
from models.forge.training.modules import TrainedModules
from models.runtime.codec_ans import build_ans_tables
from models.runtime.feature_codec import ANS

__all__ = ["FittedTransform", "LearnedCourse", "fit_feature_transform", "train_learned_path"]

_FITTED, _INFORMED = 2000, 500  # training samples that the transform and its weights are fitted to
_MOST_VALUES = 24_000_000  # features held at once while fitting
_CHUNK = 128
_WIDER, _WIDENINGS = 1.03, 40


def train_learned_path(
    traced: TracedModel,
    data: Data,
    cut: Cut,
    pieces: TrainedModules,
    *,
    max_bytes: int,
    course: LearnedCourse,
    tell: ProgressCallback,
    fitted: "FittedTransform | None" = None,
) -> CodePath:
    """Code path of at most about `max_bytes` over an edge that stays as it is, in evaluation mode.

    `pieces`: the trained edge, cut at `cut`. `fitted`: from `fit_feature_transform` for that cut, where several sizes
    are tried; None: fitted here. `tell(what, share)` reports progress. With the same `course.folder` a killed teaching
    goes on at its last whole epoch.
    """
    name = f"{'taught' if course.epochs else 'transform'}-{max_bytes}"
    with deterministic_torch(course.seed, course.threads):
        tell("fitting a transform", 0.0)
        fit = fitted or fit_feature_transform(traced, data, cut, course)
        coder, decoder = build_feature_codes(fit, max_bytes)
        half = split_model(traced, cut)
        if course.epochs:
            models = nn.ModuleDict({"coder": coder, "decoder": decoder, "tail": half.tail})
            PathTrainer(traced, data, pieces, models, course).run(name, tell)
        tables = _fit_payload(_Shown(half.head, data.training.x[0][fit.chosen]), coder, decoder, max_bytes)
    tell("taught", 1.0)
    return CodePath(
        name=name,
        route=Route.LEARNED,
        coder=coder.eval(),
        decoder=decoder.eval(),
        tail=half.tail.eval(),
        shape=(len(coder.places),),
        levels=2 * coder.middle + 1,
        codec=ANS,
        tables=tables,
    )


class FittedTransform(NamedTuple):
    """Transform of one cut's features, fitted to training samples.

    `chosen`: which samples `[n]`; `rows` `[n, coefficients]`: theirs; `above_zero`: no feature is ever negative.
    """

    layout: FeatureLayout
    basis: TransformBasis
    chosen: npt.NDArray[np.int64]
    rows: Tensor
    above_zero: bool


def fit_feature_transform(traced: TracedModel, data: Data, cut: Cut, course: LearnedCourse) -> FittedTransform:
    """Fit the transform of a cut: once for all sizes of its codes."""
    half, layout = split_shared(traced, cut), find_layout(traced.gm, cut)
    count = min(_FITTED, max(_INFORMED, _MOST_VALUES // math.prod(layout.shape)))
    chosen = np.sort(np.random.default_rng(course.seed).permutation(len(data.training))[:count])
    features = _collect_features(half.head, layout, data.training.x[0][chosen])
    slopes = sample_gradients(
        half.tail,
        layout,
        features[:: max(1, len(features) // _INFORMED)],
        regressor=not data.labels,
        softness=course.softness,
        seed=course.seed,
    )
    with torch.no_grad():
        basis = fit_basis(features, slopes)
        rows = apply_modes(features - basis.mean, basis.analysis).flatten(1)
    return FittedTransform(layout, basis, chosen, rows, bool(features.min() >= 0))


def build_feature_codes(fit: FittedTransform, max_bytes: int) -> tuple[FeatureCoder, FeatureDecoder]:
    """Untaught coder and decoder of codes that fit `max_bytes`."""
    levels = fit_levels(fit.rows, max_bytes)
    decoder = FeatureDecoder(fit.layout, fit.basis, levels, above_zero=fit.above_zero)
    return FeatureCoder(fit.layout, fit.basis, levels), decoder


class _Shown(NamedTuple):
    """Training samples `x`, and the head that makes features of them."""

    head: nn.Module
    x: Values


def _fit_payload(shown: _Shown, coder: FeatureCoder, decoder: FeatureDecoder, max_bytes: int) -> bytes:
    """Tables of the codes; steps are made wider as far as it takes for taught codes to fit again."""
    coder.eval()
    for _ in range(_WIDENINGS):
        codes = _run_coder(shown, coder)
        if count_payload(codes, 2 * coder.middle + 1) <= max_bytes:
            break
        with torch.no_grad():
            coder.finesse.div_(_WIDER)
            decoder.steps.mul_(_WIDER)
    return build_ans_tables(codes.to(torch.uint8).numpy(), 2 * coder.middle + 1)


@torch.no_grad()
def _run_coder(shown: _Shown, coder: FeatureCoder) -> Tensor:
    parts = [torch.from_numpy(np.ascontiguousarray(shown.x[i : i + _CHUNK])) for i in range(0, len(shown.x), _CHUNK)]
    return torch.cat([coder(part, run_head(shown.head, part), part) for part in parts])


@torch.no_grad()
def _collect_features(head: nn.Module, layout: FeatureLayout, x: np.ndarray[Any, Any]) -> Tensor:
    parts = [torch.from_numpy(np.ascontiguousarray(x[i : i + _CHUNK])) for i in range(0, len(x), _CHUNK)]
    return torch.cat([layout.to_canonical(*run_head(head, part)).float() for part in parts])
