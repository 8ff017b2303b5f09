"""Fashion-MNIST image classifier of the zoo: a ResNet-9, its samples and its training.

Rule: `skerry models forge models.zoo.fashion_mnist:build_model --data models.zoo.fashion_mnist:samples` uses what
stands here and nothing else, with `--augment` as it is given here.
"""

from torch import Generator, Tensor, nn

from models.forge.data.augment import Augmentation
from models.forge.data.types import Data
from models.zoo import datasets
from models.zoo.resnet9 import ResNet9
from models.zoo.training import ImageTraining, load_or_train

AUGMENTATION = Augmentation(crop=2)
TRAINING_PLANS = (ImageTraining(12, shake=AUGMENTATION), ImageTraining(8, peak=0.08, shake=AUGMENTATION, seed=4))


def build_model() -> nn.Module:
    """A residual net of 0.6 M parameters, trained once and cached.

    Raises ForgeError without data and cached weights.
    """
    return load_or_train("fashion_mnist", lambda: ResNet9(1, len(datasets.FASHION_LABELS)), TRAINING_PLANS, samples)


def samples() -> Data:
    """Training, calibration and held-out images, as `datasets.fashion_mnist`."""
    return datasets.load_fashion_mnist()


def augment(pictures: Tensor, chance: Generator) -> Tensor:
    """Random crop, flip and cut-out of a batch of images, for `--augment`."""
    return AUGMENTATION(pictures, chance)
