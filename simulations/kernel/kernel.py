"""Event queue of the discrete-event simulator: a heap of calls ordered by virtual time, then by scheduling order.

Equal sequences of calls give equal runs. Times are virtual seconds from the start of the run.

Rule: what is known long before (a slice of sample arrivals) never enters the heap; it is merged with it as time passes
(`Kernel.run_merged`), so that the heap stays small.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class Kernel:
    """Event queue and clock of one simulated region.

    `now`: virtual seconds; it moves forward only, and only inside `run` and `run_merged`. `events`: calls made so far.
    `ends_s`: calls for later than that are dropped silently, so that a run ends by itself.
    """

    def __init__(self, ends_s: float = inf) -> None:
        self.now = 0.0
        self.events = 0
        self._ends_s = ends_s
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def schedule_at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule `call(*args)` for virtual time `when` (s).

        A time that has passed means now, after what is due already. ValueError if `when` is infinite or not a
        number.
        """
        if not when < inf:
            raise ValueError(f"event time {when} is not finite")
        if when <= self._ends_s:
            self._serial = serial = self._serial + 1
            now = self.now
            heappush(self._heap, (max(when, now), serial, call, args))

    def schedule_after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule `call(*args)` for `delay_s` seconds from now; `delay_s` is not negative.

        The same as `schedule_at(now + delay_s)` without its check of the past: this is the hottest call of a run.
        ValueError if the time is infinite or not a number.
        """
        when = self.now + delay_s
        if not when < inf:
            raise ValueError(f"event time {when} is not finite")
        if when <= self._ends_s:
            self._serial = serial = self._serial + 1
            heappush(self._heap, (when, serial, call, args))

    def run(self, until: float) -> None:
        """Make all calls due up to and including `until` (s); the clock then stands at `until`.

        Calls that are scheduled meanwhile for no later than `until` are made too.
        """
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heappop(heap)
            self.events += 1
            call(*args)
        self.now = max(self.now, until)

    def run_merged(self, times: list[float], call: Callable[[int], None], first: int = 0) -> None:
        """Call `call(first)`, `call(first + 1)`, ... at the sorted `times` (s), interleaved with the heap.

        Before each of them whatever else is due is done. The clock then stands at the last of `times`.
        """
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
        """Number of scheduled calls that have not been made yet."""
        return len(self._heap)
