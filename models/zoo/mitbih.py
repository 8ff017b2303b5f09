"""MIT-BIH heartbeat classifier of the zoo: a small convolutional net over three beats and their rhythm.

Rule: no patient of the test part is in any other part.
"""

import torch
from torch import Tensor, nn

from models.forge.data.types import Data
from models.zoo.datasets import BEATS, RHYTHM, WINDOW, load_heartbeats
from models.zoo.training import SignalTraining, load_or_train

TRAINING_PLAN = SignalTraining(epochs=6, rarity=0.5, noise=0.1, memory=0.998)
_HIDDEN = 32


class HeartbeatNet(nn.Module):
    """Classifier from `[n, 3 * 128 + 6]`, as `load_heartbeats` makes them, to logits `[n, 4]`.

    Beats are scaled by their own peak.
    """

    def __init__(self, width: int = 32, labels: int = len(BEATS)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, kernel in ((3, 7), (width, 5), (width, 5), (width, 3)):
            layers += [nn.Conv1d(inputs, width, kernel, stride=2, padding=kernel // 2), nn.ReLU()]
        self.beats = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.4), nn.Linear(width * 8, _HIDDEN), nn.ReLU())
        self.rhythm = nn.Sequential(nn.Linear(RHYTHM, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU())
        self.joined = nn.Sequential(nn.Linear(2 * _HIDDEN, 64), nn.ReLU(), nn.Dropout(0.4))
        self.classifier = nn.Linear(64, labels)

    def forward(self, x: Tensor) -> Tensor:
        beats = x[:, : 3 * WINDOW].reshape(-1, 3, WINDOW)
        beats = beats / (beats[:, 1:2].abs().amax(2, keepdim=True) + 0.1)
        gaps, ratios = x[:, 3 * WINDOW : 3 * WINDOW + 2] - 0.8, x[:, 3 * WINDOW + 2 :]
        rhythm = torch.cat([gaps, torch.log(ratios.clamp(min=0.2)) * 3], dim=1)
        logits: Tensor = self.classifier(self.joined(torch.cat([self.beats(beats), self.rhythm(rhythm)], dim=1)))
        return logits


def build_model() -> nn.Module:
    """The classifier, trained once and cached. Raises ForgeError without data and cached weights."""
    return load_or_train("mitbih", HeartbeatNet, (TRAINING_PLAN,), samples)


def samples() -> Data:
    """Beats of training, calibration and held-out patients, as `datasets.load_heartbeats`."""
    return load_heartbeats()
