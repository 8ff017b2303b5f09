"""Timer of the round that the hub gathers: ends it at once, or when `policies.serving.rounds` says.

Rule: whatever else flushes meanwhile (a result of an engine, a web request) takes what was gathered along.
"""

import asyncio
import time
from collections.abc import Callable

from cloud_hub.core.core import HubCore
from policies.serving.rounds import learn_busy

_SAMPLE_S = 0.1


class RoundTimer:
    """Ends rounds of messages by calling `flush`. Every method is called on the event loop."""

    def __init__(self, core: HubCore, now: Callable[[], float], flush: Callable[[], None]) -> None:
        self._core = core
        self._now = now
        self._flush = flush
        self._timer: asyncio.TimerHandle | None = None
        self._busy = 0.0
        self._worked_s, self._seen_s = time.thread_time(), time.monotonic()

    def end_or_wait(self) -> None:
        """Call after each batch of messages: flush now, or when the round ends."""
        self._measure_busy()
        loop = asyncio.get_running_loop()
        # The hub's clock may be set back meanwhile; no round outlasts the limit for that.
        left_s = min(self._core.round.find_end(self._busy) - self._now(), self._core.round.max_wait_s)
        if left_s <= 0.0:
            self._end()
        elif self._timer is None or loop.time() + left_s < self._timer.when():
            self.on_flushed()
            self._timer = loop.call_later(left_s, self._end)

    @property
    def is_gathering(self) -> bool:
        """Whether a round waits for its end."""
        return self._timer is not None

    def on_flushed(self) -> None:
        """Forget the timer: what was gathered has been flushed by somebody else, or is to end earlier."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self.on_flushed()
        self._flush()

    def _measure_busy(self) -> None:
        """Take the share of the time that this thread has worked, at most ten times a second."""
        seen_s = time.monotonic()
        passed_s = seen_s - self._seen_s
        if passed_s >= _SAMPLE_S:
            worked_s = time.thread_time()
            self._busy = learn_busy(self._busy, worked_s - self._worked_s, passed_s)
            self._worked_s, self._seen_s = worked_s, seen_s
