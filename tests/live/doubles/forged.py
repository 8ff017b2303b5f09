"""Five small bundles of the kinds that the zoo has, forged within seconds from drawn data: pictures grey and in colour,
a signal, windows of a table with a value to guess, and texts as whole numbers.

Law: no data files. A model here need not be good, only unsure of some samples: what is tested is how its bundle runs.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.bundle.bundle import Bundle
from models.bundle.manifest import Precision
from models.forge.data.types import Data, DataPart
from models.forge.pipeline.forge import run_forge
from models.forge.spec import Effort, ForgeInputs, ForgeSpec

COUNTS = (480, 240, 120)
LABELS = 4
EPOCHS = 12
SHARE = 0.4  # of the samples, those that the hub is asked about
WORDS, GRAMS, SAID = 20, 4, 3  # a text has 3 of 20 words, each with 4 numbers of its own
BUCKETS, LENGTH = 1 + WORDS * GRAMS, 16
Array = npt.NDArray[Any]
Drawn = tuple[Array, Array]


class Kind(NamedTuple):
    """`draw`: (generator, how many) -> samples and their truths. Each has another size of codes and arithmetic."""

    build: Callable[[], nn.Module]
    draw: Callable[[np.random.Generator, int], Drawn]
    cut: str
    max_bytes: int
    precision: Precision
    values: bool = False


def mixed(chance: np.random.Generator, count: int) -> Drawn:
    """How much of each of four things is in a sample; most often the label names the largest."""
    shares = chance.normal(0, 1, (count, LABELS))
    return shares, (shares + chance.normal(0, 0.5, shares.shape)).argmax(1)


def pictures(channels: int, side: int) -> Callable[[np.random.Generator, int], Drawn]:
    """Four soft patterns, one on top of the other."""
    coarse = np.random.default_rng(5).uniform(-1, 1, (LABELS, channels, 4, 4))
    patterns = np.repeat(np.repeat(coarse, side // 4, axis=2), side // 4, axis=3)

    def draw(chance: np.random.Generator, count: int) -> Drawn:
        shares, y = mixed(chance, count)
        x = 0.5 + 0.15 * np.einsum("nk,kchw->nchw", shares, patterns) + chance.normal(0, 0.01, (count, 1, 1, 1))
        return x.clip(0, 1).astype(np.float32), y

    return draw


def beats(chance: np.random.Generator, count: int) -> Drawn:
    """Four waves, one on top of the other, then two numbers of rhythm."""
    shares, y = mixed(chance, count)
    waves = np.sin(np.linspace(0, 2 * math.pi, 96) * np.arange(1, LABELS + 1)[:, None])
    x = np.concatenate([shares @ waves, shares[:, :2]], axis=1) + chance.normal(0, 0.05, (count, 98))
    return x.clip(-8, 8).astype(np.float32), y


def windows(chance: np.random.Generator, count: int) -> Drawn:
    """Twenty cycles of five sensors of an engine that wears -> cycles left: the more, the less sure."""
    left = chance.uniform(0, 100, count)
    wear = (100 - left[:, None] + np.arange(20)) / 100
    slopes = np.array([1.0, -0.5, 0.3, 0.7, 2.0])
    x = wear[:, :, None] * slopes + chance.normal(0, 0.02, (count, 20, 5))
    return x.astype(np.float32), (left * chance.uniform(0.7, 1.3, count)).astype(np.float32)


def texts(chance: np.random.Generator, count: int) -> Drawn:
    """Three words, most of them out of the five of its intent; zeros fill up."""
    y = chance.integers(0, LABELS, count)
    topics = np.where(chance.random((count, SAID)) < 0.6, y[:, None], chance.integers(0, LABELS, (count, SAID)))
    words = topics * (WORDS // LABELS) + chance.integers(0, WORDS // LABELS, (count, SAID))
    grams = 1 + words[:, :, None] * GRAMS + np.arange(GRAMS)
    ids = np.zeros((count, LENGTH), np.int64)
    ids[:, : SAID * GRAMS] = grams.reshape(count, -1)
    return ids, y


def convolutions(channels: int, side: int) -> nn.Module:
    early = nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
    late = nn.Sequential(nn.Flatten(), nn.Linear(8 * (side // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, LABELS))
    return nn.Sequential(early, late)


class Signal(nn.Module):
    """The wave and the rhythm are looked at apart and joined, as the zoo's net does."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(nn.Conv1d(1, 8, 7, 2, 3), nn.ReLU(), nn.Conv1d(8, 8, 5, 4, 2), nn.ReLU())
        self.joined = nn.Sequential(nn.Linear(8 * 12 + 2, 64), nn.ReLU())
        self.last = nn.Linear(64, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.early(x[:, None, :96]).flatten(1)
        found: Tensor = self.last(self.joined(torch.cat([seen, x[:, 96:]], 1)))
        return found


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(nn.Conv1d(5, 16, 5, 2, 2), nn.ReLU())
        self.late = nn.Sequential(nn.Flatten(), nn.Linear(160, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.late(self.early(x.transpose(1, 2))) * 100
        return found


class Bag(nn.Module):
    """The mean of the n-grams' vectors; number 0 only fills up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, 24, padding_idx=0)
        self.early = nn.Sequential(nn.Linear(24, 32), nn.ReLU())
        self.late = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, LABELS))

    def forward(self, ids: Tensor) -> Tensor:
        used = (ids > 0).float().unsqueeze(-1)
        mean = (self.table(ids) * used).sum(1) / used.sum(1).clamp(min=1)
        found: Tensor = self.late(self.early(mean))
        return found


KINDS = {
    "grey": Kind(lambda: convolutions(1, 28), pictures(1, 28), "0.3.relu", 8, Precision.INT8),
    "colour": Kind(lambda: convolutions(3, 32), pictures(3, 32), "0.3.relu", 40, Precision.FLOAT32),
    "beats": Kind(Signal, beats, "joined.1.relu", 12, Precision.INT8_WEIGHTS),
    "engines": Kind(Windows, windows, "early.1.relu", 60, Precision.FLOAT32, values=True),
    "intents": Kind(Bag, texts, "early.1.relu", 20, Precision.INT8_DYNAMIC),
}


def forged(name: str, folder: Path) -> Bundle:
    """One of `KINDS`, taught for a moment and forged."""
    kind = KINDS[name]
    chance = np.random.default_rng(len(name))
    training, calibration, heldout = (DataPart((x,), y) for x, y in (kind.draw(chance, count) for count in COUNTS))
    labels = () if kind.values else tuple(f"label-{number}" for number in range(LABELS))
    data = Data(training, calibration, heldout, labels)
    wish = ForgeSpec(
        name, cut=kind.cut, max_bytes=kind.max_bytes, precision=kind.precision, max_share=SHARE, effort=Effort.QUICK
    )
    return run_forge(taught(kind, training), data, wish, folder / name, aids=ForgeInputs(report=False))


def taught(kind: Kind, part: DataPart) -> nn.Module:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = kind.build()
    x, y = torch.from_numpy(part.x[0]), torch.from_numpy(part.y)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(y)).split(32):
            optimiser.zero_grad()
            found = model(x[batch])
            loss = (
                nn.functional.mse_loss(found[:, 0], y[batch]) if kind.values else nn.CrossEntropyLoss()(found, y[batch])
            )
            loss.backward()
            optimiser.step()
    return model.eval()
