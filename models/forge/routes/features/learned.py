"""Learned codes of a cut's features: a linear transform fitted first, then taught together with what follows it.

Rule: head, trunk, early exit and gate of the device stay as they are; what is taught is the transform, the width of its
levels and the hub's layers. The start is a working path already (`models/forge/routes/features/feature_transform.py`),
so teaching improves it and need not find it. The loss counts most where the device would ask.
"""

from typing import NamedTuple

from torch import nn

from models.forge.data.types import Data
from models.forge.partition.cuts import Cut, TracedModel
from models.forge.partition.split import split_model
from models.forge.routes.features.draft_codes import (
    FittedTransform,
    ShownSamples,
    build_draft,
    choose_rows,
    fit_feature_transform,
)
from models.forge.routes.features.path_training import LearnedCourse, PathTrainer, ProgressCallback
from models.forge.routes.sample.transform_code import LEVELS
from models.forge.training.code_path import CodePath, Route
from models.forge.training.determinism import deterministic_torch
from models.forge.training.modules import TrainedModules
from models.runtime.feature_codec import ANS_STEPS

TAUGHT, UNTAUGHT = "taught-", "transform-"  # what names of paths begin with; the payload in bytes follows


class TrainedEdge(NamedTuple):
    """The given model, its data, and the modules trained for one cut of it.

    `fitted`: from `fit_feature_transform` for that cut, where several sizes are tried; None: fitted for each.
    """

    traced: TracedModel
    data: Data
    cut: Cut
    pieces: TrainedModules
    fitted: FittedTransform | None = None


def train_learned_path(edge: TrainedEdge, *, max_bytes: int, course: LearnedCourse, tell: ProgressCallback) -> CodePath:
    """Code path of at most about `max_bytes` over an edge that stays as it is, in evaluation mode.

    `tell(what, share)` reports progress. With the same `course.folder` a killed teaching goes on at its last whole
    epoch.
    """
    traced, data, cut, pieces, fitted = edge
    name = f"{TAUGHT if course.epochs else UNTAUGHT}{max_bytes}"
    with deterministic_torch(course.seed, course.threads):
        tell("fitting a transform", 0.0)
        half = split_model(traced, cut)
        shown = ShownSamples(half.head, data.training.x[0][choose_rows(len(data.training), course.seed)])
        fit = fitted or fit_feature_transform(traced, data, cut, softness=course.softness, seed=course.seed)
        draft = build_draft(fit, max_bytes)
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
