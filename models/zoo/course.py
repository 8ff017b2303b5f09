"""Training of the zoo's large picture models: SGD on one cycle, in bfloat16, with a checkpoint after every epoch.

Law: a killed training goes on at its last whole epoch; the chance of an epoch follows from the seed and its number.
One-cycle schedule: Smith & Topin 2018. Crops, flips and cut-out: DeVries & Taylor 2017.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Tick = Callable[[int, float], None]


class Course(NamedTuple):
    """`crop`, `cutout`: pixels; `peak`: the highest learning rate, a third of the way in."""

    epochs: int
    batch: int = 256
    peak: float = 0.2
    weight_decay: float = 5e-4
    crop: int = 4
    cutout: int = 8
    seed: int = 3
    threads: int = 2


def train(
    model: nn.Module, x: npt.NDArray[Any], y: npt.NDArray[np.int64], course: Course, checkpoint: Path, tick: Tick
) -> None:
    """Teach `model` in place. `x` `[n, c, h, w]` in 0..1. `tick` hears (epochs done, mean loss of the last)."""
    torch.set_num_threads(course.threads)
    pictures, labels = torch.from_numpy(x), torch.from_numpy(y)
    optimiser = torch.optim.SGD(
        model.parameters(), 1.0, momentum=0.9, weight_decay=course.weight_decay, nesterov=True
    )
    done = _resume(model, optimiser, checkpoint)
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for epoch in range(done, course.epochs):
        chance = torch.Generator().manual_seed(course.seed * 1000 + epoch)
        loss = _epoch(model, optimiser, (pictures, labels), course, epoch, chance)
        _keep(model, optimiser, checkpoint, epoch + 1)
        tick(epoch + 1, loss)
    model.eval()
    checkpoint.unlink(missing_ok=True)


def _epoch(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    data: tuple[Tensor, Tensor],
    course: Course,
    epoch: int,
    chance: torch.Generator,
) -> float:
    pictures, labels = data
    order = torch.randperm(len(labels), generator=chance)
    steps = len(labels) // course.batch
    total = 0.0
    for step in range(steps):
        chosen = order[step * course.batch : (step + 1) * course.batch]
        for group in optimiser.param_groups:
            group["lr"] = rate(course, (epoch + step / steps) / course.epochs)
        batch = augment(pictures[chosen], course, chance).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(batch), labels[chosen])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        total += loss.item()
    return total / steps


def rate(course: Course, share: float) -> float:
    """The learning rate when `share` (0..1) of the training is done."""
    rise = 0.3
    if share < rise:
        return course.peak * (0.05 + 0.95 * share / rise)
    return course.peak * 0.5 * (1 + math.cos(math.pi * (share - rise) / (1 - rise)))


def augment(pictures: Tensor, course: Course, chance: torch.Generator) -> Tensor:
    """Shifted by up to `crop`, mirrored in half of the cases, with one square of `cutout` blanked."""
    count, channels, height, width = pictures.shape
    reach = course.crop
    padded = nn.functional.pad(pictures, (reach,) * 4)
    rows = torch.randint(0, 2 * reach + 1, (count, 1), generator=chance) + torch.arange(height)
    columns = torch.randint(0, 2 * reach + 1, (count, 1), generator=chance) + torch.arange(width)
    mirrored = torch.rand(count, 1, generator=chance) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    index = torch.arange(count)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    top = torch.randint(0, height, (count, 1), generator=chance)
    left = torch.randint(0, width, (count, 1), generator=chance)
    half = course.cutout // 2
    hidden_rows = ((torch.arange(height) - top).abs() < half)[:, :, None]
    hidden_columns = ((torch.arange(width) - left).abs() < half)[:, None, :]
    return moved.masked_fill((hidden_rows & hidden_columns)[:, None], 0.5)


def _keep(model: nn.Module, optimiser: torch.optim.Optimizer, checkpoint: Path, epoch: int) -> None:
    named = {f"model.{key}": value.contiguous() for key, value in model.state_dict().items()}
    momenta = [optimiser.state[p]["momentum_buffer"] for p in model.parameters()]
    named |= {f"momentum.{index}": value.contiguous() for index, value in enumerate(momenta)}
    named["epoch"] = torch.tensor(epoch)
    fresh = checkpoint.with_suffix(".new")
    fresh.write_bytes(safetensors.torch.save(named))
    os.replace(fresh, checkpoint)


def _resume(model: nn.Module, optimiser: torch.optim.Optimizer, checkpoint: Path) -> int:
    if not checkpoint.exists():
        return 0
    named = safetensors.torch.load(checkpoint.read_bytes())
    model.load_state_dict({key[6:]: value for key, value in named.items() if key.startswith("model.")})
    for index, parameter in enumerate(model.parameters()):
        optimiser.state[parameter]["momentum_buffer"] = named[f"momentum.{index}"]
    return int(named["epoch"])
