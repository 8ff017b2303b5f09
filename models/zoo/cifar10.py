"""CIFAR-10 image classifier of the zoo: a ResNet-9, its samples and its training.

Rule: `skerry models forge models.zoo.cifar10:build_model --data models.zoo.cifar10:samples` uses what stands
here and nothing else, with `--augment` as it is given here.
"""

from torch import Generator, Tensor, nn

from models.forge.data.augment import Augmentation
from models.forge.data.types import Data
from models.zoo import datasets
from models.zoo.resnet9 import ResNet9
from models.zoo.training import ImageTraining, load_or_train

AUGMENTATION = Augmentation(crop=4)
TRAINING_PLANS = (ImageTraining(16, shake=AUGMENTATION),)


def build_model() -> nn.Module:
    """A residual net of 0.6 M parameters, trained once and cached.

    Raises ForgeError without data and cached weights.
    """
    return load_or_train("cifar10", lambda: ResNet9(3, len(datasets.CIFAR_LABELS)), TRAINING_PLANS, samples)


def samples() -> Data:
    """Training, calibration and held-out images, as `datasets.cifar10`."""
    return datasets.load_cifar10()


def augment(pictures: Tensor, chance: Generator) -> Tensor:
    """Random crop, flip and cut-out of a batch of images, for `--augment`."""
    return AUGMENTATION(pictures, chance)
