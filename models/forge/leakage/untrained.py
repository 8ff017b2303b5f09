"""Quick leakage of every cut's untrained codes: the leakage column of the table of cuts.

Rule: a quick attack on training-free codes, bounded in samples and cuts; it ranks cuts, and is no row of a manifest.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from models.forge.data.types import Data
from models.forge.leakage.measure import quick_leakage_bound
from models.forge.partition.code_levels import fit_range
from models.forge.partition.cost import CutCost
from models.forge.partition.cuts import Cut, TracedModel
from models.forge.partition.split import run_head, split_shared

_SAMPLES = 1_500
_MOST_CODE_BYTES = 40 << 20  # of one cut's codes: an attack on more takes minutes
_CHUNK = 100


def attack_cuts(
    traced: TracedModel, rows: Sequence[CutCost], data: Data, most: int, tell: Callable[[float], None]
) -> list[CutCost]:
    """The rows with `leakage`, for the `most` cuts that no other beats in time and bytes at once."""
    chosen = set(pareto_cuts(rows)[:most])
    x = data.calibration.x[0][:_SAMPLES]
    found = []
    for number, row in enumerate(rows):
        found.append(row._replace(leakage=_measure_cut(traced, row, x)) if row.cut.name in chosen else row)
        tell((number + 1) / len(rows))
    return found


def pareto_cuts(rows: Sequence[CutCost]) -> list[str]:
    """Names of the Pareto-optimal cuts in head latency and coded bytes, the fewest bytes first."""
    kept: list[CutCost] = []
    for row in sorted(rows, key=lambda row: (row.head_us, row.coded_bytes)):
        if not kept or row.coded_bytes < kept[-1].coded_bytes:
            kept.append(row)
    return [row.cut.name for row in reversed(kept)]


def _measure_cut(traced: TracedModel, row: CutCost, x: np.ndarray) -> float | None:
    count = min(len(x), _MOST_CODE_BYTES // max(1, _count_values(row.cut)))
    head = split_shared(traced, row.cut).head
    with torch.no_grad():
        parts = [
            run_head(head, torch.from_numpy(np.ascontiguousarray(x[start : start + _CHUNK])))
            for start in range(0, count, _CHUNK)
        ]
        features = [torch.cat(column) for column in zip(*parts, strict=True)]
        codes = tuple(fit_range(one, row.levels).quantise(one.clone()).numpy() for one in features)
    return round(quick_leakage_bound(x[:count], codes, ids=x.dtype.kind in "iu"), 4)


def _count_values(cut: Cut) -> int:
    return cut.values
