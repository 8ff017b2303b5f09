"""Memory that weights are read into: in large pages where the system has them.

A model of gigabytes is written page after page as it is read. Of 4 KiB each, the pages alone cost half as much as
reading and copying the file; in pages of 2 MiB they cost next to nothing.
"""

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

_LARGE_PAGE_BYTES = 1 << 21
_MIN_BYTES = 2 * _LARGE_PAGE_BYTES  # below it there may be no whole page to be had
_LARGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


def allocate_weight(dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a tensor whose values are not set.

    RuntimeError, MemoryError, OSError or OverflowError if there is no memory for it.
    """
    size = math.prod(shape) * dtype.itemsize
    if _LARGE_PAGES is None or size < _MIN_BYTES:
        return torch.empty(tuple(shape), dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(_LARGE_PAGES)
    except OSError:
        return torch.empty(tuple(shape), dtype=dtype)  # a kernel without large pages
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))
