"""The batch sizes that are computed: so few that each was met before the first request, so close that little is wasted.

Rule: pure. A batch is filled up to the next bucket with copies of its last row, which is a row that may be there.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


def ladder(max_batch: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ... up to and with `max_batch`: at most a third of a batch is filling."""
    steps = {max_batch}
    power = 1
    while power < max_batch:
        steps |= {power, power + power // 2}
        power *= 2
    return tuple(sorted(step for step in steps if step <= max_batch))


def bucket(count: int, buckets: Sequence[int]) -> int:
    """The smallest one that holds `count` rows. ValueError if none does."""
    for size in buckets:
        if size >= count:
            return size
    raise ValueError(f"a batch of {count}, the largest bucket is {max(buckets, default=0)}")


def pad(column: Array, size: int) -> Array:
    """`[n, ...]` -> `[size, ...]`, n >= 1."""
    missing = size - len(column)
    return column if not missing else np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])
