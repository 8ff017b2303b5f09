"""Memory that weights are read into: in large pages where the system has them.

A model of gigabytes is written page after page as it is read. Of 4 KiB each, the pages alone cost half as much as
reading and copying the file; in pages of 2 MiB they cost next to nothing.
"""

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from models.bundle.manifest import BundleError

_LARGE_PAGE_BYTES = 1 << 21
_MIN_BYTES = 2 * _LARGE_PAGE_BYTES  # below it there may be no whole page to be had
_LARGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


def allocate_weight(name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a tensor whose values are not set. BundleError, naming the weight, if there is no memory for it."""
    try:
        return _allocate(dtype, tuple(shape))
    except (RuntimeError, MemoryError, OSError, OverflowError):
        raise BundleError(f"weights: no memory for {name}, {str(dtype).removeprefix('torch.')} {list(shape)}") from None


def _allocate(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    if _LARGE_PAGES is None or size < _MIN_BYTES:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(_LARGE_PAGES)
    except OSError:
        return torch.empty(shape, dtype=dtype)  # a kernel without large pages
    return torch.frombuffer(memory, dtype=dtype).view(shape)
