"""Deterministic torch for a block of code: fixed threads, one seed, deterministic kernels; all restored at the end.

Rule: same seed, same machine, same threads: same weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# one is as quick as two for small nets, and waiting at barriers made two six times slower on a busy machine
THREADS = 1


@contextmanager
def deterministic_torch(seed: int, threads: int = THREADS) -> Iterator[None]:
    """Context in which torch's random numbers follow from `seed`, with `threads` threads and deterministic kernels."""
    before, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(mode=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(mode=strict)
            torch.set_num_threads(before)
