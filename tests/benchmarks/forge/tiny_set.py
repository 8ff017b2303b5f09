"""A set small enough for a test of a whole trial: points in the plane, a net that was never taught, 400 samples."""

import numpy as np
import torch
from torch import nn

from models.forge.data.types import Data, DataPart


def build_model() -> nn.Module:
    """A net of fixed weights whose answer is the quadrant of a point."""
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(net.parameters(), 0.02)
    part = samples().training
    x, y = torch.from_numpy(part.x[0]), torch.from_numpy(part.y)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


def samples() -> Data:
    """400, 200 and 200 points and their quadrants."""
    rng = np.random.default_rng(4)
    parts = []
    for count in (400, 200, 200):
        x = rng.normal(size=(count, 2)).astype(np.float32)
        parts.append(DataPart((x,), (x[:, 0] > 0) + 2 * (x[:, 1] > 0).astype(np.int64)))
    training, calibration, heldout = parts
    return Data(training=training, calibration=calibration, heldout=heldout, labels=("a", "b", "c", "d"))
