"""Training of the zoo's nets for signals and tables: AdamW on one cycle, in float32.

Law: a killed training goes on at its last whole epoch; the chance of an epoch follows from the seed and its number.
One-cycle schedule: Smith & Topin 2018. Decoupled weight decay: Loshchilov & Hutter 2019.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from models.forge.data.types import Part
from models.forge.merging_cache_checkpoint import keep, resume
from models.zoo.merging_training_course import Tick, rate


class Lessons(NamedTuple):
    """`noise`: of the samples, as a share of each column's spread. `rarity`: how far rare classes count more (0..1).

    The net keeps the running mean of its weights over about the last 1 / (1 - `memory`) steps (Izmailov et al. 2018).
    Targets are divided by `unit` for the loss of a regressor, whose net multiplies its answer by it.
    """

    epochs: int
    batch: int = 256
    peak: float = 2e-3
    weight_decay: float = 2e-2
    noise: float = 0.0
    rarity: float = 0.0
    unit: float = 1.0
    memory: float = 0.0
    seed: int = 3
    threads: int = 1

    def train(self, model: nn.Module, part: Part, checkpoint: Path, tick: Tick) -> None:
        """Teach `model` in place: a classifier where the targets are whole numbers, else a regressor of one value."""
        torch.set_num_threads(self.threads)
        optimiser = torch.optim.AdamW(model.parameters(), self.peak, weight_decay=self.weight_decay)
        whole = nn.ModuleDict({"net": model})
        mean = _averaged(model, self.memory)
        if mean:
            whole["mean"] = mean
        done = resume(checkpoint, whole, optimiser)
        model.train()
        room = _Room(model, optimiser, part, self, mean)
        for epoch in range(done, self.epochs):
            loss = room.epoch(epoch)
            keep(checkpoint, whole, optimiser, epoch + 1)
            tick(epoch + 1, loss)
        if mean:
            model.load_state_dict(mean.module.state_dict())
        model.eval()
        checkpoint.unlink(missing_ok=True)


class _Room:
    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        part: Part,
        lessons: Lessons,
        mean: AveragedModel | None,
    ) -> None:
        self._model, self._optimiser, self._lessons, self._mean = model, optimiser, lessons, mean
        self._x, self._y = torch.from_numpy(part.x[0]), torch.from_numpy(part.y)
        self._spread = self._x.std(0) * lessons.noise
        self._weights = _weights(part, lessons.rarity)

    def epoch(self, number: int) -> float:
        """The mean loss of one pass."""
        lessons, total = self._lessons, 0.0
        torch.manual_seed(lessons.seed * 1000 + number)  # drop-out draws from the global generator
        order = torch.randperm(len(self._y))
        steps = len(order) // lessons.batch
        for step in range(steps):
            chosen = order[step * lessons.batch : (step + 1) * lessons.batch]
            self._optimiser.param_groups[0]["lr"] = rate(lessons.peak, (number + step / steps) / lessons.epochs)
            loss = self._loss(chosen)
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            if self._mean:
                self._mean.update_parameters(self._model)
            total += loss.item()
        return total / steps

    def _loss(self, chosen: Tensor) -> Tensor:
        x, y = self._x[chosen], self._y[chosen]
        found = self._model(x + torch.randn_like(x) * self._spread)
        if self._weights is not None:
            return cross_entropy(found, y, weight=self._weights)
        return mse_loss(found[:, 0] / self._lessons.unit, y / self._lessons.unit)


def _averaged(model: nn.Module, memory: float) -> AveragedModel | None:
    if not memory:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(memory))  # type: ignore[no-untyped-call]


def _weights(part: Part, rarity: float) -> Tensor | None:
    """Per class, (frequency of the commonest / its own) to the power of `rarity`; None for a regressor."""
    if not np.issubdtype(part.y.dtype, np.integer):
        return None
    counts = np.bincount(part.y)
    return torch.from_numpy((counts.max() / counts) ** rarity).float()
