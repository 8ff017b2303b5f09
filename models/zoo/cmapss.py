"""C-MAPSS turbofan regressor of the zoo (remaining useful life): a 1-D convolutional net, its samples and its training.

`edge_model` is the device's own small net, which forging teaches in place of an exit at the cut: an exit on the first
layer's features is 1 to 4 cycles (RMSE) behind it.

Rule: no engine of the calibration part is in training; a window is normalised inside the net.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.forge.data.types import Data
from models.zoo.datasets import CYCLES, RUL_CAP, SENSORS, load_turbofans
from models.zoo.training import SignalTraining, load_or_train

TRAINING_PLAN = SignalTraining(epochs=10, batch=512, peak=3e-3, noise=0.1, unit=RUL_CAP)
_COLUMNS = len(SENSORS) + 1
_EDGE_SEED = 0


class TurbofanNet(nn.Module):
    """Regressor from windows `[n, 60, 15]` to cycles left `[n, 1]`.

    `mean`, `spread` `[15]` are of the training part.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(_COLUMNS))
        self.register_buffer("spread", torch.ones(_COLUMNS))
        self.body = nn.Sequential(
            nn.Conv1d(_COLUMNS, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool1d(3),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(width * (CYCLES // 6), 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        scaled = ((x - self.mean) / self.spread).transpose(1, 2)
        life: Tensor = self.body(scaled) * RUL_CAP
        return life.clamp(0.0, RUL_CAP)


class EdgeTurbofanNet(nn.Module):
    """Small regressor for the device, an eighth of the arithmetic: windows `[n, 60, 15]` to cycles left `[n, 1]`.

    Neither clamped nor with drop-out: it is taught with a larger net's answers.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(_COLUMNS))
        self.register_buffer("spread", torch.ones(_COLUMNS))
        self.body = nn.Sequential(
            nn.Conv1d(_COLUMNS, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool1d(3),
            nn.Flatten(),
            nn.Linear(width * (CYCLES // 6), 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        scaled = ((x - self.mean) / self.spread).transpose(1, 2)
        life: Tensor = self.body(scaled) * (RUL_CAP / 3) + RUL_CAP * 2 / 3
        return life


def build_model() -> nn.Module:
    """The regressor, trained once and cached. Raises ForgeError without data and cached weights."""
    return load_or_train("cmapss", _build_scaled, (TRAINING_PLAN,), samples)


def edge_model() -> nn.Module:
    """The device's small regressor, untrained, with the columns' scale of the training part; the same at each call."""
    rows = samples().training.x[0].reshape(-1, _COLUMNS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_EDGE_SEED)
        net = EdgeTurbofanNet()
    _set_scale(net, rows)
    return net


def samples() -> Data:
    """Windows of training, calibration and held-out engines, as `datasets.load_turbofans`."""
    return load_turbofans()


def _build_scaled() -> TurbofanNet:
    net = TurbofanNet()
    _set_scale(net, samples().training.x[0].reshape(-1, _COLUMNS))
    return net


def _set_scale(net: TurbofanNet | EdgeTurbofanNet, rows: npt.NDArray[np.float32]) -> None:
    """Take mean and spread of each column from rows `[n, 15]`."""
    net.mean.copy_(torch.from_numpy(rows.mean(0)))
    net.spread.copy_(torch.from_numpy(np.maximum(rows.std(0), 1e-6)))
