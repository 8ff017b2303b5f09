"""The demo's network and samples: a small convolutional classifier of damaged handwritten digits.

Rule: it knows nothing of bundles, cuts or codes; `build_model` and `samples` are all that the forge needs of a user.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.forge.data.augment import corrupt_pictures
from models.forge.data.digits import load_calibration, load_heldout, load_training
from models.forge.data.types import Data, DataPart
from models.forge.training.determinism import deterministic_torch

CORRUPTED = 0.4  # share of calibration and held-out samples that are damaged: more than in use
TRAIN_CORRUPTED = 0.7
COPIES = 4  # of each calibration sample, damaged differently; likewise of each training sample in an epoch
_TRAINING_COPIES = 6
_SEED = 11
_EPOCHS, _BATCH, _RATE = 20, 256, 5e-3
LABELS = tuple(str(digit) for digit in range(10))


class DigitsNet(nn.Module):
    """Images `[n, 1, 8, 8]` in 0..1 -> logits `[n, 10]`. 104 k parameters, most of them in the late layers."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()
        )
        self.late = nn.Sequential(
            nn.Conv2d(16, 48, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(48, 48, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(48 * 4 * 4, 96),
            nn.ReLU(),
            nn.Linear(96, len(LABELS)),
        )

    def forward(self, picture: Tensor) -> Tensor:
        logits: Tensor = self.late(self.early(picture))
        return logits


def build_model() -> nn.Module:
    """The network, trained here in a few seconds on one core; the same weights every time."""
    x, y = load_training()
    rng = np.random.default_rng(_SEED)
    with deterministic_torch(_SEED):
        model = DigitsNet()
        optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=1e-3)
        steps = _EPOCHS * (len(x) * COPIES // _BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps)
        for _ in range(_EPOCHS):
            damaged = np.concatenate([corrupt_pictures(x, rng, TRAIN_CORRUPTED) for _ in range(COPIES)])
            order = rng.permutation(len(damaged))
            pictures, labels = torch.from_numpy(damaged[order]), torch.from_numpy(np.tile(y, COPIES)[order])
            for start in range(0, len(order) - _BATCH + 1, _BATCH):
                loss = cross_entropy(model(pictures[start : start + _BATCH]), labels[start : start + _BATCH])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
    return model.eval()


def samples() -> Data:
    """Digits with camera damage: training, calibration and held-out samples share no digit."""
    rng = np.random.default_rng(_SEED + 1)
    return Data(
        training=_corrupt_copies(*load_training(), rng, TRAIN_CORRUPTED, _TRAINING_COPIES),
        calibration=_corrupt_copies(*load_calibration(), rng, CORRUPTED, COPIES),
        heldout=_corrupt_copies(*load_heldout(), rng, CORRUPTED, 1),
        labels=LABELS,
    )


def _corrupt_copies(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, share: float, copies: int) -> DataPart:
    return DataPart((np.concatenate([corrupt_pictures(x, rng, share) for _ in range(copies)]),), np.tile(y, copies))
