"""Training and weight cache of the zoo's networks: SGD for images, AdamW for signals and tables, checkpoints per epoch.

Rule: a killed training goes on at its last whole epoch; the randomness of an epoch follows from the seed and its
number.
One-cycle schedule: Smith & Topin 2018. Decoupled weight decay: Loshchilov & Hutter 2019. Images are trained in
bfloat16, signals and tables in float32.

Rule: a cached file belongs to one net, one training plan and one data set, by its name. Training prints the time left.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from models.forge.cache import load_checkpoint, save_checkpoint, write_tensors
from models.forge.data.augment import Augmentation
from models.forge.data.types import Data, DataPart

EpochCallback = Callable[[int, float], None]


class ImageTraining(NamedTuple):
    """SGD training of an image classifier on one cycle, in bfloat16.

    `shake`: augmentation; `peak`: the highest learning rate, a third of the way in.
    """

    epochs: int
    batch: int = 256
    peak: float = 0.2
    weight_decay: float = 5e-4
    shake: Augmentation = Augmentation()
    seed: int = 3
    threads: int = 2

    def train(self, model: nn.Module, part: DataPart, checkpoint: Path, tick: EpochCallback) -> None:
        """Train `model` in place, images `[n, c, h, w]` in 0..1.

        `tick` is called with (epochs done, mean loss of the last).
        """
        torch.set_num_threads(self.threads)
        optimiser = torch.optim.SGD(
            model.parameters(), 1.0, momentum=0.9, weight_decay=self.weight_decay, nesterov=True
        )
        whole = nn.ModuleDict({"net": model})
        done = load_checkpoint(checkpoint, whole, optimiser)
        model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        lessons = _ImageTrainer(model, optimiser, part, self)
        for epoch in range(done, self.epochs):
            loss = lessons.run_epoch(epoch)
            save_checkpoint(checkpoint, whole, optimiser, epoch + 1)
            tick(epoch + 1, loss)
        model.eval()
        checkpoint.unlink(missing_ok=True)


def one_cycle_rate(peak: float, share: float) -> float:
    """The learning rate when `share` (0..1) of the training is done."""
    rise = 0.3
    if share < rise:
        return peak * (0.05 + 0.95 * share / rise)
    return peak * 0.5 * (1 + math.cos(math.pi * (share - rise) / (1 - rise)))


class _ImageTrainer:
    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, part: DataPart, course: ImageTraining
    ) -> None:
        self._model, self._optimiser, self._course = model, optimiser, course
        self._pictures, self._labels = torch.from_numpy(part.x[0]), torch.from_numpy(part.y)

    def run_epoch(self, number: int) -> float:
        """One pass over the samples; returns its mean loss."""
        course = self._course
        chance = torch.Generator().manual_seed(course.seed * 1000 + number)
        order = torch.randperm(len(self._labels), generator=chance)
        steps = len(self._labels) // course.batch
        total = 0.0
        for step in range(steps):
            chosen = order[step * course.batch : (step + 1) * course.batch]
            for group in self._optimiser.param_groups:
                group["lr"] = one_cycle_rate(course.peak, (number + step / steps) / course.epochs)
            batch = course.shake(self._pictures[chosen], chance).contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(self._model(batch), self._labels[chosen])
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            total += loss.item()
        return total / steps


class SignalTraining(NamedTuple):
    """AdamW training of a classifier or regressor of signals or tables on one cycle, in float32.

    `noise`: added to samples, as a share of each column's spread. `rarity`: how far rare classes count more (0..1).
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

    def train(self, model: nn.Module, part: DataPart, checkpoint: Path, tick: EpochCallback) -> None:
        """Train `model` in place: a classifier where the targets are whole numbers, else a regressor of one value."""
        torch.set_num_threads(self.threads)
        optimiser = torch.optim.AdamW(model.parameters(), self.peak, weight_decay=self.weight_decay)
        whole = nn.ModuleDict({"net": model})
        mean = _build_average(model, self.memory)
        if mean:
            whole["mean"] = mean
        done = load_checkpoint(checkpoint, whole, optimiser)
        model.train()
        room = _SignalTrainer(model, optimiser, part, self, mean)
        for epoch in range(done, self.epochs):
            loss = room.run_epoch(epoch)
            save_checkpoint(checkpoint, whole, optimiser, epoch + 1)
            tick(epoch + 1, loss)
        if mean:
            model.load_state_dict(mean.module.state_dict())
        model.eval()
        checkpoint.unlink(missing_ok=True)


class _SignalTrainer:
    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        part: DataPart,
        lessons: SignalTraining,
        mean: AveragedModel | None,
    ) -> None:
        self._model, self._optimiser, self._lessons, self._mean = model, optimiser, lessons, mean
        self._x, self._y = torch.from_numpy(part.x[0]), torch.from_numpy(part.y)
        self._spread = self._x.std(0) * lessons.noise
        self._weights = _class_weights(part, lessons.rarity)

    def run_epoch(self, number: int) -> float:
        """One pass over the samples; returns its mean loss."""
        lessons, total = self._lessons, 0.0
        torch.manual_seed(lessons.seed * 1000 + number)  # drop-out draws from the global generator
        order = torch.randperm(len(self._y))
        steps = len(order) // lessons.batch
        for step in range(steps):
            chosen = order[step * lessons.batch : (step + 1) * lessons.batch]
            self._optimiser.param_groups[0]["lr"] = one_cycle_rate(
                lessons.peak, (number + step / steps) / lessons.epochs
            )
            loss = self._compute_loss(chosen)
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            if self._mean:
                self._mean.update_parameters(self._model)
            total += loss.item()
        return total / steps

    def _compute_loss(self, chosen: Tensor) -> Tensor:
        x, y = self._x[chosen], self._y[chosen]
        found = self._model(x + torch.randn_like(x) * self._spread)
        if self._weights is not None:
            return cross_entropy(found, y, weight=self._weights)
        return mse_loss(found[:, 0] / self._lessons.unit, y / self._lessons.unit)


def _build_average(model: nn.Module, memory: float) -> AveragedModel | None:
    if not memory:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(memory))  # type: ignore[no-untyped-call]


def _class_weights(part: DataPart, rarity: float) -> Tensor | None:
    """Per class, (frequency of the commonest / its own) to the power of `rarity`; None for a regressor."""
    if not np.issubdtype(part.y.dtype, np.integer):
        return None
    counts = np.bincount(part.y)
    return torch.from_numpy((counts.max() / counts) ** rarity).float()


_START_SEED = 1
CACHE_VARIABLE = "SKERRY_ZOO_CACHE"


class TrainingPlan(Protocol):
    """Interface of a training: a NamedTuple with every setting, and the training itself."""

    @property
    def epochs(self) -> int: ...

    def train(self, model: nn.Module, part: DataPart, checkpoint: Path, tick: EpochCallback) -> None: ...

    def _replace(self, *, threads: int) -> Self: ...


TrainingPlans = Sequence[TrainingPlan]


def load_or_train(
    name: str, make: Callable[[], nn.Module], courses: TrainingPlans, data: Callable[[], Data]
) -> nn.Module:
    """`make()` with the weights that `courses`, one after another, give it on the training part of `data()`.

    Weights are read from the cache as far as they are there, else trained and stored.
    """
    torch.manual_seed(_START_SEED)
    model = make()
    done = len(courses)
    while done and not _load_weights(model, _weights_path(name, model, courses[:done])):
        done -= 1
    for number in range(done, len(courses)):
        path = _weights_path(name, model, courses[: number + 1])
        clock = _TimeLeftPrinter(f"{name}, part {number + 1} of {len(courses)}", courses[number].epochs)
        courses[number].train(model, data().training, path.with_suffix(".part"), clock)
        write_tensors(path, model.state_dict())
    return model.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload, no-any-return]


def _weights_path(name: str, model: nn.Module, courses: TrainingPlans) -> Path:
    return zoo_cache_folder() / f"{name}-{_training_digest(model, courses)}.safetensors"


def _load_weights(model: nn.Module, path: Path) -> bool:
    if not path.exists():
        return False
    model.load_state_dict(safetensors.torch.load(path.read_bytes()))
    return True


def zoo_cache_folder() -> Path:
    """Folder of trained weights: the one that `SKERRY_ZOO_CACHE` names, or the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "skerry" / "zoo"


def _training_digest(model: nn.Module, courses: TrainingPlans) -> str:
    """Digest of the network's shapes and the training settings.

    Threads only decide how long it takes (and the last bits of sums).
    """
    facts: list[Any] = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    return sha256(repr((facts, [course._replace(threads=0) for course in courses])).encode()).hexdigest()[:12]


class _TimeLeftPrinter:
    """Prints on standard error how far a training is and how long it still takes."""

    def __init__(self, name: str, epochs: int) -> None:
        self._name, self._epochs = name, epochs
        self._start, self._first = time.monotonic(), 0

    def __call__(self, done: int, loss: float) -> None:
        self._first = self._first or done
        each_s = (time.monotonic() - self._start) / (done - self._first + 1)
        left_s = each_s * (self._epochs - done)
        print(
            f"{self._name}: epoch {done} of {self._epochs}, loss {loss:.3f}, about {left_s / 60:.0f} min left",
            file=sys.stderr,
        )
