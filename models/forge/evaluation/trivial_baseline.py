"""Trivial baselines of a task, fitted in seconds: the most frequent label or the mean, a linear model, a bag of words.

Rule: fitted on training samples, the number of passes chosen on calibration samples, judged on held-out samples. They
are no product: an edge model that is below one of them is not worth its bytes, and that has to be said.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from models.forge.data.types import OUT_OF_SCOPE, Data, DataPart
from models.forge.evaluation.outcomes import Floats

_MOST_SAMPLES = 10_000  # of training
_MOST_VALUES = 4096  # of a sample; of a longer one every k-th
_MOST_WORDS = 20_000  # the most frequent ids of training; others share a row
_PASSES, _STEPS = 10, 400  # over the training samples, and optimiser steps at least
_BATCH, _RATE, _WORD_RATE, _DECAY = 128, 0.05, 0.05, 1e-2
_SEED = 5


class TrivialBaseline(NamedTuple):
    """A baseline's loss `[n]` per in-scope held-out sample: wrong (0 or 1), or a regressor's squared error."""

    name: str
    loss: Floats


def fit_trivial_baselines(data: Data) -> tuple[TrivialBaseline, ...]:
    """The constant answer, and a linear model of the sample's numbers or of the ids that it holds.

    `data`: of one input. Takes seconds; the same for the same data.
    """
    training, calibration, heldout = (_take_scope(part) for part in (data.training, data.calibration, data.heldout))
    if data.labels:
        usual = np.bincount(training.y).argmax()
        constant = TrivialBaseline("always the most frequent label", (heldout.y != usual).astype(np.float64))
    else:
        constant = TrivialBaseline("always the mean", (heldout.y.astype(np.float64) - training.y.mean()) ** 2)
    training = DataPart((training.x[0][:_MOST_SAMPLES],), training.y[:_MOST_SAMPLES])
    words = training.x[0].dtype.kind == "i"
    name = "a bag of words" if words else "a linear model of the sample"
    outputs = _fit_linear(training, (calibration, heldout), len(data.labels), words=words)
    return constant, TrivialBaseline(name, _measure_loss(outputs, heldout.y, labels=bool(data.labels)))


def _take_scope(part: DataPart) -> DataPart:
    """The part without samples of no label, its targets as they are."""
    kept = part.y != OUT_OF_SCOPE if part.y.dtype.kind == "i" else np.ones(len(part), bool)
    return DataPart((part.x[0][kept],), part.y[kept])


def _fit_linear(training: DataPart, others: tuple[DataPart, DataPart], labels: int, *, words: bool) -> Tensor:
    """Outputs on the second of `others`, after the pass that was best on the first."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(_SEED)
        rows = _WordRows(training.x[0]) if words else _NumberRows(training.x[0])
        x, first, second = (rows.take(part.x[0]) for part in (training, *others))
        net = rows.build_net(labels or 1)
        mean, spread = (0.0, 1.0) if labels else (float(training.y.mean()), float(training.y.std()) or 1.0)
        y = torch.from_numpy(training.y if labels else ((training.y - mean) / spread).astype(np.float32))
        best, found = math.inf, torch.zeros(0)
        optimiser = torch.optim.AdamW(net.parameters(), lr=rows.rate, weight_decay=_DECAY)
        steps = math.ceil(len(x) / _BATCH)
        for _ in range(max(_PASSES, math.ceil(_STEPS / steps))):
            for chosen in torch.randperm(len(x)).tensor_split(steps):
                _take_step(net, optimiser, x[chosen], y[chosen])
            outputs = net(first).detach() * spread + mean
            reached = float(_measure_loss(outputs, others[0].y, labels=bool(labels)).mean())
            if reached < best:
                best, found = reached, net(second).detach() * spread + mean
    return found


def _take_step(net: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    outputs = net(x)
    loss = mse_loss(outputs[:, 0], y) if y.is_floating_point() else cross_entropy(outputs, y)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _measure_loss(outputs: Tensor, y: npt.NDArray[Any], *, labels: bool) -> Floats:
    found = outputs.detach().double().numpy()
    loss: Floats = (found.argmax(1) != y).astype(np.float64) if labels else (found[:, 0] - y) ** 2
    return loss


class _NumberRows:
    """Samples as rows of numbers, each in standard deviations of the training samples."""

    def __init__(self, training: npt.NDArray[Any]) -> None:
        flat = self._flatten(training)
        self._mean, self._spread = flat.mean(0), np.maximum(flat.std(0), 1e-6)
        self.rate = _RATE / math.sqrt(flat.shape[1])

    def take(self, x: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(((self._flatten(x) - self._mean) / self._spread).clip(-8, 8).astype(np.float32))

    def build_net(self, outputs: int) -> nn.Module:
        net = nn.Linear(len(self._mean), outputs)
        nn.init.zeros_(net.weight)
        nn.init.zeros_(net.bias)
        return net

    def _flatten(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        flat = x.reshape(len(x), -1)
        return flat[:, :: max(1, -(-flat.shape[1] // _MOST_VALUES))]


class _WordRows:
    """Samples as rows of ids, whose order does not count; ids that training does not have are one word."""

    rate = _WORD_RATE

    def __init__(self, training: npt.NDArray[Any]) -> None:
        words, counts = np.unique(training, return_counts=True)
        self._words = np.sort(words[np.argsort(-counts, kind="stable")[:_MOST_WORDS]])

    def take(self, x: npt.NDArray[Any]) -> Tensor:
        flat = x.reshape(len(x), -1)
        places = np.searchsorted(self._words, flat).clip(max=len(self._words) - 1)
        return torch.from_numpy(np.where(self._words[places] == flat, places + 1, 0))

    def build_net(self, outputs: int) -> nn.Module:
        net = nn.EmbeddingBag(len(self._words) + 1, outputs, mode="mean")
        nn.init.zeros_(net.weight)
        return net
