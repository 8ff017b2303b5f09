"""Quick leakage of every cut's untrained codes: the leakage column of the table of cuts.

Rule: a quick attack on training-free codes, bounded in samples and cuts; it ranks cuts, and is no row of a manifest.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from models.forge.data.types import Data
from models.forge.leakage.measure import quick_upper95
from models.forge.partition.code_levels import fitted
from models.forge.partition.cost import HeadCost
from models.forge.partition.cuts import Cut, Traced
from models.forge.partition.split import features_of, halves

_SAMPLES = 1_500
_MOST_CODE_BYTES = 40 << 20  # of one cut's codes: an attack on more takes minutes
_CHUNK = 100


def attacked(
    traced: Traced, rows: Sequence[HeadCost], data: Data, most: int, tell: Callable[[float], None]
) -> list[HeadCost]:
    """The rows with `leakage`, for the `most` cuts that no other beats in time and bytes at once."""
    chosen = set(pareto(rows)[:most])
    x = data.calibration.x[0][:_SAMPLES]
    found = []
    for number, row in enumerate(rows):
        found.append(row._replace(leakage=_leakage(traced, row, x)) if row.cut.name in chosen else row)
        tell((number + 1) / len(rows))
    return found


def pareto(rows: Sequence[HeadCost]) -> list[str]:
    """Names of the Pareto-optimal cuts in head latency and coded bytes, the fewest bytes first."""
    kept: list[HeadCost] = []
    for row in sorted(rows, key=lambda row: (row.head_us, row.coded_bytes)):
        if not kept or row.coded_bytes < kept[-1].coded_bytes:
            kept.append(row)
    return [row.cut.name for row in reversed(kept)]


def _leakage(traced: Traced, row: HeadCost, x: np.ndarray) -> float | None:
    count = min(len(x), _MOST_CODE_BYTES // max(1, _numbers(row.cut)))
    head = halves(traced, row.cut).head
    with torch.no_grad():
        parts = [
            features_of(head, torch.from_numpy(np.ascontiguousarray(x[start : start + _CHUNK])))
            for start in range(0, count, _CHUNK)
        ]
        features = [torch.cat(column) for column in zip(*parts, strict=True)]
        codes = tuple(fitted(one, row.levels).codes(one.clone()).numpy() for one in features)
    return round(quick_upper95(x[:count], codes, ids=x.dtype.kind in "iu"), 4)


def _numbers(cut: Cut) -> int:
    return cut.values
