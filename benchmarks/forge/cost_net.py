"""What forging costs: a convolutional net of 100,000 parameters and 10,000 of Fashion-MNIST's training samples."""

from typing import cast

from torch import Tensor, nn

from benchmarks.forge.unseen.plain_training import PlainTraining, load_or_train_plain
from models.forge.data.types import Data, DataPart
from models.zoo.datasets import FASHION_LABELS, load_fashion_mnist

SAMPLES, CALIBRATION, HELDOUT = 10_000, 2_000, 2_000


class CostNet(nn.Module):
    """Pictures `[n, 1, 28, 28]` -> logits `[n, 10]`; 101,834 parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, pool in ((1, 24, True), (24, 48, True), (48, 64, False), (64, 102, False)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pool else []
        self.body = nn.Sequential(*layers)
        self.answer = nn.Linear(102, len(FASHION_LABELS))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.answer(self.body(x).mean((2, 3))))


def build_model() -> nn.Module:
    """The net, trained once and kept."""
    return load_or_train_plain("cost", CostNet, samples, PlainTraining(6))


def samples() -> Data:
    """10,000 / 2,000 / 2,000 pictures."""
    data = load_fashion_mnist()
    parts = ((data.training, SAMPLES), (data.calibration, CALIBRATION), (data.heldout, HELDOUT))
    # copies: a view would keep all 70,000 pictures in memory, which is what this set measures
    training, calibration, heldout = (
        DataPart((part.x[0][:count].copy(),), part.y[:count].copy()) for part, count in parts
    )
    return Data(training=training, calibration=calibration, heldout=heldout, labels=data.labels)
