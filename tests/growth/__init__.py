"""Measures how the time and memory of a reader of outside input grow with its input.

A reader is given inputs of n, 2n and 4n bytes of one shape. Time is the processor's, the least of several runs, so that
other work on the machine does not count; memory is the peak of what Python allocates, by `tracemalloc`.

    assert_linear(parse, lambda size: b"[" + b"1," * (size // 2) + b"1]")
"""

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

MOST_RATIO = 2.2  # of the times at twice the input
MOST_BYTES_PER_BYTE = 8.0  # of memory beyond the input itself
FREE_BYTES = 1 << 20  # that a reader may take however short its input is: bounded tables, buffers of a fixed size
LEAST_S = 0.002  # a run below this is the clock's noise: it is repeated within one measurement
TRIES = 8  # measurements before a ratio counts: on a busy machine caches and clocks change under a run

T = TypeVar("T")


@dataclass(frozen=True)
class Growth:
    """What a reader took at n, 2n and 4n bytes: processor seconds and peak bytes beyond the input."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    peaks: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """Ratio of the times at twice the input, the mean of both doublings.

        One of them alone may meet the size of a cache; what grows faster than its input does so in both.
        """
        return float((self.seconds[-1] / self.seconds[0]) ** (1 / (len(self.seconds) - 1)))

    @property
    def bytes_per_byte(self) -> float:
        """Largest peak for a byte of input, less what every reader may take."""
        return max((peak - FREE_BYTES) / size for size, peak in zip(self.sizes, self.peaks, strict=True))

    def take_least(self, other: "Growth") -> "Growth":
        """Least time of both measurements at each size: what disturbs a run makes it longer, never shorter."""
        return Growth(self.sizes, tuple(map(min, self.seconds, other.seconds)), self.peaks)


def measure_growth(read: Callable[[T], Any], make: Callable[[int], T], size: int, runs: int = 5) -> Growth:
    """Measure `read` on `make(size)`, `make(2 * size)` and `make(4 * size)`. What `read` raises counts as read."""
    sizes = (size, 2 * size, 4 * size)
    inputs = [make(each) for each in sizes]
    seconds = tuple(min(measure_seconds(read, each) for _ in range(runs)) for each in inputs)
    return Growth(sizes, seconds, tuple(measure_peak(read, each) for each in inputs))


def measure_seconds(read: Callable[[T], Any], given: T) -> float:
    """Return the processor seconds of one run, of as many runs as fill `LEAST_S`."""
    gc.disable()
    try:
        began, runs = time.process_time(), 0
        while runs == 0 or time.process_time() - began < LEAST_S:
            _run(read, given)
            runs += 1
        return (time.process_time() - began) / runs
    finally:
        gc.enable()


def measure_peak(read: Callable[[T], Any], given: T) -> int:
    """Return the most bytes that one run holds at once, beyond its input."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        _run(read, given)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def assert_linear(read: Callable[[T], Any], make: Callable[[int], T], size: int = 100_000) -> Growth:
    """Fail unless time grows at most `MOST_RATIO`-fold with twice the input, and memory stays within its bound."""
    growth = measure_growth(read, make, size)
    for _ in range(TRIES - 1):
        if growth.ratio <= MOST_RATIO:
            break
        growth = growth.take_least(measure_growth(read, make, size))
    assert growth.ratio <= MOST_RATIO, f"time grows faster than the input: {growth}"
    assert growth.bytes_per_byte <= MOST_BYTES_PER_BYTE, f"memory for a byte of input: {growth}"
    return growth


def _run(read: Callable[[T], Any], given: T) -> None:
    try:
        read(given)
    except Exception:  # noqa: BLE001 - a refusal is an answer: how long it took counts all the same
        return
