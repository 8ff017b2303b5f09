"""CIFAR-10 for the forge: the hub's net, the samples, and how the bundle is taught.

Law: `skerry models forge models.zoo.cifar10:build_model --data models.zoo.cifar10:samples` uses what stands
here and nothing else, with `--augment` as it is given here.
"""

from torch import Generator, Tensor, nn

from models.forge.data.augment import Shake
from models.forge.data.types import Data
from models.zoo import datasets
from models.zoo.resnet9 import ResNet9
from models.zoo.training import Course, trained

SHAKE = Shake(crop=4)
COURSES = (Course(15, shake=SHAKE),)


def build_model() -> nn.Module:
    """A residual net of 0.6 M parameters, trained once and cached. ForgeError without the data, if it is not cached."""
    return trained("cifar10", lambda: ResNet9(3, len(datasets.CIFAR)), COURSES, samples)


def samples() -> Data:
    return datasets.cifar10()


def augment(pictures: Tensor, chance: Generator) -> Tensor:
    """How pictures may be varied while something learns from them."""
    return SHAKE(pictures, chance)
