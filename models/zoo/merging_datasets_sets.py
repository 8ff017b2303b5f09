"""The real data sets the zoo is forged from, as arrays. Found below the folder that `SKERRY_DATA` names.

Law: the published test part is never trained on, tuned on or calibrated on; the calibration part is cut from training
by a fixed seed, and no sample is in two parts. numpy only (and Pillow for CIFAR-10), so that a test can read them.
"""

import gzip
import io
import lzma
import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.forge.data.types import Data, ForgeError, Part

CALIBRATION = 5_000  # samples kept out of training, of either image set
_SEED = 20
FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def folder(name: str) -> Path:
    """Where a set lies. ForgeError, saying what to set, if it is not there."""
    root = os.environ.get("SKERRY_DATA", "")
    path = Path(root) / name
    if not root or not path.is_dir():
        raise ForgeError(
            f"{name}: not found; set SKERRY_DATA to the folder that holds {name}/ (docs/forge.md says more)"
        )
    return path


def fashion_mnist() -> Data:
    """60,000 + 10,000 pictures `[n, 1, 28, 28]` float32 in 0..1 of 10 kinds of clothing (Xiao et al. 2017)."""
    home = folder("fashion_mnist")
    train = _idx(home / "train-images-idx3-ubyte.gz"), _idx(home / "train-labels-idx1-ubyte.gz")
    test = _idx(home / "t10k-images-idx3-ubyte.gz"), _idx(home / "t10k-labels-idx1-ubyte.gz")
    return _pictures((train[0][:, None], train[1]), (test[0][:, None], test[1]), FASHION)


def cifar10() -> Data:
    """50,000 + 10,000 pictures `[n, 3, 32, 32]` float32 in 0..1 (Krizhevsky 2009), here from JPEGs of quality 75."""
    home = folder("cifar10_jpeg")
    return _pictures(_jpegs(home / "train.c10j.xz"), _jpegs(home / "test.c10j.xz"), CIFAR)


def _pictures(
    train: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]],
    test: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]],
    labels: tuple[str, ...],
) -> Data:
    order = np.random.default_rng(_SEED).permutation(len(train[1]))
    kept, rest = order[:CALIBRATION], order[CALIBRATION:]
    return Data(
        training=_part(train[0][rest], train[1][rest]),
        calibration=_part(train[0][kept], train[1][kept]),
        heldout=_part(*test),
        labels=labels,
    )


def _part(x: npt.NDArray[np.uint8], y: npt.NDArray[np.uint8]) -> Part:
    return Part((x.astype(np.float32) / np.float32(255),), y.astype(np.int64))


def _idx(path: Path) -> npt.NDArray[np.uint8]:
    data = gzip.decompress(path.read_bytes())
    (count,) = struct.unpack(">I", data[4:8])
    if data[3] == 3:
        return np.frombuffer(data, np.uint8, offset=16).reshape(count, 28, 28)
    return np.frombuffer(data, np.uint8, offset=8)


def jpegs(path: Path) -> tuple[list[bytes], npt.NDArray[np.uint8]]:
    """The compressed files and their labels, class by class."""
    data = lzma.decompress(path.read_bytes())
    (count,) = struct.unpack("<I", data[4:8])
    lengths = np.frombuffer(data, np.uint32, count, 8).astype(np.int64)
    labels = np.frombuffer(data, np.uint8, count, 8 + 4 * count)
    ends = 8 + 5 * count + np.concatenate([[0], np.cumsum(lengths)])
    return [data[ends[i] : ends[i + 1]] for i in range(count)], labels


def _jpegs(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    from PIL import Image  # noqa: PLC0415 - only this set needs it

    files, labels = jpegs(path)
    pictures = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)), labels
