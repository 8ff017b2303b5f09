"""How pictures may be varied while something learns from them: shifted, mirrored, with a square blanked.

Law: everything is drawn from the generator that is passed in. Crops, flips and cut-out: DeVries & Taylor 2017.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Shake(NamedTuple):
    """A hook for teaching: `(pictures [n, c, h, w] in 0..1, generator)` -> the same pictures, varied.

    `crop`, `cutout`: pixels; `mirror`: half of the pictures are mirrored, left and right.
    """

    crop: int = 4
    cutout: int = 8
    mirror: bool = True

    def __call__(self, pictures: Tensor, chance: torch.Generator) -> Tensor:
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
        return self._blanked(moved, chance)

    def _blanked(self, pictures: Tensor, chance: torch.Generator) -> Tensor:
        count, _, height, width = pictures.shape
        top = torch.randint(0, height, (count, 1), generator=chance)
        left = torch.randint(0, width, (count, 1), generator=chance)
        half = self.cutout // 2
        rows = ((torch.arange(height) - top).abs() < half)[:, :, None]
        columns = ((torch.arange(width) - left).abs() < half)[:, None, :]
        return pictures.masked_fill((rows & columns)[:, None], 0.5)
