"""Pictures of articles (Fashion-MNIST) as a camera above a shelf would see them, and a small network for them."""

from functools import cache

import numpy as np
from torch import nn

from models.forge.data.augment import Augmentation
from models.forge.data.types import Data, DataPart, select_rows
from models.zoo.datasets import FASHION_LABELS, load_fashion_mnist
from models.zoo.training import ImageTraining, load_or_train

PARTS = (8_000, 2_000, 2_000)  # pictures to learn from, to calibrate, held out
PLAN = ImageTraining(8, batch=64, peak=0.1, shake=Augmentation(crop=0, cutout=0, mirror=True))


@cache
def samples() -> Data:
    """Pictures `[n, 1, 28, 28]` in 0..1 and their article."""
    whole = load_fashion_mnist()
    parts = (whole.training, whole.calibration, whole.heldout)
    return Data(*(_first(part, count) for part, count in zip(parts, PARTS, strict=True)), whole.labels)


def build_model() -> nn.Module:
    """The network, trained once and kept in the zoo's cache."""
    return load_or_train("example-shop-camera", _make_net, (PLAN,), samples)


def _make_net(width: int = 16) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs, stride in (
        (1, width, 1),
        (width, 2 * width, 2),
        (2 * width, 2 * width, 1),
        (2 * width, 4 * width, 2),
    ):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, len(FASHION_LABELS)))


def _first(part: DataPart, count: int) -> DataPart:
    return select_rows(part, np.arange(count))
