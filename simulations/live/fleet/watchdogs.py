"""Watchdogs of all agents of a process: one timer, where thousands of agents would set one each every few seconds."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLOTS = 100  # of a round: so many turns of the event loop share its agents evenly

Check = Callable[[], None]


class WatchdogWheel:
    """Calls the check of each attached agent once every `every_s`; a turn of the wheel calls those of one slot."""

    def __init__(self, every_s: float) -> None:
        self._pause_s = every_s / SLOTS
        self._slots: list[dict[int, Check]] = [{} for _ in range(SLOTS)]
        self._attached = 0
        self._at = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def attach(self, number: int, check: Check) -> Iterator[None]:
        """Call `check` once a round while the context lasts. `number`: of the agent; those of one process differ."""
        slot = self._slots[number % SLOTS]
        slot[number] = check
        self._attached += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(loop.time() + self._pause_s, self._turn)
        try:
            yield
        finally:
            del slot[number]
            self._attached -= 1

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + self._pause_s, self._turn) if self._attached else None
        self._at = (self._at + 1) % SLOTS
        for check in list(self._slots[self._at].values()):
            check()
