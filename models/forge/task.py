"""What the forge is given: pictures, labels, and which of them are only ever measured on.

Law: the three sets share no picture; nothing is trained, tuned or chosen on the held-out one.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.forge.corrupt import Pictures, corrupt

Labels = npt.NDArray[np.int64]
CALIBRATION_SHARE = 0.2  # of the training set
CALIBRATION_COPIES = 4  # each calibration picture is used this often, damaged differently
MIN_PICTURES = 50


class ForgeError(Exception):
    """The data cannot make a model, or what was made is not fit to ship; the message is one line."""


class Labelled(NamedTuple):
    """Pictures `[n, channels, height, width]` float32 in 0..1, both sides even, and labels `[n]` counted from 0."""

    x: Pictures
    y: Labels


class Task(NamedTuple):
    """`corrupted`: share of calibration and held-out pictures that are damaged on purpose, and so harder than life."""

    name: str
    version: int
    labels: tuple[str, ...]
    training: Labelled
    heldout: Labelled
    corrupted: float = 0.4
    seed: int = 11


class Split(NamedTuple):
    """Calibration and held-out pictures are damaged already; training pictures are damaged anew in each epoch."""

    training: Labelled
    calibration: Labelled
    heldout: Labelled


def check_task(task: Task) -> None:
    """ForgeError, naming the cause, if these arrays cannot make a bundle."""
    for name, (x, y) in (("training", task.training), ("heldout", task.heldout)):
        if x.ndim != 4 or x.shape[2] % 2 or x.shape[3] % 2:
            raise ForgeError(f"{name}: pictures {list(x.shape)}, expected [n, channels, even, even]")
        if len(x) != len(y) or len(x) < MIN_PICTURES:
            raise ForgeError(
                f"{name}: {len(x)} pictures, {len(y)} labels; as many of each, and at least {MIN_PICTURES}"
            )
        if x.dtype != np.float32 or not (x.min() >= 0 and x.max() <= 1):
            raise ForgeError(f"{name}: pictures must be float32 in 0..1")
        if y.min() < 0 or y.max() >= len(task.labels):
            raise ForgeError(f"{name}: labels {y.min()}..{y.max()}, but {len(task.labels)} names")
    if task.training.x.shape[1:] != task.heldout.x.shape[1:]:
        raise ForgeError("training and held-out pictures differ in shape")


def split(task: Task, rng: np.random.Generator) -> Split:
    x, y = task.training
    order = rng.permutation(len(x))
    count = round(CALIBRATION_SHARE * len(x))
    chosen, rest = order[:count], order[count:]
    tiled = Labelled(np.tile(x[chosen], (CALIBRATION_COPIES, 1, 1, 1)), np.tile(y[chosen], CALIBRATION_COPIES))
    return Split(
        training=Labelled(x[rest], y[rest]),
        calibration=Labelled(corrupt(tiled.x, rng, task.corrupted), tiled.y),
        heldout=Labelled(corrupt(task.heldout.x, rng, task.corrupted), task.heldout.y),
    )


def hold_out(x: Pictures, y: Labels, share: float, seed: int = 7) -> tuple[Labelled, Labelled]:
    """(training, held-out) of one set of pictures, shuffled with `seed`."""
    order = np.random.default_rng(seed).permutation(len(x))
    count = round(share * len(x))
    return Labelled(x[order[count:]], y[order[count:]]), Labelled(x[order[:count]], y[order[:count]])
