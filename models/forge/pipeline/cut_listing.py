"""Listing of a model's cuts without forging: names, shares of the work, shapes and sizes; measured on request.

Rule: the same checks, packing and tracing as in a forge run, so that a name listed here is one for `--cut`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from models.forge.data.coerce import coerce_data
from models.forge.partition.cost import CutCost, measure_frontier, select_bounds
from models.forge.partition.cuts import Cut, find_cuts, trace_model
from models.forge.pipeline import loading
from models.forge.spec import Effort

BYTES_PER_VALUE = 4  # features are float32


class CutListing(NamedTuple):
    """A model's cuts by depth. `sample_bytes`: of one sample as it is given; `macs`: multiply-accumulates of one.

    `costs`: by the name of the cut; empty if nothing was measured.
    """

    cuts: tuple[Cut, ...]
    sample_bytes: int
    macs: int
    costs: dict[str, CutCost]

    def as_fields(self) -> dict[str, Any]:
        """Plain values, for JSON. Microseconds at the median of one sample; `accuracy` is the RMSE of a regressor."""
        rows = [{**_cut_fields(cut), **_cost_fields(self.costs.get(cut.name))} for cut in self.cuts]
        return {"sample_bytes": self.sample_bytes, "macs": self.macs, "cuts": rows}


def list_cuts(model: nn.Module, data: Any, *, measure: Effort | None, tell: Callable[[float], None]) -> CutListing:
    """Trace a model and list its cuts. `measure`: measure every cut with this effort; None: only list them.

    `tell(share)` of the measuring that is done. Raises ForgeError, one line, for a model or data that cannot be forged.
    """
    model, packed, _ = loading.pack_inputs(loading.check_model(model), loading.check_data(coerce_data(data)))
    x = packed.training.x[0]
    traced = trace_model(model, torch.from_numpy(np.ascontiguousarray(x[:2])))
    loading.check_answers(traced, packed)
    cuts = find_cuts(traced)
    bounds = None if measure is None else select_bounds(measure, head_share=1.0)
    rows = measure_frontier(traced, cuts, packed, bounds, tell) if bounds else []
    return CutListing(cuts, x[0].nbytes, traced.macs, {row.cut.name: row for row in rows})


def _cut_fields(cut: Cut) -> dict[str, Any]:
    return {
        "cut": cut.name,
        "share": round(cut.share, 5),
        "shapes": [list(shape) for shape in cut.shapes],
        "raw_bytes": BYTES_PER_VALUE * cut.values,
    }


def _cost_fields(row: CutCost | None) -> dict[str, Any]:
    if row is None:
        return {}
    plain = ("head_us", "tail_us", "coded_bytes", "levels", "accuracy", "whole", "lost", "samples", "busy")
    return {name: getattr(row, name) for name in plain}
