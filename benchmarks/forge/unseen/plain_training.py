"""Plain training of a user's net: Adam with a falling rate, kept in the zoo's cache; and the split of samples in parts.

It stands for a script of the user's own, so it knows nothing of the forge.
"""

import sys
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from models.forge.cache import write_tensors
from models.forge.data.types import Data, DataPart
from models.zoo.training import zoo_cache_folder

Values = npt.NDArray[np.generic]
Whole = npt.NDArray[np.int64]
_BATCH = 128


class PlainTraining(NamedTuple):
    """Epochs, highest learning rate, and the seed of initial weights and of the order of samples."""

    epochs: int = 12
    rate: float = 2e-3
    decay: float = 1e-2
    seed: int = 7


def load_or_train_plain(
    name: str, make: Callable[[], nn.Module], data: Callable[[], Data], course: PlainTraining
) -> nn.Module:
    """`make()` trained on the training part of `data()`, or its weights of an earlier call."""
    torch.manual_seed(course.seed)
    model = make()
    shapes = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    digest = sha256(repr((shapes, course)).encode()).hexdigest()[:12]
    path = zoo_cache_folder() / f"unseen-{name}-{digest}.safetensors"
    if path.exists():
        model.load_state_dict(safetensors.torch.load(path.read_bytes()))
        return model.eval()
    _train_classifier(model, data().training, course, name)
    write_tensors(path, model.state_dict())
    return model.eval()


def _train_classifier(model: nn.Module, part: DataPart, course: PlainTraining, name: str) -> None:
    x, y = torch.from_numpy(part.x[0]), torch.from_numpy(part.y)
    optimiser = torch.optim.AdamW(model.parameters(), course.rate, weight_decay=course.decay)
    steps = len(y) // _BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps * course.epochs)
    model.train()
    for epoch in range(course.epochs):
        order, total = torch.randperm(len(y)), 0.0
        for step in range(steps):
            chosen = order[step * _BATCH : (step + 1) * _BATCH]
            loss = cross_entropy(model(x[chosen]), y[chosen])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            total += loss.item()
        print(f"{name}: epoch {epoch + 1} of {course.epochs}, loss {total / steps:.3f}", file=sys.stderr)
    model.eval()


def split_by_group(
    x: Values, y: Whole, group: Whole, labels: tuple[str, ...], seed: int = 20, **sensitive: Whole
) -> Data:
    """Parts of 64, 16 and 20 % of the groups: training, calibration, held out; no group is in two of them.

    `sensitive`: columns `[n]` by name that codes must not reveal, such as the speaker.
    """
    names = np.unique(group)
    order = np.random.default_rng(seed).permutation(names)
    ends = int(0.64 * len(order)), int(0.80 * len(order))
    parts = [np.isin(group, some) for some in np.split(order, ends)]
    training, calibration, heldout = (
        DataPart((np.ascontiguousarray(x[rows]),), y[rows], {name: one[rows] for name, one in sensitive.items()})
        for rows in parts
    )
    return Data(training=training, calibration=calibration, heldout=heldout, labels=labels)
