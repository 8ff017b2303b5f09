"""Hub clock that never runs backwards (seconds since 1970), and a monitor of the event loop's lag.

Small forward corrections of the machine's clock are followed; a step back, or ahead by more than an hour, is not: then
the monotonic clock continues.
"""

import asyncio
import time
from collections.abc import Callable

MAX_STEP_S = 3600.0


class HubClock:
    """Clock that follows the wall clock but never goes back.

    `floor_s`: the newest time this hub ever stored, so that a machine that boots in 1970 starts from there.
    """

    def __init__(
        self,
        floor_s: float = 0.0,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._last_s = max(floor_s, wall())
        self._at = monotonic()

    def now(self) -> float:
        """Hub time in seconds since 1970."""
        at = self._monotonic()
        own = self._last_s + (at - self._at)
        wall = self._wall()
        self._at = at
        self._last_s = wall if own <= wall <= own + MAX_STEP_S else own
        return self._last_s


BEAT_EVERY_S = 0.02


class LoopLagMonitor:
    """Measures how late the event loop runs its timers, which shows overload of this process."""

    def __init__(self) -> None:
        self._lag_s = 0.0
        self._due = float("inf")

    @property
    def lag_s(self) -> float:
        """Recent lag in seconds, halved with each timer in time; a timer overdue now counts too."""
        return max(self._lag_s, time.monotonic() - self._due)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._due = time.monotonic() + BEAT_EVERY_S
            await asyncio.sleep(BEAT_EVERY_S)
            late = time.monotonic() - self._due
            self._lag_s = max(late, self._lag_s / 2)
