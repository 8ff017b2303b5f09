"""ResNet-9 for small images (after Page 2018, DAWNBench), used as the hub's model.

Rule: it takes raw images in 0..1 and normalises them itself, so that callers need not know how.
"""

import torch
from torch import Tensor, nn


def _conv_block(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)


class Residual(nn.Module):
    """Residual block: two convolutions beside the identity (He et al. 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_conv_block(width, width), _conv_block(width, width))

    def forward(self, x: Tensor) -> Tensor:
        deeper: Tensor = self.inner(x)
        return x + deeper


class ResNet9(nn.Module):
    """Images `[n, channels, side, side]` in 0..1 -> logits `[n, labels]`. `width` 32: 0.6 M parameters."""

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int, labels: int, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1, channels, 1, 1), 0.5))
        self.register_buffer("scale", torch.full((1, channels, 1, 1), 4.0))
        self.stem = _conv_block(channels, width)
        self.first = nn.Sequential(_conv_block(width, 2 * width, pool=True), Residual(2 * width))
        self.second = _conv_block(2 * width, 4 * width, pool=True)
        self.third = nn.Sequential(_conv_block(4 * width, 4 * width, pool=True), Residual(4 * width))
        self.classifier = nn.Linear(4 * width, labels)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) * self.scale
        deep = self.third(self.second(self.first(self.stem(x))))
        logits: Tensor = self.classifier(deep.amax((2, 3)))
        return logits
