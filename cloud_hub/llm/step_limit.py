"""Limits the time that each step of a stream may take.

Rule: there is one timer for all steps. It is not moved at every step, which costs more than a step does; when it fires
it looks at what is due by then.
"""

import asyncio
from types import TracebackType
from typing import Self


class StepLimit:
    """Ends the block of an `async with` by TimeoutError once a step has taken too long.

    `total_s`: seconds for all steps together. A step begins with `begin` and ends with the next one, or with the block.
    """

    def __init__(self, total_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + total_s
        self._due = self._ends_at
        self._timer: asyncio.TimerHandle | None = None
        self._timeout = asyncio.timeout(None)

    @property
    def is_over(self) -> bool:
        """Whether the time for all steps together is over."""
        return self._loop.time() >= self._ends_at

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def begin(self, within_s: float) -> None:
        """Begin a step that may take so many seconds."""
        self._due = due = min(self._loop.time() + within_s, self._ends_at)
        if self._timer is None or due < self._timer.when():
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._loop.time() < self._due:
            self._set_timer(self._due)
        else:
            self._timeout.reschedule(self._loop.time())
