"""Learned codes of a cut's features: a linear transform fitted first, then taught together with what follows it.

Rule: head, trunk, early exit and gate of the device stay as they are; what is taught is the transform, the width of its
levels and the hub's layers. The start is a working path already (`models/forge/routes/feature_transform.py`), so
teaching improves it and need not find it. The loss counts most where the device would ask.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.forge import cache
from models.forge.data.types import Data
from models.forge.partition.cuts import Cut, TracedModel
from models.forge.partition.layout import FeatureLayout, find_layout
from models.forge.partition.split import SplitModel, run_head, split_model
from models.forge.routes.feature_codes import FeatureCoder, FeatureDecoder
from models.forge.routes.feature_transform import apply_modes, fit_basis, sample_gradients
from models.forge.routes.place_levels import count_payload, fit_levels
from models.forge.training.calibration import fit_temperature
from models.forge.training.code_path import CodePath, Route
from models.forge.training.determinism import deterministic_torch
from models.forge.training.distillation import DistillationConfig, build_loss_config, choose_batch
from models.forge.training.losses import LossConfig, distillation_loss
from models.forge.training.modules import TrainedModules, as_tuple
from models.forge.training.teacher import AugmentFunction, TeacherAnswers, choose_execution, predict_batches
from models.runtime.codec_ans import build_ans_tables
from models.runtime.feature_codec import ANS

ProgressCallback = Callable[[str, float], None]
STATE = "learned.safetensors"
_FITTED, _INFORMED = 2000, 500  # training samples that the transform and its weights are fitted to
_MOST_VALUES = 24_000_000  # features held at once while fitting
_CHUNK = 128
_WIDER, _WIDENINGS = 1.03, 40
_MEASURED = 512


class LearnedCourse(NamedTuple):
    """How learned codes are taught. `epochs` 0: not at all, the fitted transform ships as it is.

    `rate`: highest learning rate of the transform; `given`: factor on it for the given model's own layers. `doubt`:
    weight of a sample that the hub answers no better than the device, beside 1 for one that it always answers better.
    `tightness`: weight of coding more than the start did. `folder`: for checkpoints.
    """

    epochs: int = 3
    batch: int = 256
    rate: float = 1e-3
    given: float = 0.5
    doubt: float = 0.3
    tightness: float = 1.0
    softness: float = 3.0
    hard_weight: float = 0.3
    copies: int = 2
    seed: int = 0
    threads: int = 1
    augment: AugmentFunction | None = None
    folder: Path | None = None


def train_learned_path(
    traced: TracedModel,
    data: Data,
    cut: Cut,
    pieces: TrainedModules,
    *,
    max_bytes: int,
    course: LearnedCourse,
    tell: ProgressCallback,
) -> CodePath:
    """Code path of at most about `max_bytes` over an edge that stays as it is, in evaluation mode.

    `pieces`: the trained edge, cut at `cut`. `tell(what, share)` reports progress. With the same `course.folder` a
    killed teaching goes on at its last whole epoch.
    """
    with deterministic_torch(course.seed, course.threads):
        half, layout = split_model(traced, cut), find_layout(traced.gm, cut)
        tell("fitting a transform", 0.0)
        coder, decoder = fit_transform_codes(data, half, layout, max_bytes, course)
        models = nn.ModuleDict({"coder": coder, "decoder": decoder, "tail": half.tail})
        if course.epochs:
            _PathTrainer(traced, data, pieces, models, course).run(tell)
            _widen_steps(data, half.head, coder, decoder, max_bytes)
        tables = _build_tables(data, half.head, coder)
    tell("taught", 1.0)
    return CodePath(
        name=f"{'taught' if course.epochs else 'transform'}-{max_bytes}",
        route=Route.LEARNED,
        coder=coder.eval(),
        decoder=decoder.eval(),
        tail=half.tail.eval(),
        shape=(len(coder.places),),
        levels=2 * coder.middle + 1,
        codec=ANS,
        tables=tables,
    )


def fit_transform_codes(
    data: Data, half: SplitModel, layout: FeatureLayout, max_bytes: int, course: LearnedCourse
) -> tuple[FeatureCoder, FeatureDecoder]:
    """Untaught coder and decoder within `max_bytes`: transform and levels by place, fitted to training samples."""
    count = min(_FITTED, max(_INFORMED, _MOST_VALUES // math.prod(layout.shape)))
    chosen = np.random.default_rng(course.seed).permutation(len(data.training))[:count]
    features = _collect_features(half.head, layout, data.training.x[0][np.sort(chosen)])
    slopes = sample_gradients(
        half.tail,
        layout,
        features[:_INFORMED],
        regressor=not data.labels,
        softness=course.softness,
        seed=course.seed,
    )
    with torch.no_grad():
        basis = fit_basis(features, slopes)
        rows = apply_modes(features - basis.mean, basis.analysis).flatten(1)
        levels = fit_levels(rows, max_bytes)
    above_zero = bool(features.min() >= 0)
    return FeatureCoder(layout, basis, levels), FeatureDecoder(layout, basis, levels, above_zero=above_zero)


def _widen_steps(data: Data, head: nn.Module, coder: FeatureCoder, decoder: FeatureDecoder, max_bytes: int) -> None:
    """Make all steps of taught codes wider, as far as it takes for them to fit again."""
    coder.eval()
    for _ in range(_WIDENINGS):
        codes = _run_coder(head, coder, data.training.x[0][:_FITTED])
        if count_payload(codes, 2 * coder.middle + 1) <= max_bytes:
            return
        with torch.no_grad():
            coder.finesse.div_(_WIDER)
            decoder.steps.mul_(_WIDER)


def _build_tables(data: Data, head: nn.Module, coder: FeatureCoder) -> bytes:
    codes = _run_coder(head, coder.eval(), data.training.x[0][:_FITTED])
    return build_ans_tables(codes.to(torch.uint8).numpy(), 2 * coder.middle + 1)


@torch.no_grad()
def _run_coder(head: nn.Module, coder: FeatureCoder, x: np.ndarray[Any, Any]) -> Tensor:
    parts = [torch.from_numpy(np.ascontiguousarray(x[i : i + _CHUNK])) for i in range(0, len(x), _CHUNK)]
    return torch.cat([coder(part, run_head(head, part), part) for part in parts])


@torch.no_grad()
def _collect_features(head: nn.Module, layout: FeatureLayout, x: np.ndarray[Any, Any]) -> Tensor:
    parts = [torch.from_numpy(np.ascontiguousarray(x[i : i + _CHUNK])) for i in range(0, len(x), _CHUNK)]
    return torch.cat([layout.to_canonical(*run_head(head, part)).float() for part in parts])


def expected_gains(answers: Tensor, local: Tensor, aim: LossConfig, warmth: float) -> Tensor:
    """How much better the given model is expected to answer each sample than the device, `[n]`, in 0..1.

    Of a classifier: the probability of the model's label less that of the device's label, by the model's own
    probabilities at temperature `warmth`. Of a regressor: how far apart the two values are, 1 from half a spread on.
    """
    if not aim.labels:
        apart = (answers.reshape(len(answers), -1)[:, 0] - local[:, 0]).abs() / aim.spread
        return (2 * apart).clamp(max=1)
    chances = torch.softmax(answers / warmth, 1)
    return chances.amax(1) - chances.gather(1, local.argmax(1, keepdim=True))[:, 0]


class _PathTrainer:
    """One training of a path. Owns the optimiser, the schedule and the checkpoint."""

    def __init__(
        self,
        traced: TracedModel,
        data: Data,
        pieces: TrainedModules,
        models: nn.ModuleDict,
        course: LearnedCourse,
    ) -> None:
        self._pieces, self._models, self._course = pieces, models, course
        self._aim = build_loss_config(
            data, DistillationConfig(softness=course.softness, hard_weight=course.hard_weight)
        )
        self._y = torch.from_numpy(np.ascontiguousarray(data.training.y))
        x = data.training.x[0]
        self._answers = TeacherAnswers(traced.gm, x, course.augment, course.seed, course.folder)
        self._speed = choose_execution(traced.gm, torch.from_numpy(x[:2]))
        self._warmth = _fit_warmth(traced, data)
        self._middle = float(models["coder"].middle)  # type: ignore[arg-type]  # a number, not a module
        self._start_bits = self._measure_bits()
        fresh = [*models["coder"].parameters(), *models["decoder"].parameters()]
        given = [weight for weight in models["tail"].parameters() if weight.requires_grad]
        groups = [{"params": fresh, "top": course.rate}, {"params": given, "top": course.rate * course.given}]
        self._optimiser = torch.optim.AdamW([group for group in groups if group["params"]], lr=course.rate)

    def run(self, tell: ProgressCallback) -> None:
        course = self._course
        path = course.folder / STATE if course.folder else None
        done = cache.load_checkpoint(path, self._models, self._optimiser) if path else 0
        for epoch in range(done, course.epochs):
            loss = self._run_epoch(epoch)
            if path:
                cache.save_checkpoint(path, self._models, self._optimiser, epoch + 1)
            tell(f"teaching codes, loss {loss:.3f}", (epoch + 1) / course.epochs)

    def _run_epoch(self, epoch: int) -> float:
        course = self._course
        lesson = self._answers.load_copy(epoch % max(1, course.copies))
        order = torch.randperm(len(self._y), generator=torch.Generator().manual_seed(course.seed * 1009 + epoch))
        size = choose_batch(len(order), course.batch)
        steps = max(1, len(order) // size)
        total = 0.0
        self._models.train()
        for step in range(steps):
            chosen = order[step * size : (step + 1) * size]
            self._set_rate((epoch + step / steps) / course.epochs)
            batch = self._speed.arrange(lesson.x[chosen])
            with self._speed.autocast():
                loss = self._compute_loss(batch, lesson.answers[chosen], self._y[chosen])
            self._optimiser.zero_grad()
            if torch.isfinite(loss):  # a batch of NaN loss would spoil every weight
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self._models.parameters(), 5.0)
                self._optimiser.step()
            total += loss.item()
        self._models.eval()
        return total / steps

    def _compute_loss(self, batch: Tensor, answers: Tensor, y: Tensor) -> Tensor:
        pieces, course, coder = self._pieces, self._course, self._models["coder"]
        with torch.no_grad():
            features = as_tuple(pieces.head(batch))
            local = pieces.exit(batch) if pieces.separate else pieces.exit(pieces.encoder.trunk(*features))
            gains = expected_gains(answers, local.float(), self._aim, self._warmth)
        codes = coder(batch, features, None)
        outputs = as_tuple(self._models["tail"](*as_tuple(self._models["decoder"](codes))))[0]
        loss = distillation_loss(outputs, answers, y, self._aim, course.doubt + (1 - course.doubt) * gains)
        excess = _estimate_bits(codes, self._middle) / self._start_bits - 1
        return loss + course.tightness * torch.relu(excess)

    @torch.no_grad()
    def _measure_bits(self) -> float:
        """Estimated bits of the first samples' codes before anything was taught."""
        x = self._answers.load_copy(0).x[:_MEASURED]
        features = as_tuple(self._pieces.head(x))
        return max(1e-6, float(_estimate_bits(self._models["coder"](x, features, None), self._middle)))

    def _set_rate(self, share: float) -> None:
        """Learning rate: up for a tenth of the time, then down to nothing along a cosine."""
        rise = 0.1
        height = share / rise if share < rise else 0.5 * (1 + math.cos(math.pi * (share - rise) / (1 - rise)))
        for group in self._optimiser.param_groups:
            group["lr"] = group["top"] * max(height, 0.02)


def _estimate_bits(codes: Tensor, middle: float) -> Tensor:
    """Mean over samples of a smooth stand-in for the length of their codes; only its changes mean something."""
    return torch.log2(1 + (codes - middle).abs()).sum(1).mean()


def _fit_warmth(traced: TracedModel, data: Data) -> float:
    """Temperature at which the given model's probabilities are true on the calibration part; 1 for a regressor."""
    if not data.labels:
        return 1.0
    known = data.calibration.y >= 0
    answers = predict_batches(traced.gm, data.calibration.x[0][known]).numpy()
    return fit_temperature(answers, data.calibration.y[known])
