"""CIFAR-10 image classifier of the trials: a ResNet-9, its samples and its training.

Rule: `skerry models forge benchmarks.forge.cifar10:build_model --data benchmarks.forge.cifar10:samples` uses what
stands here and nothing else, with `--augment` as it is given here.
"""

import io
import lzma
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Generator, Tensor, nn

from models.forge.data.augment import Augmentation
from models.forge.data.types import Data
from models.zoo.datasets import split_images
from models.zoo.packing import CIFAR_LABELS
from models.zoo.resnet9 import ResNet9
from models.zoo.sources import find_dataset
from models.zoo.training import ImageTraining, load_or_train

AUGMENTATION = Augmentation(crop=4)
TRAINING_PLANS = (ImageTraining(16, shake=AUGMENTATION),)


def build_model() -> nn.Module:
    """A residual net of 0.6 M parameters, trained once and cached.

    Raises ForgeError without data and cached weights.
    """
    return load_or_train("cifar10", lambda: ResNet9(3, len(CIFAR_LABELS)), TRAINING_PLANS, samples)


def samples() -> Data:
    """Training, calibration and held-out images, as `load_cifar10`."""
    return load_cifar10()


def augment(pictures: Tensor, chance: Generator) -> Tensor:
    """Random crop, flip and cut-out of a batch of images, for `--augment`."""
    return AUGMENTATION(pictures, chance)


def load_cifar10() -> Data:
    """50,000 + 10,000 images `[n, 3, 32, 32]` float32 in 0..1 (Krizhevsky 2009), here from JPEGs of quality 75."""
    home = find_dataset("cifar10_jpeg")
    return split_images(_decode_jpegs(home / "train.c10j.xz"), _decode_jpegs(home / "test.c10j.xz"), CIFAR_LABELS)


def read_jpegs(path: Path) -> tuple[list[bytes], npt.NDArray[np.uint8]]:
    """The compressed files and their labels, class by class."""
    data = lzma.decompress(path.read_bytes())
    (count,) = struct.unpack("<I", data[4:8])
    lengths = np.frombuffer(data, np.uint32, count, 8).astype(np.int64)
    labels = np.frombuffer(data, np.uint8, count, 8 + 4 * count)
    ends = 8 + 5 * count + np.concatenate([[0], np.cumsum(lengths)])
    return [data[ends[i] : ends[i + 1]] for i in range(count)], labels


def measure_scan_bytes(file: bytes) -> int:
    """Bytes of a baseline JPEG file's scan: what is left if both ends know its tables (ITU-T T.81, marker SOS)."""
    start = file.index(b"\xff\xda")
    header = int.from_bytes(file[start + 2 : start + 4], "big")
    return len(file) - (start + 2 + header) - len(b"\xff\xd9")


def _decode_jpegs(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    from PIL import Image  # noqa: PLC0415 - only this set needs it

    files, labels = read_jpegs(path)
    pictures = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)), labels
