"""Heartbeats of the MIT-BIH database, split by patient, and a small network for them."""

from functools import cache

import numpy as np
from torch import Tensor, nn

from models.forge.data.types import Data, DataPart, select_rows
from models.zoo.datasets import BEATS, WINDOW, load_heartbeats
from models.zoo.mitbih import HeartbeatNet
from models.zoo.training import SignalTraining, load_or_train

EVERY = 4  # of the patients' 100,000 beats: enough for some minutes on two cores
PLAN = SignalTraining(epochs=8, rarity=0.5, noise=0.1, memory=0.99)


@cache
def samples() -> Data:
    """Beats `[n, 390]`, label and patient; no patient is in two parts: 17 to learn from, 5 to calibrate, 22 more."""
    whole = load_heartbeats()
    return Data(*(_thin(part) for part in (whole.training, whole.calibration, whole.heldout)), whole.labels)


def build_model() -> nn.Module:
    """The network, trained once and kept in the zoo's cache."""
    return load_or_train("example-clinic", HeartbeatNet, (PLAN,), samples)


class BeatNet(nn.Module):
    """What the monitor has room for: the shape of the one beat in the middle `[n, 128]`, without its rhythm."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WINDOW, hidden), nn.ReLU(), nn.Linear(hidden, len(BEATS)))

    def forward(self, x: Tensor) -> Tensor:
        beat = x[:, WINDOW : 2 * WINDOW]
        logits: Tensor = self.body(beat / (beat.abs().amax(1, keepdim=True) + 0.1))
        return logits


def build_small_model() -> nn.Module:
    """The monitor's own network, trained once and kept in the zoo's cache."""
    return load_or_train("example-clinic-monitor", BeatNet, (PLAN,), samples)


def _thin(part: DataPart) -> DataPart:
    return select_rows(part, np.arange(0, len(part.y), EVERY))
