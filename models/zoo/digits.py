"""Reference network for small pictures: a head with an early exit and a few-level bottleneck, and the hub's tail.

Law: a head's codes are whole numbers in `0..LEVELS-1`, rounded half to even after a clamp, so that torch and ONNX
Runtime agree on them in the same precision. Early exit as in BranchyNet (Teerapittayanon et al. 2016); straight-through
rounding (Bengio et al. 2013).
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.manifest import BundleError, Manifest

LEVELS = 16
CODE_CHANNELS = 2
_HEAD_WIDTHS = (8, 16)
_TAIL_WIDTH = 64
_TAIL_HIDDEN = 128
_DROPOUT = 0.2


class Sizes(NamedTuple):
    """What the two halves are built from: a picture `[channels, height, width]` (both sides even) and its labels."""

    channels: int
    height: int
    width: int
    labels: int

    @property
    def codes(self) -> tuple[int, int, int]:
        """Shape of one sample's codes: a grid of half the picture's resolution."""
        return (CODE_CHANNELS, self.height // 2, self.width // 2)


def sizes_of(manifest: Manifest) -> Sizes:
    """Sizes that fit the manifest's input, labels and codes; BundleError if this network cannot have made them."""
    shape = manifest.input.shape
    if len(shape) != 3 or shape[1] % 2 or shape[2] % 2:
        raise BundleError(f"{manifest.model}: zoo/digits takes [channels, even, even], not {list(shape)}")
    sizes = Sizes(*shape, len(manifest.labels))
    if [feature.shape for feature in manifest.features] != [sizes.codes]:
        raise BundleError(f"{manifest.model}: zoo/digits makes one feature of {list(sizes.codes)}")
    return sizes


class DigitsHead(nn.Module):
    """Runs on the device: picture `[n, channels, height, width]` -> early-exit logits and codes (float, whole)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        first, second = _HEAD_WIDTHS
        _, height, width = sizes.codes
        self.first = nn.Conv2d(sizes.channels, first, 3, padding=1)
        self.second = nn.Conv2d(first, second, 3, stride=2, padding=1)
        self.exit = nn.Linear(second * height * width, sizes.labels)
        self.bottleneck = nn.Conv2d(second, CODE_CHANNELS, 1)
        with torch.no_grad():  # start in the middle of the range and spread over it: clamped codes learn nothing
            self.bottleneck.weight.mul_(4)
            self.bottleneck.bias.fill_((LEVELS - 1) / 2)  # type: ignore[union-attr]

    def forward(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        trunk = torch.relu(self.second(torch.relu(self.first(picture))))
        levels = self.bottleneck(trunk).clamp(0, LEVELS - 1)
        codes = torch.round(levels)
        if self.training:  # forward the rounded value, backward as if it had not been rounded
            codes = levels + (codes - levels).detach()
        return self.exit(trunk.flatten(1)), codes


class DigitsTail(nn.Module):
    """Runs on the hub: codes as floats `[n, *codes]` -> logits `[n, labels]`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels, height, width = sizes.codes
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, _TAIL_WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(_TAIL_WIDTH, _TAIL_WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(_TAIL_WIDTH, _TAIL_WIDTH, 3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(_DROPOUT),
            nn.Linear(_TAIL_WIDTH * height * width, _TAIL_HIDDEN),
            nn.ReLU(),
            nn.Linear(_TAIL_HIDDEN, sizes.labels),
        )

    def forward(self, codes: Tensor) -> Tensor:
        centred = codes * (2.0 / (LEVELS - 1)) - 1.0
        logits: Tensor = self.classifier(self.convolutions(centred).flatten(1))
        return logits


class Whole(nn.Module):
    """Head and tail in one piece, as if every sample were asked: picture -> the tail's logits."""

    def __init__(self, head: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.tail = tail

    def forward(self, picture: Tensor) -> Tensor:
        logits: Tensor = self.tail(self.head(picture)[1])
        return logits
