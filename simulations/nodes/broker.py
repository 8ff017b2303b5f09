"""The broker and the lines to it, over virtual time: what is published now arrives later, twice, or not at all.

Law: nothing is kept. A message arrives if broker, sender and receiver are the same connections at its arrival as at its
departure; otherwise it is gone, as with a broker killed -9. Messages overtake each other.
"""

from collections.abc import Callable

from simulations.kernel.kernel import Kernel
from simulations.scenario.conditions import Weather


class Line:
    """One party's connection. `number` counts connections; a line that is `cut` (so many times) carries nothing."""

    __slots__ = ("cut", "number", "up")

    def __init__(self) -> None:
        self.up = False
        self.cut = 0
        self.number = 0

    def connect(self) -> None:
        self.up = True
        self.number += 1

    def drop(self) -> None:
        self.up = False
        self.number += 1


class Air:
    """One hub's broker. `lives` counts its deaths."""

    def __init__(self, kernel: Kernel, weather: Weather) -> None:
        self.up = True
        self.carried = 0
        self.gone = 0
        self._kernel = kernel
        self._weather = weather
        self.lives = 0

    def kill(self) -> None:
        self.up = False
        self.lives += 1

    def revive(self) -> None:
        self.up = True

    def lose(self) -> None:
        """A message that nobody could send."""
        self.gone += 1

    def carry(self, target: Line, hear: Callable[..., None], *message: object, extra_s: float = 0.0) -> None:
        """`target`'s end hears it; the sender is known to be up. `extra_s`: the bytes' own time on the way."""
        if not self.up:
            self.gone += 1
            return
        delays = self._weather.arrivals()
        if not delays:
            self.gone += 1
        for delay_s in delays:
            sent_over = self.lives, target.number
            self._kernel.after(delay_s + extra_s, self._arrive, target, sent_over, hear, message)

    def _arrive(
        self, target: Line, sent_over: tuple[int, int], hear: Callable[..., None], message: tuple[object, ...]
    ) -> None:
        if not target.up or target.cut or sent_over != (self.lives, target.number):
            self.gone += 1
            return
        self.carried += 1
        hear(*message)
