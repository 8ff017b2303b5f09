"""The broker and the lines to it, over virtual time: what is published now arrives later, twice, or not at all.

Law: nothing is kept. A message arrives if broker, sender and receiver are the same connections at its arrival as at its
departure; otherwise it is gone, as with a broker killed -9. Messages overtake each other.
"""

from collections.abc import Callable

from simulations.kernel import Kernel
from simulations.weather import Weather

Hear = Callable[[str, bytes], None]  # (topic, payload)


class Line:
    """One party's connection. `number` counts connections; a line that is `cut` (so many times) carries nothing."""

    __slots__ = ("cut", "hear", "number", "up")

    def __init__(self, hear: Hear) -> None:
        self.hear = hear
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
    def __init__(self, kernel: Kernel, weather: Weather) -> None:
        self.up = True
        self.carried = 0
        self.gone = 0
        self._kernel = kernel
        self._weather = weather
        self._number = 0  # counts broker lives

    def kill(self) -> None:
        self.up = False
        self._number += 1

    def revive(self) -> None:
        self.up = True

    def carry(self, source: Line, target: Line, topic: str, payload: bytes) -> None:
        if not (self.up and source.up) or source.cut:
            self.gone += 1
            return
        delays = self._weather.arrivals()
        self.gone += not delays
        for delay_s in delays:
            self._kernel.after(delay_s, self._arrive, target, (self._number, target.number), topic, payload)

    def _arrive(self, target: Line, sent_over: tuple[int, int], topic: str, payload: bytes) -> None:
        if not target.up or target.cut or sent_over != (self._number, target.number):
            self.gone += 1
            return
        self.carried += 1
        target.hear(topic, payload)
