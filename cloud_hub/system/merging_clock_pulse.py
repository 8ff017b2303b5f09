"""How late the event loop is: what a process knows of its own overload, when its engines know nothing of it."""

import asyncio
import time

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
