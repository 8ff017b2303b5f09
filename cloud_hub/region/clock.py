"""The clock of a region: its database server's, which every hub of it goes by, whatever its own machine's says.

Rule: one clock for what hubs compare with one another: when a question was asked, how long it is kept, when a device
retires. Rule: it is moved only where an answer shows that it is wrong, so that a busy server does not make time jump.
Only certificates are judged by the machine's own clock, so a hub whose clock is wrong issues none.
"""

import time
from collections.abc import Callable

from cloud_hub.database.server import describe_clock


class RegionClock:
    """What the server's clock said last, and the time that passed since. Set by one thread, read by any."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead_s: float | None = None  # of the monotonic clock

    def follow(self, said_s: float, asked_s: float) -> None:
        """The server said so, asked at `asked_s` of the monotonic clock and answering now."""
        answered_s = self._monotonic()
        least_s, most_s = said_s - answered_s, said_s - asked_s  # it looked at its clock somewhere in between
        known_s = (least_s + most_s) / 2 if self._ahead_s is None else self._ahead_s
        self._ahead_s = min(max(known_s, least_s), most_s)

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
