"""Virtual time of one process of a simulated fleet, which may be stopped and woken, and ends with it.

Rule: what falls due while it is stopped happens once it is woken, in order; what falls due after its end never does.
"""

from collections.abc import Callable
from typing import Any, Protocol

from simulations.kernel.kernel import Kernel


class Scheduler(Protocol):
    """What schedules calls in virtual time: a kernel, or the clock of a process."""

    @property
    def now(self) -> float:
        """Virtual seconds from the start of the run."""

    def schedule_after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule `call(*args)` for `delay_s` seconds from now."""


class ProcessClock:
    """Clock of one life of a process. `stopped`: it does nothing at the moment; `ended`: and never will."""

    __slots__ = ("_kernel", "_waiting", "ended", "stopped")

    def __init__(self, kernel: Kernel) -> None:
        self.stopped = False
        self.ended = False
        self._kernel = kernel
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def now(self) -> float:
        """Virtual seconds from the start of the run."""
        return self._kernel.now

    def schedule_after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule `call(*args)` for `delay_s` seconds from now."""
        self._kernel.schedule_after(delay_s, self.call, call, args)

    def schedule_at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule `call(*args)` for virtual time `when` (s)."""
        self._kernel.schedule_at(when, self.call, call, args)

    def call(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Call it now, or when the process is woken."""
        if self.stopped:
            self._waiting.append((call, args))
        elif not self.ended:
            call(*args)

    def stop(self) -> None:
        """The process is stopped."""
        self.stopped = True

    def wake(self) -> None:
        """The process goes on: what fell due meanwhile happens now."""
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._kernel.schedule_at(self._kernel.now, self.call, *each)

    def end(self) -> None:
        """The process has ended."""
        self.stopped, self.ended = False, True
        self._waiting.clear()
