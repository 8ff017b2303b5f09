"""Hub time: seconds since 1970 that never run backwards, whatever is done to the machine's clock.

Small forward corrections are followed; a step back, or ahead by more than an hour, is not: the monotonic clock goes on.

How late the event loop is: what a process knows of its own overload, when its engines know nothing of it.
"""

import asyncio
import time
from collections.abc import Callable

MAX_STEP_S = 3600.0


class HubClock:
    """`floor_s` = the newest time this hub ever stored: a machine that boots in 1970 starts from there."""

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
        at = self._monotonic()
        own = self._last_s + (at - self._at)
        wall = self._wall()
        self._at = at
        self._last_s = wall if own <= wall <= own + MAX_STEP_S else own
        return self._last_s


EVERY_S = 0.02


class Pulse:
    """`lag_s`: by how much the last beats came too late; it falls by half with each beat that is in time."""

    def __init__(self) -> None:
        self._lag_s = 0.0
        self._due = float("inf")

    @property
    def lag_s(self) -> float:
        """Also the beat that is overdue now counts."""
        return max(self._lag_s, time.monotonic() - self._due)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._due = time.monotonic() + EVERY_S
            await asyncio.sleep(EVERY_S)
            late = time.monotonic() - self._due
            self._lag_s = max(late, self._lag_s / 2)
