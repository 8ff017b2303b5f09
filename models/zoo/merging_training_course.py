"""Training of the zoo's large picture models: SGD on one cycle, in bfloat16, with a checkpoint after every epoch.

Law: a killed training goes on at its last whole epoch; the chance of an epoch follows from the seed and its number.
One-cycle schedule: Smith & Topin 2018.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from models.forge.data.merging_augment_augment import Shake
from models.forge.data.types import Part
from models.forge.merging_cache_checkpoint import keep, resume

Tick = Callable[[int, float], None]


class Course(NamedTuple):
    """`shake`: how pictures are varied; `peak`: the highest learning rate, a third of the way in."""

    epochs: int
    batch: int = 256
    peak: float = 0.2
    weight_decay: float = 5e-4
    shake: Shake = Shake()
    seed: int = 3
    threads: int = 2

    def train(self, model: nn.Module, part: Part, checkpoint: Path, tick: Tick) -> None:
        """Teach `model`, pictures `[n, c, h, w]` in 0..1. `tick` hears (epochs done, mean loss of the last)."""
        torch.set_num_threads(self.threads)
        optimiser = torch.optim.SGD(
            model.parameters(), 1.0, momentum=0.9, weight_decay=self.weight_decay, nesterov=True
        )
        whole = nn.ModuleDict({"net": model})
        done = resume(checkpoint, whole, optimiser)
        model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        lessons = _Lessons(model, optimiser, part, self)
        for epoch in range(done, self.epochs):
            loss = lessons.epoch(epoch)
            keep(checkpoint, whole, optimiser, epoch + 1)
            tick(epoch + 1, loss)
        model.eval()
        checkpoint.unlink(missing_ok=True)


def rate(peak: float, share: float) -> float:
    """The learning rate when `share` (0..1) of the training is done."""
    rise = 0.3
    if share < rise:
        return peak * (0.05 + 0.95 * share / rise)
    return peak * 0.5 * (1 + math.cos(math.pi * (share - rise) / (1 - rise)))


class _Lessons:
    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, part: Part, course: Course) -> None:
        self._model, self._optimiser, self._course = model, optimiser, course
        self._pictures, self._labels = torch.from_numpy(part.x[0]), torch.from_numpy(part.y)

    def epoch(self, number: int) -> float:
        """The mean loss of one pass."""
        course = self._course
        chance = torch.Generator().manual_seed(course.seed * 1000 + number)
        order = torch.randperm(len(self._labels), generator=chance)
        steps = len(self._labels) // course.batch
        total = 0.0
        for step in range(steps):
            chosen = order[step * course.batch : (step + 1) * course.batch]
            for group in self._optimiser.param_groups:
                group["lr"] = rate(course.peak, (number + step / steps) / course.epochs)
            batch = course.shake(self._pictures[chosen], chance).contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(self._model(batch), self._labels[chosen])
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            total += loss.item()
        return total / steps
