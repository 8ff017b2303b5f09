"""Early features as codes: a cut's features clipped, at few levels, for entropy coding; nothing is taught.

Method: Cohen, Choi and Bajic 2021 (arXiv 2105.06002), see `models/forge/partition/code_levels.py`. The given model goes
on from the decoded features at the very same cut, so nothing of it is replaced.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.forge.partition.code_levels import QuantisationRange, fit_range
from models.forge.partition.cost import list_masks
from models.forge.partition.cuts import Cut, TracedModel
from models.forge.partition.split import run_head, split_model, split_shared
from models.forge.training.code_path import CodePath, Route

LEVELS = (3, 8)  # few first: 8 where 3 lose too much
MAX_POSITIONS = 8192  # codes of one sample: more take longer to code than a device has
_FITTED = 512  # training samples from which ranges are taken
_CHUNK = 128


class EarlyFeatureCoder(nn.Module):
    """Coder: features at a cut -> one row of codes. `head`: makes them from the sample, if it is another cut's."""

    def __init__(self, ranges: Sequence[QuantisationRange], head: nn.Module | None = None) -> None:
        super().__init__()
        self.ranges, self.head = list(ranges), head

    def forward(self, sample: Tensor, features: Sequence[Tensor], _hidden: Tensor) -> Tensor:
        found = features if self.head is None else run_head(self.head, sample)
        rows = [_quantise(one, limits) for one, limits in zip(found, self.ranges, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


class EarlyFeatureDecoder(nn.Module):
    """Decoder: a row of codes -> the cut's features, in the middle of their levels."""

    def __init__(self, ranges: Sequence[QuantisationRange], shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.ranges, self.shapes = list(ranges), [tuple(shape) for shape in shapes]

    def forward(self, codes: Tensor) -> Tensor | tuple[Tensor, ...]:
        found, start = [], 0
        for limits, shape in zip(self.ranges, self.shapes, strict=True):
            end = start + math.prod(shape)
            step = (limits.high - limits.low) / (limits.levels - 1)
            found.append((codes[:, start:end] * step + limits.low).reshape(-1, *shape))
            start = end
        return found[0] if len(found) == 1 else tuple(found)


def _quantise(feature: Tensor, limits: QuantisationRange) -> Tensor:
    scale = (limits.levels - 1) / (limits.high - limits.low)
    return torch.round(((feature.float() - limits.low) * scale).clamp(0, limits.levels - 1)).flatten(1)


def iter_early_paths(
    traced: TracedModel, cut: Cut, others: Sequence[Cut], x: npt.NDArray[np.generic]
) -> Iterator[CodePath]:
    """Code paths of early features: those of `cut`, where the edge is cut anyway, and of `others` before or behind it.

    `x`: training samples `[n, ...]`, from which the ranges are taken. Cuts of more than `MAX_POSITIONS` numbers give
    none. Paths of one cut come in the order of `LEVELS`.
    """
    for one in (cut, *others):
        if one.values <= MAX_POSITIONS:
            yield from _build_paths(traced, one, x, own=one is cut)


def _build_paths(traced: TracedModel, cut: Cut, x: npt.NDArray[np.generic], *, own: bool) -> Iterator[CodePath]:
    seen = _collect_features(split_shared(traced, cut).head, x[:_FITTED])
    masks = list_masks(traced, cut)
    for levels in LEVELS:
        ranges = [fit_range(one, levels, whole=mask) for one, mask in zip(seen, masks, strict=True)]
        half = split_model(traced, cut)
        yield CodePath(
            name=f"{Route.EARLY}-{cut.name}-{levels}",
            route=Route.EARLY,
            coder=EarlyFeatureCoder(ranges, None if own else half.head).eval(),
            decoder=EarlyFeatureDecoder(ranges, cut.shapes).eval(),
            tail=half.tail,
            shape=(cut.values,),
            levels=max(limits.levels for limits in ranges),
        )


def _collect_features(head: nn.Module, x: npt.NDArray[np.generic]) -> list[Tensor]:
    with torch.no_grad():
        parts = [
            run_head(head, torch.from_numpy(np.ascontiguousarray(x[start : start + _CHUNK])))
            for start in range(0, len(x), _CHUNK)
        ]
    return [torch.cat(column) for column in zip(*parts, strict=True)]
