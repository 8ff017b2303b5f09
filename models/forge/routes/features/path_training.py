"""Training of a code path: the coder, the decoder and the hub's layers, with the given model as teacher.

Rule: nothing of the edge is changed, and only the training part is learned from. Samples count by what asking the hub
would gain there. A killed training goes on at its last epoch.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.forge import cache
from models.forge.data.types import Data
from models.forge.partition.cuts import TracedModel
from models.forge.routes.features.feature_codes import FeatureCoder
from models.forge.training.calibration import fit_temperature
from models.forge.training.distillation import DistillationConfig, build_loss_config, choose_batch
from models.forge.training.leakage_penalty import LeakagePenalty, penalty_share
from models.forge.training.losses import LossConfig, distillation_loss
from models.forge.training.modules import TrainedModules, as_tuple
from models.forge.training.teacher import AugmentFunction, TeacherAnswers, choose_execution, predict_batches

ProgressCallback = Callable[[str, float], None]


class LearnedCourse(NamedTuple):
    """How learned codes are taught. `epochs` 0: not at all, the fitted transform ships as it is.

    `rate`: highest learning rate of the transform; `given`: factor on it for the given model's own layers. `doubt`:
    weight of a sample that the hub answers no better than the device, beside 1 for one that it always answers better.
    `leakage_weight`: of a bit that a code tells beyond the label (`LeakagePenalty`), 0: none counts. `folder`: for
    checkpoints.
    """

    epochs: int = 3
    batch: int = 256
    rate: float = 1e-3
    given: float = 0.5
    doubt: float = 0.3
    leakage_weight: float = 0.0
    softness: float = 3.0
    hard_weight: float = 0.3
    copies: int = 2
    seed: int = 0
    threads: int = 1
    augment: AugmentFunction | None = None
    folder: Path | None = None


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


class PathTrainer:
    """One training of a path. Owns the optimiser, the schedule and the checkpoint.

    `models`: "coder", "decoder" and "tail", trained in place.
    """

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
        self._penalty = LeakagePenalty(course.leakage_weight, self._aim.labels) if course.leakage_weight else None
        fresh = [*models["coder"].parameters(), *models["decoder"].parameters()]
        given = [weight for weight in models["tail"].parameters() if weight.requires_grad]
        groups = [{"params": fresh, "top": course.rate}, {"params": given, "top": course.rate * course.given}]
        self._optimiser = torch.optim.AdamW([group for group in groups if group["params"]], lr=course.rate)

    def run(self, name: str, refresh: Callable[[], None], tell: ProgressCallback) -> None:
        """Train for all epochs that are not done yet.

        `name`: of the checkpoint in the course's folder; `refresh` is called before each epoch.
        """
        course = self._course
        path = course.folder / f"{name}.safetensors" if course.folder else None
        done = cache.load_checkpoint(path, self._models, self._optimiser) if path else 0
        for epoch in range(done, course.epochs):
            refresh()
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
                loss = self._compute_loss(batch, lesson.answers[chosen], self._y[chosen], epoch)
            self._optimiser.zero_grad()
            if torch.isfinite(loss):  # a batch of NaN loss would spoil every weight
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self._models.parameters(), 5.0)
                self._optimiser.step()
            total += loss.item()
        self._models.eval()
        return total / steps

    def _compute_loss(self, batch: Tensor, answers: Tensor, y: Tensor, epoch: int) -> Tensor:
        pieces, course, coder = self._pieces, self._course, self._models["coder"]
        with torch.no_grad():
            features = as_tuple(pieces.head(batch))
            local = pieces.exit(batch) if pieces.separate else pieces.exit(pieces.encoder.trunk(*features))
            gains = expected_gains(answers, local.float(), self._aim, self._warmth)
        codes = coder(batch, features, None)
        outputs = as_tuple(self._models["tail"](*as_tuple(self._models["decoder"](codes))))[0]
        loss = distillation_loss(outputs, answers, y, self._aim, course.doubt + (1 - course.doubt) * gains)
        if self._penalty is None:
            return loss
        told = coder.count_steps(codes) if isinstance(coder, FeatureCoder) else codes  # what can be told apart
        return loss + penalty_share(epoch, course.epochs) * self._penalty(told, y)

    def _set_rate(self, share: float) -> None:
        """Learning rate: up for a tenth of the time, then down to nothing along a cosine."""
        rise = 0.1
        height = share / rise if share < rise else 0.5 * (1 + math.cos(math.pi * (share - rise) / (1 - rise)))
        for group in self._optimiser.param_groups:
            group["lr"] = group["top"] * max(height, 0.02)


def _fit_warmth(traced: TracedModel, data: Data) -> float:
    """Temperature at which the given model's probabilities are true on the calibration part; 1 for a regressor."""
    if not data.labels:
        return 1.0
    known = data.calibration.y >= 0
    answers = predict_batches(traced.gm, data.calibration.x[0][known]).numpy()
    return fit_temperature(answers, data.calibration.y[known])
