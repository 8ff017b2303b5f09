"""The connections of all devices of a region, one to each hub's broker: which are up, cut, lost and tried again.

Law: a try that must fail changes nothing but when the next one comes, so it is worked out and does not happen.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from policies.monitoring import backoff
from simulations.kernel.kernel import Kernel
from simulations.nodes.broker import Line

RECONNECT_BASE_S = 0.5
RECONNECT_CAP_S = 60.0
SPREAD_AT_MOST_S = 300.0
_FORGOTTEN = 10  # times the cap after which nothing tells any more when the first try was


class Broker(Protocol):
    """Where a line ends."""

    @property
    def up(self) -> bool: ...


class Wires:
    """By device (its number in the whole fleet) and line (its name). `told` hears of every line that comes or goes."""

    def __init__(
        self, numbers: range, brokers: dict[str, Broker], kernel: Kernel, dice: Random, told: Callable[..., None]
    ) -> None:
        self.lines = {name: [Line() for _ in numbers] for name in brokers}
        self.off = bytearray(len(numbers))  # how many of its lines are down, cut or lost to it
        self._first = numbers.start
        self._brokers = brokers
        self._kernel = kernel
        self._dice = dice
        self._told = told
        self._lost: dict[tuple[int, str], float] = {}  # since when
        self._parted: dict[int, int] = {}
        self._barred: dict[int, float] = {}
        self._spread_s: dict[int, float] = {}
        for lines in self.lines.values():
            for line in lines:
                line.up = True

    def of(self, number: int) -> dict[str, Line]:
        return {name: lines[number - self._first] for name, lines in self.lines.items()}

    def ups(self, number: int) -> tuple[bool, ...]:
        """Which of its lines it believes to be up."""
        return tuple(lines[number - self._first].up for lines in self.lines.values())

    def get(self, number: int, name: str) -> Line:
        return self.lines[name][number - self._first]

    # Cut off, and back

    def part(self, number: int, names: Iterable[str] | None = None) -> None:
        """Nothing passes, and nobody is told."""
        for name in self.lines if names is None else names:
            self.get(number, name).cut += 1
        self._parted[number] = self._parted.get(number, 0) + 1

    def rejoin(self, number: int, names: Iterable[str] | None = None) -> None:
        for name in self.lines if names is None else names:
            self.get(number, name).cut -= 1
        self._parted[number] -= 1
        if not self._parted[number]:
            del self._parted[number]
        self.retry(number)

    def bar(self, number: int, until_s: float) -> None:
        """No broker lets it in before."""
        self._barred[number] = until_s
        self._kernel.at(until_s, self.retry, number)

    def spread(self, number: int, seconds: float) -> None:
        """The hub's wish for its next connect."""
        if seconds > RECONNECT_BASE_S:
            self._spread_s[number] = min(seconds, SPREAD_AT_MOST_S)

    # Lost, and found

    def lose(self, number: int, name: str) -> bool:
        """It notices that this connection is gone. False if it was."""
        line = self.get(number, name)
        if not line.up:
            return False
        line.drop()
        self.off[number - self._first] += 1
        self._lost[number, name] = self._kernel.now
        self._told(number, name, up=False)
        if self._open(number, name):
            self._schedule(number, name)
        return True

    def drop(self, number: int) -> None:
        """Its process is gone, and its connections with it."""
        for name in self.lines:
            line = self.get(number, name)
            if line.up:
                line.drop()
                self.off[number - self._first] += 1
            self._lost.pop((number, name), None)

    def begin(self, number: int) -> None:
        """Its process starts: it has no connection yet, and tries."""
        for name in self.lines:
            self._lost[number, name] = self._kernel.now
        self.retry(number)

    def retry(self, number: int) -> None:
        """Something has changed: a try may succeed now."""
        for name in self.lines:
            if (number, name) in self._lost and self._open(number, name):
                self._schedule(number, name)

    def _open(self, number: int, name: str) -> bool:
        barred = self._barred.get(number, 0.0) > self._kernel.now
        return self._brokers[name].up and not self.get(number, name).cut and not barred

    def _schedule(self, number: int, name: str) -> None:
        """The tries since the connection was lost, up to the first that is still to come."""
        now, at, attempt = self._kernel.now, self._lost[number, name], 0
        base_s = max(RECONNECT_BASE_S, self._spread_s.get(number, 0.0))
        cap_s = max(RECONNECT_CAP_S, base_s)
        if now - at > _FORGOTTEN * cap_s:
            at, attempt = now - _FORGOTTEN / 2 * cap_s, _FORGOTTEN
        while at <= now:
            at += backoff.delay(attempt, self._dice.random(), base_s, cap_s)
            attempt += 1
        self._kernel.at(at, self._try, number, name)

    def _try(self, number: int, name: str) -> None:
        if (number, name) not in self._lost or not self._open(number, name):
            return
        del self._lost[number, name]
        self.get(number, name).connect()
        self.off[number - self._first] -= 1
        self._told(number, name, up=True)

    def retry_all(self, name: str) -> None:
        """A broker is back."""
        for number, lost in list(self._lost):
            if lost == name and self._open(number, name):
                self._schedule(number, name)

    def offline(self) -> int:
        """Devices without any connection, or with every line cut."""
        count = len(self.lines)
        unnoticed = sum(1 for number in self._parted if self.off[number - self._first] < count)
        return self.off.count(count) + unnoticed
