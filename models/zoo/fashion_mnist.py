"""Fashion-MNIST for the forge: the hub's net, the samples, and how the bundle is taught.

Law: `skerry models forge models.zoo.fashion_mnist:build_model --data models.zoo.fashion_mnist:samples` uses what stands
here and nothing else, with `--augment` as it is given here.
"""

from torch import Generator, Tensor, nn

from models.forge.data.augment import Shake
from models.forge.data.types import Data
from models.zoo import datasets
from models.zoo.resnet9 import ResNet9
from models.zoo.training import Course, trained

SHAKE = Shake(crop=2)
COURSES = (Course(12, shake=SHAKE), Course(8, peak=0.08, shake=SHAKE, seed=4))


def build_model() -> nn.Module:
    """A residual net of 0.6 M parameters, trained once and cached. ForgeError without the data, if it is not cached."""
    return trained("fashion_mnist", lambda: ResNet9(1, len(datasets.FASHION)), COURSES, samples)


def samples() -> Data:
    return datasets.fashion_mnist()


def augment(pictures: Tensor, chance: Generator) -> Tensor:
    """How pictures may be varied while something learns from them."""
    return SHAKE(pictures, chance)
