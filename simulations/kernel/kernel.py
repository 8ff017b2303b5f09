"""Virtual time: a heap of calls, each at its time, ties in the order of scheduling. Same calls, same run.

Law: what is known long before (a slice of arrivals) never enters the heap; it is merged with it as time passes.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class Kernel:
    """`now` in virtual seconds; it moves forward, and only inside `run` and `merge`. Nothing happens after `ends_s`."""

    def __init__(self, ends_s: float = inf) -> None:
        self.now = 0.0
        self.events = 0
        self._ends_s = ends_s
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` at virtual time `when`; a time that has passed means now, after what is due already."""
        if not when < inf:
            raise ValueError(f"an event at {when} would never, or at no time, happen")
        if when <= self._ends_s:
            self._serial = serial = self._serial + 1
            now = self.now
            heappush(self._heap, (max(when, now), serial, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """As `at`, so many seconds (none of them negative) from now."""
        when = self.now + delay_s
        if not when < inf:
            raise ValueError(f"an event at {when} would never, or at no time, happen")
        if when <= self._ends_s:
            self._serial = serial = self._serial + 1
            heappush(self._heap, (when, serial, call, args))

    def run(self, until: float) -> None:
        """Do all that is due up to and including `until`; the clock then stands at `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heappop(heap)
            self.events += 1
            call(*args)
        self.now = max(self.now, until)

    def merge(self, times: list[float], call: Callable[[int], None], first: int = 0) -> None:
        """Call `call(first)`, `call(first + 1)`, ... at these times (sorted), and before each whatever else is due."""
        heap, done = self._heap, 0
        for number, when in enumerate(times, first):
            while heap and heap[0][0] <= when:
                self.now, _, due, args = heappop(heap)
                done += 1
                due(*args)
            self.now = when
            call(number)
        self.events += done + len(times)

    @property
    def pending(self) -> int:
        return len(self._heap)
