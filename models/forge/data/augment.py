"""Image augmentation for training (crop, flip, cut-out) and image corruption (noise, occlusion, shift, contrast).

Rule: everything is drawn from the generator that is passed in; the same seed changes the same samples in the same way.

Sources: crops, flips and cut-out: DeVries & Taylor 2017. Corruptions: the kinds of Hendrycks & Dietterich 2019, scaled
to small images.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad


class Augmentation(NamedTuple):
    """Random crop, horizontal flip and cut-out of images `[n, c, h, w]` in 0..1: a callable for training.

    `crop`: largest shift in pixels; `cutout`: side of the blanked square in pixels; `mirror`: flip half of the images.
    """

    crop: int = 4
    cutout: int = 8
    mirror: bool = True

    def __call__(self, pictures: Tensor, chance: torch.Generator) -> Tensor:
        """Varied copies of `pictures`; every draw comes from `chance`."""
        count, _, height, width = pictures.shape
        reach = self.crop
        padded = pad(pictures, (reach,) * 4)
        rows = torch.randint(0, 2 * reach + 1, (count, 1), generator=chance) + torch.arange(height)
        columns = torch.randint(0, 2 * reach + 1, (count, 1), generator=chance) + torch.arange(width)
        if self.mirror:
            mirrored = torch.rand(count, 1, generator=chance) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        index = torch.arange(count)[:, None, None]
        moved = padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        return self._blank_square(moved, chance)

    def _blank_square(self, pictures: Tensor, chance: torch.Generator) -> Tensor:
        count, _, height, width = pictures.shape
        top = torch.randint(0, height, (count, 1), generator=chance)
        left = torch.randint(0, width, (count, 1), generator=chance)
        half = self.cutout // 2
        rows = ((torch.arange(height) - top).abs() < half)[:, :, None]
        columns = ((torch.arange(width) - left).abs() < half)[:, None, :]
        return pictures.masked_fill((rows & columns)[:, None], 0.5)


Pictures = npt.NDArray[np.float32]
NOISE_SIGMA = 0.3
PATCH = 0.375  # side of the covered square, as a share of the picture's side
SHIFT = 0.125  # largest shift, likewise (at least one pixel)
CONTRAST = (0.2, 0.5)
GREY = (0.3, 0.7)


def corrupt_pictures(pictures: npt.NDArray[Any], rng: np.random.Generator, share: float) -> Pictures:
    """Copy of images with about `share` of them damaged, each by one kind of `CORRUPTIONS`.

    `pictures` `[n, channels, height, width]` in 0..1; `share` 0..1. Returns float32 of the same shape, clipped to 0..1.
    """
    out = pictures.astype(np.float32)
    hit = rng.random(len(out)) < share
    kinds = rng.integers(len(CORRUPTIONS), size=len(out))
    for kind, damage in enumerate(CORRUPTIONS):
        chosen = hit & (kinds == kind)
        out[chosen] = np.clip(damage(out[chosen], rng), 0.0, 1.0)
    return out


def add_noise(pictures: Pictures, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Gaussian noise with a standard deviation of `NOISE_SIGMA`, not clipped."""
    return pictures + rng.normal(0.0, NOISE_SIGMA, pictures.shape)


def cover_patch(pictures: Pictures, rng: np.random.Generator) -> npt.NDArray[Any]:
    """One square per image, of side `PATCH` of the shorter side, covered with a random grey."""
    count, _, height, width = pictures.shape
    side = round(PATCH * min(height, width))
    top, left = rng.integers(0, height - side + 1, count), rng.integers(0, width - side + 1, count)
    rows = (np.arange(height) >= top[:, None]) & (np.arange(height) < top[:, None] + side)
    columns = (np.arange(width) >= left[:, None]) & (np.arange(width) < left[:, None] + side)
    covered = (rows[:, :, None] & columns[:, None, :])[:, None]
    return np.where(covered, rng.random((count, 1, 1, 1)), pictures)


def shift_pictures(pictures: Pictures, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Shift by up to `SHIFT` of the shorter side in each direction; what comes in at the border is black."""
    count, _, height, width = pictures.shape
    reach = max(1, round(SHIFT * min(height, width)))
    padded = np.pad(pictures, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    rows = rng.integers(0, 2 * reach + 1, count)[:, None] + np.arange(height)
    columns = rng.integers(0, 2 * reach + 1, count)[:, None] + np.arange(width)
    moved = padded[np.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return moved.transpose(0, 3, 1, 2)


def lower_contrast(pictures: Pictures, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Contrast multiplied by a factor in `CONTRAST` around a mean grey in `GREY`."""
    factor = rng.uniform(*CONTRAST, (len(pictures), 1, 1, 1))
    grey = rng.uniform(*GREY, (len(pictures), 1, 1, 1))
    return (pictures - 0.5) * factor + grey


Damage = Callable[[Pictures, np.random.Generator], npt.NDArray[Any]]
CORRUPTIONS: tuple[Damage, ...] = (add_noise, cover_patch, shift_pictures, lower_contrast)
