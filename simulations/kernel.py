"""Virtual time: a heap of calls, each at its time, ties in the order of scheduling. Same calls, same run."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any


class Kernel:
    """`now` in virtual seconds; it only moves forward, and only inside `run`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = count()

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` at virtual time `when`; a time that has passed means now, after what is due already."""
        if not when < float("inf"):
            raise ValueError(f"an event at {when} would never, or at no time, happen")
        heappush(self._heap, (max(when, self.now), next(self._serial), call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay_s, call, *args)

    def run(self, until: float) -> None:
        """Do all that is due up to and including `until`; the clock then stands at `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heappop(heap)
            self.events += 1
            call(*args)
        self.now = max(self.now, until)

    @property
    def pending(self) -> int:
        return len(self._heap)
