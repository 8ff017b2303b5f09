"""Levels by place: how finely each coefficient of a sample is rounded so that all codes together fit a payload.

Rule: one step for all coefficients, so that each has the same error, and none at all for those that vary less than it
(reverse water-filling: Cover & Thomas 2006, section 10.3.3); a coefficient that would need too many levels takes a
wider step. What a sample costs is counted under the static table that the entropy coder would have.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MOST_PLACES = 4096  # codes of one sample: more take longer to code than a device has
MOST_LEVELS = 63  # of one place: an odd number, so that 0 has a code of its own
_CLIP = 0.999  # quantile of a coefficient's size beyond which it is clipped
_KEPT = 0.45  # of the step: coefficients whose deviation is below are not sent
_SEARCHES = 16
_SPARE = 0.999  # share of the samples whose codes fit the payload whole
_OVERHEAD = 1.5  # bytes by which the coder exceeds the sum of the codes' own bits


class PlaceLevels(NamedTuple):
    """Rounding of a row of coefficients.

    `kept`: places `[k]` of those that travel, in the order in which they do; `steps` `[k]`: width of a level;
    `halves` `[k]`: levels on each side of 0, so that a place has `2 half + 1` codes.
    """

    kept: Tensor
    steps: Tensor
    halves: Tensor

    @property
    def levels(self) -> int:
        """Levels of the place that has most."""
        return 2 * int(self.halves.max()) + 1

    def quantise(self, rows: Tensor) -> Tensor:
        """Codes `[n, k]` of coefficient rows `[n, all]`: whole floats in `0..levels - 1`."""
        found = torch.round(rows[:, self.kept] / self.steps)
        return found.clamp(-self.halves, self.halves) + self.halves


def fit_levels(rows: Tensor, max_bytes: int) -> PlaceLevels:
    """The finest rounding of coefficient rows `[n, all]` (of training samples) whose codes fit `max_bytes`.

    The payload has one length for all samples: it must hold nearly all of them, not their mean.
    """
    deviations = rows.square().mean(0).sqrt()
    if len(deviations) > MOST_PLACES:
        deviations[torch.argsort(deviations, descending=True, stable=True)[MOST_PLACES:]] = 0
    reach = torch.quantile(rows.abs(), _CLIP, dim=0) if rows.numel() < 1 << 24 else rows.abs().amax(0)
    low, high = math.log(float(deviations.max()) / 8192 + 1e-12), math.log(4 * float(deviations.max()) + 1e-9)
    for _ in range(_SEARCHES):
        middle = (low + high) / 2
        if measure_bytes(rows, place_levels(deviations, reach, math.exp(middle))) <= max_bytes:
            high = middle
        else:
            low = middle
    return place_levels(deviations, reach, math.exp(high))


def place_levels(deviations: Tensor, reach: Tensor, step: float) -> PlaceLevels:
    """Levels of every place for one step. At least one place is kept."""
    kept = torch.nonzero(deviations > min(_KEPT * step, 0.999 * float(deviations.max())))[:, 0]
    kept = kept[torch.argsort(deviations[kept], descending=True, stable=True)]
    half = torch.clamp(torch.round(reach[kept] / step), 1, MOST_LEVELS // 2)
    return PlaceLevels(kept, torch.clamp(reach[kept] / (half + 0.5), min=step), half)


def measure_bytes(rows: Tensor, levels: PlaceLevels) -> float:
    """Bytes of a payload that holds nearly all of these samples, under the tables that they themselves give."""
    return count_payload(levels.quantise(rows), levels.levels)


def count_payload(codes: Tensor, levels: int) -> float:
    """As `measure_bytes`, of the codes `[n, k]` themselves."""
    return float(torch.quantile(sum_bits(codes, levels), _SPARE)) / 8 + _OVERHEAD


def sum_bits(codes: Tensor, levels: int) -> Tensor:
    """Bits of each sample `[n]` under the static tables of these codes `[n, k]`, one table a place."""
    places = codes.shape[1]
    index = codes.long() + levels * torch.arange(places)
    seen = torch.bincount(index.flatten(), minlength=levels * places).reshape(places, levels) + 1.0
    bits = -torch.log2(seen / seen.sum(1, keepdim=True))
    return bits.flatten()[index].sum(1)
