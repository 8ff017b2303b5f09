"""Early exit: a classifier or regressor on the device at the cut, trained beside the bottleneck, or a user's own model.

Rule: it reads what the encoder computes anyway, so an answer costs little more than the codes; a regressor's exit
answers `[value, log of the Laplace scale of its error]`. Early exits: Teerapittayanon et al. 2016 (BranchyNet).
"""

import math

import torch
from torch import Tensor, nn

from models.forge.training.bottleneck import conv_layers

_WIDTH = 128  # of the hidden layer after a trunk that is a vector
_SIDE = 4  # the exit sees the trunk on a grid of at most about this side
_LOG_SCALES = (-6.0, 2.0)  # of the error, in units of the target's spread


class EarlyExit(nn.Module):
    """Early exit network: trunk `[n, *hidden]` -> logits `[n, labels]`."""

    def __init__(self, hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        size = math.prod(hidden)
        if len(hidden) == 3:
            channels, height, width = hidden
            flat = height == 1
            stride = 2 if max(height, width) > _SIDE else 1
            layers += conv_layers(channels, channels, flat=flat, stride=stride)
            height, width = _output_side(height, stride), _output_side(width, stride)
            reach = max(1, width // (2 * _SIDE) if flat else max(height, width) // (2 * _SIDE))
            kernel = (min(reach, height), min(reach, width))
            if kernel != (1, 1):
                layers.append(nn.AvgPool2d(kernel))
            size = channels * (height // kernel[0]) * (width // kernel[1])
        else:
            width = min(size, _WIDTH)
            layers += [nn.Linear(size, width), nn.BatchNorm1d(width), nn.ReLU()]
            size = width
        self.layers = nn.Sequential(*layers, nn.Flatten(1), nn.Dropout(0.1), nn.Linear(size, outputs))

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.layers(hidden)
        return logits.float()


class RegressionExit(nn.Module):
    """Regressor's early exit: raw pairs -> (value, log scale) in the target's units."""

    def __init__(self, inner: nn.Module, mean: float, spread: float) -> None:
        super().__init__()
        self.inner, self.mean, self.spread = inner, mean, spread

    def forward(self, x: Tensor) -> Tensor:
        raw = self.inner(x)
        low, high = _LOG_SCALES
        log_scale = raw[:, 1:2].clamp(low, high) + math.log(self.spread)
        return torch.cat([raw[:, :1] * self.spread + self.mean, log_scale], 1)


class ScaledRegressor(nn.Module):
    """A user's small regressor, which answers values only, beside one error scale for all samples."""

    def __init__(self, model: nn.Module, log_scale: float) -> None:
        super().__init__()
        self.model = model
        self.log_scale = nn.Parameter(torch.tensor(log_scale))

    def forward(self, x: Tensor) -> Tensor:
        value = self.model(x)
        value = value.reshape(value.shape[0], -1)[:, :1]
        return torch.cat([value, self.log_scale.expand_as(value)], 1)


def _output_side(side: int, stride: int) -> int:
    return -(-side // stride)
