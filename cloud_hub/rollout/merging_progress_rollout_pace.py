"""How many devices may be told now: never more than so many in any minute, whatever restarts or other hubs do. Pure.

Law: whom this process did not tell itself it takes for told at the moment when it learns of it. So neither a restart,
nor a clock that was set ahead in between, nor a second hub ever frees a place too early; all it costs is a minute.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from math import inf

WINDOW_S = 60.0


class Pace:
    """A sliding window of who was told when. `now` in seconds; one that goes back frees nothing."""

    def __init__(self, told: Iterable[tuple[float, str]] = ()) -> None:
        self._told = deque(sorted(told))
        self._fresh = 0

    def __iter__(self) -> Iterator[tuple[float, str]]:
        return iter(self._told)

    def free(self, most: int, now: float) -> int:
        """How many more may be told at this moment, if `most` may be in any minute."""
        while self._told and self._told[0][0] <= now - WINDOW_S:
            self._told.popleft()
        return max(0, most - len(self._told))

    def take(self, device: str, now: float) -> None:
        """It was told. Times never fall, so that the oldest stands first."""
        self._told.append((max(now, self._told[-1][0]) if self._told else now, device))
        self._fresh += 1

    def settle(self, now: float) -> None:
        """Who was taken since goes out at this moment: writing it down first may have taken its time."""
        fresh = [self._told.pop()[1] for _ in range(min(self._fresh, len(self._told)))]
        self._fresh = 0
        for device in reversed(fresh):
            self.take(device, now)
        self._fresh = 0

    def free_at(self, most: int) -> float:
        """When the next place is free; -inf if there is one."""
        held = len(self._told) - most
        return self._told[held][0] + WINDOW_S if held >= 0 else -inf
