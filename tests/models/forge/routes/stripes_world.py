"""A small world of codes: a model of stripes in noise, its data, and an edge of random weights at its first cut."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from models.forge.data.types import Data, DataPart
from models.forge.partition.cuts import Cut, TracedModel, find_cuts, trace_model
from models.forge.training.distillation import DistillationConfig, build_loss_config, build_modules
from models.forge.training.modules import TrainedModules


class Stripes(nn.Module):
    """Three kinds of stripes in noise: two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.relu(self.second(torch.relu(self.first(x)))).flatten(1))
        return found


def draw_part(count: int, seed: int) -> DataPart:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.normal(0, 0.4, (count, 1, 8, 8)).astype(np.float32)
    for row, place in enumerate(y):
        x[row, 0, :, 3 * place : 3 * place + 2] += 1
    return DataPart((x,), y.astype(np.int64))


class World(NamedTuple):
    """A given model, its data, and an edge of random weights at its first cut."""

    traced: TracedModel
    data: Data
    cut: Cut
    pieces: TrainedModules


def build_world() -> World:
    """The model trained for 40 steps, in about a second."""
    torch.manual_seed(0)
    data = Data(draw_part(640, 0), draw_part(200, 1), draw_part(50, 2), ("left", "middle", "right"))
    model = Stripes()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        loss = nn.functional.cross_entropy(
            model(torch.from_numpy(data.training.x[0])), torch.from_numpy(data.training.y)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    traced = trace_model(model.eval(), torch.from_numpy(data.training.x[0][:2]))
    cut = find_cuts(traced)[0]
    wish = DistillationConfig(max_bytes=16)
    pieces = build_modules(traced, cut, cut, wish, build_loss_config(data, wish))
    for module in (pieces.head, pieces.encoder, pieces.exit):
        module.eval()
    return World(traced, data, cut, pieces)
