"""How many devices may be told now: never more than so many in any minute, whatever restarts or other hubs do. Pure.

Law: what this process did not see itself it takes for done this very moment. So neither a restart nor a clock that was
set ahead in between, nor a second hub, ever frees a place too early; all it costs is up to a minute of waiting.
"""

from collections import deque
from math import inf

WINDOW_S = 60.0


class Pace:
    """A sliding window of the times at which devices were told. `now` in seconds; one that goes back frees nothing."""

    def __init__(self, assumed: int = 0, now: float = 0.0) -> None:
        self._times = deque([now] * assumed)

    def free(self, most: int, now: float) -> int:
        """How many more may be told at this moment, if `most` may be in any minute."""
        while self._times and self._times[0] <= now - WINDOW_S:
            self._times.popleft()
        return max(0, most - len(self._times))

    def take(self, now: float) -> None:
        """One was told. Times never fall, so that the oldest stands first."""
        self._times.append(max(now, self._times[-1]) if self._times else now)

    def free_at(self, most: int) -> float:
        """When the next place is free; -inf if there is one."""
        held = len(self._times) - most
        return self._times[held] + WINDOW_S if held >= 0 and most > 0 else (-inf if most > 0 else inf)
