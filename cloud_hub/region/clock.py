"""The clock of a region: its database server's, which every hub of it goes by, whatever its own machine's says.

Rule: one clock for what hubs compare with one another: when a question was asked, how long it is kept, when a device
retires. Only certificates are judged by the machine's own clock, so a hub whose clock is wrong issues none.
"""

import time
from collections.abc import Callable

from cloud_hub.database.server import describe_clock

_MAX_WAIT_S = 1.0  # an answer that took longer says too little about the moment of it


class RegionClock:
    """What the server's clock said last, and the time that passed since. Set by one thread, read by any."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead_s: float | None = None  # of the monotonic clock

    def follow(self, said_s: float, asked_s: float) -> None:
        """The server said so, asked at `asked_s` of the monotonic clock and answering now."""
        answered_s = self._monotonic()
        if self._ahead_s is None or answered_s - asked_s <= _MAX_WAIT_S:
            self._ahead_s = said_s - (asked_s + answered_s) / 2

    def now(self) -> float:
        """Return the server's time in seconds since 1970; this machine's before the server was asked."""
        return self._wall() if self._ahead_s is None else self._monotonic() + self._ahead_s

    @property
    def off_s(self) -> float:
        """How far this machine's clock is ahead of the server's; negative if it is behind."""
        return self._wall() - self.now()

    def fault(self) -> str:
        """Return what is wrong with this machine's clock, "" if nothing is."""
        return describe_clock(self.off_s)
