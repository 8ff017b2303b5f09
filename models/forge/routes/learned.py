"""Learned codes of a cut's features: a linear transform fitted first, then taught together with what follows it.

Rule: head, trunk, early exit and gate of the device stay as they are; what is taught is the transform, the width of its
levels and the hub's layers. The start is a working path already (`models/forge/routes/feature_transform.py`), so
teaching improves it and need not find it. The loss counts most where the device would ask.
"""

import copy
import math
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
from models.forge.routes.feature_codes import FeatureCoder, FeatureDecoder, FeatureReader, FeatureRestorer
from models.forge.routes.feature_transform import TransformBasis, apply_modes, fit_basis, sample_gradients
from models.forge.routes.path_training import LearnedCourse, PathTrainer, ProgressCallback
from models.forge.routes.sample_code import LEVELS
from models.forge.routes.sample_reader import fit_reader
from models.forge.routes.step_rounding import PlaceGrid, StepRounding, fit_grid
from models.forge.routes.transforms import MAX_JOINT_VALUES
from models.forge.training.code_path import CodePath, Route
from models.forge.training.determinism import deterministic_torch
from models.forge.training.modules import TrainedModules, as_tuple
from models.runtime.feature_codec import ANS_STEPS

__all__ = ["FittedTransform", "LearnedCourse", "fit_feature_transform", "train_learned_path"]

_FITTED, _INFORMED = 2000, 500  # training samples that the transform and its weights are fitted to
_MOST_VALUES = 24_000_000  # features held at once while fitting
_CHUNK = 128
_COMPARED = 384  # training samples on which transforms are compared
TAUGHT, UNTAUGHT = "taught-", "transform-"  # what names of paths begin with; the payload in bytes follows


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

    `pieces`: the trained edge, cut at `cut`. `fitted`: from `fit_feature_transform` for that cut, where several
    sizes are tried; None: fitted here. `tell(what, share)` reports progress. With the same `course.folder` a killed
    teaching goes on at its last whole epoch.
    """
    name = f"{TAUGHT if course.epochs else UNTAUGHT}{max_bytes}"
    with deterministic_torch(course.seed, course.threads):
        tell("fitting a transform", 0.0)
        half = split_model(traced, cut)
        shown = _Shown(half.head, data.training.x[0][_choose_rows(data, course.seed)])
        draft = _choose_draft(fitted or fit_feature_transform(traced, data, cut, course), half, shown, max_bytes)
        if course.epochs:
            models = nn.ModuleDict({"coder": draft.coder, "decoder": draft.decoder, "tail": half.tail})
            trainer = PathTrainer(traced, data, pieces, models, course)
            trainer.run(name, lambda: draft.refresh_rounding(shown), tell)
        tables = draft.build_tables(shown)
    tell("taught", 1.0)
    return CodePath(
        name=name,
        route=Route.LEARNED,
        coder=draft.coder.eval(),
        decoder=draft.decoder.eval(),
        tail=half.tail.eval(),
        shape=(len(draft.grid.kept),),
        levels=LEVELS,
        codec=ANS_STEPS,
        tables=tables,
    )


class TransformCandidate(NamedTuple):
    """One transform of a cut's features, fitted to training samples; `rows` `[n, coefficients]`: theirs."""

    reader: FeatureReader
    restorer: FeatureRestorer
    basis: TransformBasis
    rows: Tensor


class FittedTransform(NamedTuple):
    """The transforms of one cut: of its features, and of the sample where it can be read from them."""

    candidates: tuple[TransformCandidate, ...]


class _Shown(NamedTuple):
    """Training samples `x`, and the head that makes features of them."""

    head: nn.Module
    x: Values


class _Draft(NamedTuple):
    """Coder and decoder in the making."""

    coder: FeatureCoder
    decoder: FeatureDecoder
    grid: PlaceGrid

    def build_tables(self, shown: _Shown) -> bytes:
        """The codec's tables, from these samples."""
        return self.grid.build_tables(_run_coder(shown, self.coder.eval()))

    def refresh_rounding(self, shown: _Shown) -> None:
        """Round from now on as a codec fitted to the codes of these samples would."""
        self.coder.rounding = StepRounding(self.build_tables(shown))


def fit_feature_transform(traced: TracedModel, data: Data, cut: Cut, course: LearnedCourse) -> FittedTransform:
    """Fit the transforms of a cut, once for all sizes of its codes: of its features, and of the sample read from it."""
    half, layout = split_model(traced, cut), find_layout(traced.gm, cut)
    x = data.training.x[0][_choose_rows(data, course.seed)]
    features = _collect_features(half.head, layout, x[: max(_INFORMED, _MOST_VALUES // math.prod(layout.shape))])
    limits = (float(features.min()), float(features.max()))
    fit = partial(_fit_one, half, features, course, regressor=not data.labels)
    found = [fit(FeatureReader(layout), FeatureRestorer(layout, limits, None, None))]
    reader = fit_reader(features, torch.from_numpy(x[: len(features)]), layout) if x.dtype.kind == "f" else None
    if reader is None:
        return FittedTransform(tuple(found))
    joint = math.prod(reader.grid.shape) <= MAX_JOINT_VALUES
    limits = (float(x.min()), float(x.max()))
    head = copy.deepcopy(half.head)
    restorer = FeatureRestorer(layout, limits, reader.grid, head)
    return FittedTransform((*found, fit(FeatureReader(layout, reader, joint=joint), restorer)))


def _fit_one(
    half: SplitModel,
    features: Tensor,
    course: LearnedCourse,
    reader: FeatureReader,
    restorer: FeatureRestorer,
    *,
    regressor: bool,
) -> TransformCandidate:
    def answer(rows: Tensor) -> Tensor:
        return as_tuple(half.tail(*as_tuple(restorer(rows))))[0]

    with torch.no_grad():
        parts = torch.split(features, _CHUNK)
        seen = torch.cat([reader(*as_tuple(reader.layout.from_canonical(part))) for part in parts])
    slopes = sample_gradients(
        answer,
        seen[:: max(1, len(seen) // _INFORMED)],
        regressor=regressor,
        softness=course.softness,
        seed=course.seed,
    )
    with torch.no_grad():
        basis = fit_basis(seen, slopes)
        rows = apply_modes(seen - basis.mean, basis.analysis).flatten(1)
    return TransformCandidate(reader, restorer, basis, rows)


def _choose_draft(fit: FittedTransform, half: SplitModel, shown: _Shown, max_bytes: int) -> _Draft:
    """Untaught codes of `max_bytes` by each transform; those whose answers come nearest on training samples."""
    drafts = [_build_draft(one, max_bytes) for one in fit.candidates]
    return min(drafts, key=lambda draft: _measure_error(draft, half, shown)) if len(drafts) > 1 else drafts[0]


def _build_draft(fit: TransformCandidate, max_bytes: int) -> _Draft:
    grid = fit_grid(fit.rows, max_bytes)
    reader, restorer = copy.deepcopy((fit.reader, fit.restorer))
    return _Draft(FeatureCoder(reader, fit.basis, grid), FeatureDecoder(restorer, fit.basis, grid), grid)


@torch.no_grad()
def _measure_error(draft: _Draft, half: SplitModel, shown: _Shown) -> float:
    """Mean squared distance of answers through the codes from those without them, by each output's spread."""
    few = shown._replace(x=shown.x[:_COMPARED])
    coder = draft.coder
    coder.rounding = StepRounding(draft.build_tables(few))
    wanted, found = [], []
    for part in _split_batches(few.x):
        features = run_head(half.head, part)
        codes = coder.train()(part, features, None)
        found.append(as_tuple(half.tail(*as_tuple(draft.decoder(codes))))[0])
        wanted.append(as_tuple(half.tail(*features))[0])
    return float((torch.cat(found) - torch.cat(wanted)).square().mean())


def _choose_rows(data: Data, seed: int) -> npt.NDArray[np.int64]:
    """Training samples that transforms and tables are fitted to."""
    return np.sort(np.random.default_rng(seed).permutation(len(data.training))[:_FITTED])


def _split_batches(x: Values) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(x[i : i + _CHUNK])) for i in range(0, len(x), _CHUNK)]


@torch.no_grad()
def _run_coder(shown: _Shown, coder: FeatureCoder) -> Tensor:
    return torch.cat([coder(part, run_head(shown.head, part), None) for part in _split_batches(shown.x)])


@torch.no_grad()
def _collect_features(head: nn.Module, layout: FeatureLayout, x: Values) -> Tensor:
    return torch.cat([layout.to_canonical(*run_head(head, part)).float() for part in _split_batches(x)])
