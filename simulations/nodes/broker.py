"""Simulated MQTT broker and the client connections to it: a published message arrives later, twice, or not at all.

Rule: nothing is kept. A message arrives if broker, sender and receiver are the same connections at its arrival as at
its departure; otherwise it is lost, as with a broker killed by SIGKILL. Messages overtake each other.
"""

from collections.abc import Callable

from simulations.kernel.kernel import Kernel
from simulations.scenario.conditions import ConditionSampler


class ClientConnection:
    """One party's connection to a broker.

    `number` counts connections; while `cut` (by so many faults) it carries nothing. `up` is what the party
    believes.
    """

    __slots__ = ("cut", "number", "up")

    def __init__(self) -> None:
        self.up = False
        self.cut = 0
        self.number = 0

    def connect(self) -> None:
        """A new connection is up."""
        self.up = True
        self.number += 1

    def drop(self) -> None:
        """The connection is gone; what was on its way over it is lost."""
        self.up = False
        self.number += 1


class SimulatedBroker:
    """One hub's broker. `lives` counts its restarts; `carried` and `gone` count messages delivered and lost."""

    def __init__(self, kernel: Kernel, weather: ConditionSampler) -> None:
        self.up = True
        self.carried = 0
        self.gone = 0
        self._kernel = kernel
        self._weather = weather
        self.lives = 0

    def kill(self) -> None:
        """The broker process dies: every connection and message on its way is lost."""
        self.up = False
        self.lives += 1

    def restart(self) -> None:
        """The broker is up again, without any connection."""
        self.up = True

    def count_lost(self) -> None:
        """Count a message that nobody could send."""
        self.gone += 1

    def deliver(
        self,
        target: ClientConnection,
        hear: Callable[..., None],
        *message: object,
        extra_s: float = 0.0,
        delays: tuple[float, ...] | None = None,
    ) -> None:
        """Deliver `message` to `target` by calling `hear(*message)` after `delays` (None = drawn now).

        The sender is known to be up. `extra_s`: transmission time of the bytes themselves.
        """
        if not self.up:
            self.gone += 1
            return
        if delays is None:
            delays = self._weather.draw_delays()
        if not delays:
            self.gone += 1
        for delay_s in delays:
            sent_over = self.lives, target.number
            self._kernel.schedule_after(delay_s + extra_s, self._deliver_now, target, sent_over, hear, message)

    def publish(self, hear: Callable[..., bool], *message: object, extra_s: float = 0.0) -> None:
        """Bring `message` to the broker after drawn delays; `hear(*message)` says there whether anybody gets it."""
        delays = self._weather.draw_delays() if self.up else ()
        self.gone += not delays
        for delay_s in delays:
            self._kernel.schedule_after(delay_s + extra_s, self._publish_now, self.lives, hear, message)

    def _publish_now(self, life: int, hear: Callable[..., bool], message: tuple[object, ...]) -> None:
        heard = self.up and life == self.lives and hear(*message)
        self.carried += heard
        self.gone += not heard

    def _deliver_now(
        self,
        target: ClientConnection,
        sent_over: tuple[int, int],
        hear: Callable[..., None],
        message: tuple[object, ...],
    ) -> None:
        if not target.up or target.cut or sent_over != (self.lives, target.number):
            self.gone += 1
            return
        self.carried += 1
        hear(*message)
