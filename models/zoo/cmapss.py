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

    `mean`, `spread` `[15]` are of the training part. `dropout`: shares before the two linear layers.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int = 32, hidden: int = 64, dropout: tuple[float, float] = (0.3, 0.2)) -> None:
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
            nn.Dropout(dropout[0]),
            nn.Linear(width * (CYCLES // 6), hidden),
            nn.ReLU(),
            nn.Dropout(dropout[1]),
            nn.Linear(hidden, 1),
        )

    def set_scale(self, x: npt.NDArray[np.float32]) -> None:
        """Take mean and spread of each column from rows `[n, 15]`."""
        self.mean.copy_(torch.from_numpy(x.mean(0)))
        self.spread.copy_(torch.from_numpy(np.maximum(x.std(0), 1e-6)))

    def forward(self, x: Tensor) -> Tensor:
        life: Tensor = self.body(self.scale_windows(x)) * RUL_CAP
        return life.clamp(0.0, RUL_CAP)

    def scale_windows(self, x: Tensor) -> Tensor:
        """Windows with every column less its mean and over its spread, as channels first `[n, 15, 60]`."""
        return ((x - self.mean) / self.spread).transpose(1, 2)


class EdgeTurbofanNet(TurbofanNet):
    """Small regressor for the device: an eighth of the arithmetic, neither clamped nor with drop-out.

    It is taught with a larger net's answers, and nothing is learned where an answer is clamped.
    """

    def __init__(self) -> None:
        super().__init__(width=8, hidden=32, dropout=(0.0, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        life: Tensor = self.body(self.scale_windows(x)) * (RUL_CAP / 3) + RUL_CAP * 2 / 3
        return life


def build_model() -> nn.Module:
    """The regressor, trained once and cached. Raises ForgeError without data and cached weights."""
    return load_or_train("cmapss", lambda: _set_normalisation(TurbofanNet()), (TRAINING_PLAN,), samples)


def edge_model() -> nn.Module:
    """The device's small regressor, untrained, with the columns' scale of the training part; the same at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_EDGE_SEED)
        net = EdgeTurbofanNet()
    return _set_normalisation(net)


def samples() -> Data:
    """Windows of training, calibration and held-out engines, as `datasets.load_turbofans`."""
    return load_turbofans()


def _set_normalisation(net: TurbofanNet) -> TurbofanNet:
    net.set_scale(samples().training.x[0].reshape(-1, _COLUMNS))
    return net
