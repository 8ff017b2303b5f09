"""Connections of all devices of a region to their hubs' brokers: which are up, cut, lost and retried.

Rule: an attempt that must fail changes nothing but the time of the next one, so it is computed and not simulated.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from policies.monitoring import backoff
from simulations.kernel.kernel import Kernel
from simulations.nodes.broker import ClientConnection

RECONNECT_BASE_S = 0.5
RECONNECT_CAP_S = 60.0
SPREAD_AT_MOST_S = 300.0
_FORGOTTEN = 10  # times the cap: after so long an attempt's time no longer depends on when the first one was


class BrokerState(Protocol):
    """State of the broker that a connection ends at."""

    @property
    def up(self) -> bool:
        """Whether the broker accepts connections."""


class Connections:
    """Connections by device (its number in the whole fleet) and line name.

    `told(number, name, up=...)` is called for every connection that comes or goes. `lines`: by line name and place,
    None = as at the start. `off`: by device, how many of its connections are down.
    """

    def __init__(
        self, numbers: range, brokers: dict[str, BrokerState], kernel: Kernel, dice: Random, told: Callable[..., None]
    ) -> None:
        self.lines: dict[str, list[ClientConnection | None]] = {name: [None] * len(numbers) for name in brokers}
        self.off = bytearray(len(numbers))  # how many of its lines are down, cut or lost to it
        self._first = numbers.start
        self._brokers = brokers
        self._kernel = kernel
        self._dice = dice
        self._told = told
        self._lost: dict[str, dict[int, float]] = {name: {} for name in brokers}  # since when
        self._parted: dict[int, int] = {}
        self._barred: dict[int, float] = {}
        self._spread_s: dict[int, float] = {}
        self._try = self._attempt  # bound once: half a fleet may be waiting for its next attempt

    def links_up(self, number: int) -> tuple[bool, ...]:
        """For each line, whether the device believes it to be up."""
        place = number - self._first
        return tuple([(line := lines[place]) is None or line.up for lines in self.lines.values()])

    def get(self, number: int, name: str) -> ClientConnection:
        """One connection of a device; it is made when it is asked for first, and is up."""
        lines, place = self.lines[name], number - self._first
        line = lines[place]
        if line is None:
            line = lines[place] = ClientConnection()
            line.up = True
        return line

    # Cut and restored

    def cut_links(self, number: int, names: Iterable[str] | None = None) -> None:
        """Cut these lines (None = all) of a device: nothing passes, and nobody is notified."""
        for name in self.lines if names is None else names:
            self.get(number, name).cut += 1
        self._parted[number] = self._parted.get(number, 0) + 1

    def restore_links(self, number: int, names: Iterable[str] | None = None) -> None:
        """End one cut of these lines (None = all) of a device."""
        for name in self.lines if names is None else names:
            self.get(number, name).cut -= 1
        self._parted[number] -= 1
        if not self._parted[number]:
            del self._parted[number]
        self.retry(number)

    def refuse_until(self, number: int, until_s: float) -> None:
        """Let no broker accept the device before `until_s` (virtual seconds)."""
        self._barred[number] = until_s
        self._kernel.schedule_at(until_s, self.retry, number)

    def spread_reconnect(self, number: int, seconds: float) -> None:
        """Spread the device's next connects over `seconds`, as the hub's welcome asks."""
        if seconds > RECONNECT_BASE_S:
            self._spread_s[number] = min(seconds, SPREAD_AT_MOST_S)

    # Lost and connected again

    def notice_loss(self, number: int, name: str) -> bool:
        """The device notices that this connection is lost. False if it was down already."""
        line = self.get(number, name)
        if not line.up:
            return False
        line.drop()
        self.off[number - self._first] += 1
        self._lost[name][number] = self._kernel.now
        self._told(number, name, up=False)
        if self._can_connect(number, name):
            self._schedule_attempt(number, name)
        return True

    def drop_all(self, number: int) -> None:
        """The device's process is gone, and its connections with it."""
        for name in self.lines:
            line = self.get(number, name)
            if line.up:
                line.drop()
                self.off[number - self._first] += 1
            self._lost[name].pop(number, None)

    def begin_connecting(self, number: int) -> None:
        """The device's process starts: it has no connection yet, and tries each."""
        for lost in self._lost.values():
            lost[number] = self._kernel.now
        self.retry(number)

    def retry(self, number: int) -> None:
        """Schedule the next attempts of a device, since something has changed and one may succeed now."""
        for name in self.lines:
            if number in self._lost[name] and self._can_connect(number, name):
                self._schedule_attempt(number, name)

    def _can_connect(self, number: int, name: str) -> bool:
        barred = self._barred.get(number, 0.0) > self._kernel.now
        return self._brokers[name].up and not self.get(number, name).cut and not barred

    def _schedule_attempt(self, number: int, name: str) -> None:
        """Schedule the first attempt that is still to come, with the backoff of all since the connection was lost."""
        now, at, attempt = self._kernel.now, self._lost[name][number], 0
        base_s = max(RECONNECT_BASE_S, self._spread_s.get(number, 0.0))
        cap_s = max(RECONNECT_CAP_S, base_s)
        if now - at > _FORGOTTEN * cap_s:
            at, attempt = now - _FORGOTTEN / 2 * cap_s, _FORGOTTEN
        while at <= now:
            at += backoff.compute_delay(attempt, self._dice.random(), base_s, cap_s)
            attempt += 1
        self._kernel.schedule_at(at, self._try, number, name)

    def _attempt(self, number: int, name: str) -> None:
        if number not in self._lost[name] or not self._can_connect(number, name):
            return
        del self._lost[name][number]
        self.get(number, name).connect()
        self.off[number - self._first] -= 1
        self._told(number, name, up=True)

    def retry_all(self, name: str) -> None:
        """Schedule the attempts of every device on this line: its broker is back."""
        for number in list(self._lost[name]):
            if self._can_connect(number, name):
                self._schedule_attempt(number, name)

    def count_offline(self) -> int:
        """Number of devices without any connection, or with every line cut."""
        count = len(self.lines)
        unnoticed = sum(1 for number in self._parted if self.off[number - self._first] < count)
        return self.off.count(count) + unnoticed
