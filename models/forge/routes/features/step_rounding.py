"""Rounding of coefficients as the codec `ans-steps` does it, for training: each sample at the finest step that fits.

Rule: the device's graph gives whole numbers on a fine grid, and the codec rounds each sample to a multiple of it, so
training rounds to that multiple too: forward as the codec, backward as if nothing were rounded (Bengio et al. 2013).
Levels by place follow from one grid for all coefficients, wherever each of them costs the same (reverse water-filling:
Cover & Thomas 2006, section 10.3.3).
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.forge.routes.sample.transform_code import CENTRE, LEVELS, fit_grids
from models.runtime.codec_steps import (
    MULTIPLES,
    StepClass,
    StepSettings,
    build_step_tables,
    most_payload_bytes,
    read_step_tables,
)

MOST_PLACES = 4096  # codes of one sample: more take longer to code than a device has
_END_BITS = 8.0  # step number and the coder's end
_LEAST_BYTES = 4


class PlaceGrid(NamedTuple):
    """Rounding of a row of coefficients. `kept`: places `[k]` of those that travel, in the order in which they do.

    `grids` `[k]`: width of a level on the fine grid; `classes`: of places of like variance; `payload_bytes`: of every
    sample.
    """

    kept: Tensor
    grids: Tensor
    classes: tuple[StepClass, ...]
    payload_bytes: int

    def build_tables(self, codes: Tensor) -> bytes:
        """The codec's tables, from training codes `[n, k]` on the fine grid."""
        settings = StepSettings(LEVELS, CENTRE, self.payload_bytes, self.classes)
        return build_step_tables(codes.to(torch.uint8).numpy(), settings)


def fit_grid(rows: Tensor, max_bytes: int) -> PlaceGrid:
    """The grid at which coefficient rows `[n, all]` of training samples fit `max_bytes` with room for finer ones.

    Fewer bytes are taken where the coefficients are so few that they could not use all.
    """
    order = torch.argsort(rows.square().mean(0), descending=True, stable=True)[:MOST_PLACES]
    payload = max(_LEAST_BYTES, min(max_bytes, len(order)))
    grids, classes = fit_grids(rows[:, order].contiguous().numpy(), payload)
    payload = min(payload, most_payload_bytes(len(grids)))
    return PlaceGrid(order[: len(grids)], torch.from_numpy(grids), classes, payload)


class StepRounding:
    """Rounds coefficients in units of their grids as the codec with these tables does.

    `multiples` `[n, 1]`: of the grid, to which each sample of the latest batch was rounded.
    """

    def __init__(self, tables: bytes) -> None:
        (table,) = read_step_tables(tables)
        self._bits = torch.from_numpy(table.lookups.bits)
        # behind the last step nothing is sent: every code is the middle one
        nothing = np.full_like(table.lookups.rounded[:1], CENTRE)
        self._rounded = torch.from_numpy(np.concatenate([table.lookups.rounded, nothing]))
        self._places = torch.from_numpy(np.asarray(table.class_rows, np.int64))
        self._widths = torch.tensor([*MULTIPLES, 1], dtype=torch.float32)[:, None]  # of a sample of zeros, any will do
        self.multiples = torch.ones(1, 1)
        self._room = 8 * table.settings.payload_bytes - _END_BITS

    def __call__(self, scaled: Tensor) -> Tensor:
        """Coefficients `[n, k]` rounded to whole numbers, each sample at its own step; the gradient passes through."""
        with torch.no_grad():
            index = self._index_codes(scaled)
            steps = self._choose_steps(index)
            self.multiples = self._widths[steps]
            rounded = self._rounded[steps[:, None], index].to(scaled.dtype) - CENTRE
        return scaled + (rounded - scaled).detach()

    def _index_codes(self, scaled: Tensor) -> Tensor:
        """Place of each coefficient's code on the fine grid in the codec's lookups."""
        codes = torch.round(scaled).clamp(-CENTRE, LEVELS - 1 - CENTRE) + CENTRE
        return codes.long() + self._places

    def _choose_steps(self, index: Tensor) -> Tensor:
        """Each sample's step `[n]`: the finest that fits, or the one behind the last, which sends nothing."""
        found = torch.full((len(index),), len(self._bits))
        for step in reversed(range(len(self._bits))):
            found = torch.where(self._bits[step][index].sum(1) <= self._room, step, found)
        return found
