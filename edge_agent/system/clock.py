"""Hub-time clock for a device whose wall clock cannot be trusted.

Rule: order and deadlines come from the monotonic clock alone. Hub time = monotonic + the offset of the hub's signed
messages. A message may come late, so it moves the offset forward at once; backward only a `WelcomeNote` to our own
fresh `HelloNote` moves it, whose delay we know, and never below the floor (the latest hub time ever seen, kept in
agent.db).
Rule: what ends a question counts by `sure_ms` alone: the last signed hub time plus the time that we ran. It
is never ahead of the hub, whatever the wall clock says.
"""

import asyncio
import time
from collections.abc import Callable

_DAY_MS = 86_400_000
_TRUST_WALL_MS = 400 * _DAY_MS  # a wall clock further ahead of the floor than this is considered broken
_FRESH_S = 10.0


def read_boot_clock() -> float:
    """Seconds since boot, suspended time included where the system can tell (Linux)."""
    return time.clock_gettime(_BOOT_CLOCK)


def read_wall_ms() -> int:
    """The machine's wall clock, in milliseconds since 1970; it may be wrong."""
    return time.time_ns() // 1_000_000


_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class HubClock:
    """Estimate of hub time; `now()` is the monotonic clock of the core, in seconds."""

    def __init__(
        self, floor_ms: int, mono_s: Callable[[], float] = read_boot_clock, wall: Callable[[], int] = read_wall_ms
    ) -> None:
        self.now = mono_s
        self.floor_ms = floor_ms
        self._wall = wall
        self._heard = False
        self._hello_at: float | None = None
        self._offset_ms = 0
        self._sure_offset_ms = floor_ms - self._mono_ms()
        self.raise_floor(floor_ms)

    def hub_ms(self) -> int:
        """Best estimate of hub time, in milliseconds since 1970; never below the floor."""
        at_ms = int(self.now() * 1000) + self._offset_ms  # twice in every answer: no call that can be spared
        return at_ms if at_ms > self.floor_ms else self.floor_ms  # noqa: FURB136

    @property
    def is_synchronized(self) -> bool:
        """Whether a signed hub message has set the clock since the start."""
        return self._heard

    def hub_day(self) -> int:
        """Whole days since 1970 by `sure_ms`, for budgets and policies that end with a day.

        A wall clock that is ahead therefore opens no new day.
        """
        return self.sure_ms() // _DAY_MS

    def sure_ms(self) -> int:
        """Lower bound of hub time, in milliseconds since 1970."""
        return self._mono_ms() + self._sure_offset_ms

    def to_core_time(self, ms: int) -> float:
        """Convert a time of `sure_ms` to seconds on the core's clock."""
        return self.now() + (ms - self.sure_ms()) / 1000

    def to_sure_ms(self, moment: float) -> int:
        """Convert seconds on the core's clock to a time of `sure_ms`."""
        return self.sure_ms() + round((moment - self.now()) * 1000)

    def raise_floor(self, floor_ms: int, sure_ms: int = 0) -> None:
        """Apply the two lower bounds that agent.db remembers; neither ever goes back.

        Until the hub sends a signed time, a plausible wall clock is used to estimate how long the device was off.
        """
        self.floor_ms = max(self.floor_ms, floor_ms)
        self._raise_sure_ms(max(self.floor_ms, sure_ms))
        if not self._heard:
            wall = self._wall()
            plausible = self.floor_ms <= wall <= self.floor_ms + _TRUST_WALL_MS
            self._offset_ms = (wall if plausible else self.floor_ms) - self._mono_ms()

    def on_hello_sent(self) -> None:
        """Note that a `HelloNote` was just sent: a `WelcomeNote` within 10 s may then set the clock back."""
        self._hello_at = self.now()

    def on_signed_time(self, created_ms: int, *, welcome: bool = False) -> None:
        """A message with a valid signature was created at hub time `created_ms`: adjust the clock to it."""
        mono_ms = self._mono_ms()
        offset = created_ms - mono_ms
        fresh = welcome and self._hello_at is not None and self.now() - self._hello_at <= _FRESH_S
        if fresh and created_ms >= self.floor_ms:
            self._offset_ms = offset
            self._hello_at = None
            self._heard = True
        elif offset > self._offset_ms:
            self._offset_ms = offset
            self._heard = True
        self.floor_ms = max(self.floor_ms, created_ms)
        self._raise_sure_ms(created_ms)

    def _raise_sure_ms(self, ms: int) -> None:
        self._sure_offset_ms = max(self._sure_offset_ms, ms - self._mono_ms())

    def _mono_ms(self) -> int:
        return int(self.now() * 1000)


async def sleep_unless(stopping: asyncio.Event, seconds: float) -> None:
    """Sleep for so many seconds, but no longer than until `stopping` is set."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return
