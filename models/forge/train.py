"""Training of the two halves: together first, then the tail alone on the codes that the shipped graph really makes.

Law: the caller has seeded torch and fixed its threads (`repeatable`); all other chance comes from the generator passed
in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.forge.corrupt import corrupt
from models.forge.task import Labelled, Labels
from models.zoo import Halves

Tick = Callable[[float], None]
THREADS = 1  # as quick as two for nets this small, and waiting at barriers made two six times slower on a busy machine


class Course(NamedTuple):
    """How long and how hard to train. One epoch sees `copies` differently damaged copies of the training set."""

    epochs: int = 20
    copies: int = 4
    batch: int = 256
    corrupted: float = 0.6
    rate: float = 4e-3
    exit_weight: float = 0.3
    tail_epochs: int = 4
    tail_rate: float = 5e-4


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Same seed, same machine, same weights: fixed threads, deterministic kernels; all put back at the end."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(THREADS)
        torch.use_deterministic_algorithms(mode=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(mode=strict)
            torch.set_num_threads(threads)


def train_halves(halves: Halves, training: Labelled, course: Course, rng: np.random.Generator, tick: Tick) -> None:
    """Head and tail together: the tail's loss flows through the rounded codes, the early exit's is added with a weight.

    Changes `halves` in place; `tick` hears of each epoch as a share in 0..1.
    """
    x, y = training
    weights = [*halves.head.parameters(), *halves.tail.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=course.rate, weight_decay=1e-3)
    steps = course.epochs * _batches_of(len(x) * course.copies, course.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, course.rate, total_steps=steps)
    for half in halves:
        half.train()
    for epoch in range(course.epochs):
        damaged = np.concatenate([corrupt(x, rng, course.corrupted) for _ in range(course.copies)])
        for pictures, labels in _batches(damaged, np.tile(y, course.copies), course.batch, rng):
            logits, codes = halves.head(pictures)
            loss = cross_entropy(halves.tail(codes), labels) + course.exit_weight * cross_entropy(logits, labels)
            _step(optimiser, loss)
            schedule.step()
        tick((epoch + 1) / course.epochs)
    for half in halves:
        half.eval()


def tune_tail(tail: nn.Module, codes: npt.NDArray[Any], y: Labels, course: Course, rng: np.random.Generator) -> None:
    """The tail alone on codes `[n, *codes]` as shipped: int8 arithmetic moves some codes by one level."""
    optimiser = torch.optim.Adam(tail.parameters(), lr=course.tail_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, total_iters=course.tail_epochs)
    tail.train()
    for _ in range(course.tail_epochs):
        for batch, labels in _batches(codes.astype(np.float32), y, course.batch, rng):
            _step(optimiser, cross_entropy(tail(batch), labels))
        schedule.step()
    tail.eval()


def predict(model: nn.Module, x: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], ...]:
    """What the model makes of a whole array without learning from it: one array per output."""
    with torch.inference_mode():
        found = model(torch.from_numpy(x.astype(np.float32)))
    outputs = found if isinstance(found, tuple) else (found,)
    return tuple(np.asarray(value.numpy()) for value in outputs)


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _batches_of(count: int, size: int) -> int:
    return max(1, count // size)


def _batches(x: npt.NDArray[Any], y: Labels, size: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole batches in a new order; the rest that does not fill one waits for the next epoch."""
    order = rng.permutation(len(x))
    for number in range(_batches_of(len(x), size)):
        chosen = order[number * size : (number + 1) * size]
        yield torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen])
