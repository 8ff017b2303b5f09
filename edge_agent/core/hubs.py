"""State of the connections to the hubs: which are up, which hub asked for a pause, how fast each replies. Pure.

A connection ("line") is one link to one broker. The home connection, named "", leads to the broker whose identity
folder is the agent's own; additional hubs have connections of their own. Times are seconds on the core's clock.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from edge_agent.core.commands import State
from edge_agent.core.pending import Question
from policies.decisions.escalation import Link
from policies.decisions.routing import HubSite, View, rank
from policies.model.reasons import Why

HOME = ""
_WEIGHT = 0.2  # weight of the newest measurement in the mean
_FRESH_S = 60.0  # an older latency measurement no longer counts, so that the connection is tried again


class Line:
    """State of one connection: up or down, paused or not, its smoothed latency, and its next `Hello` and `Ask`.

    `hello_at`: when to send the next `Hello`, inf once the hub has answered one. `ask_at`: earliest time of the next
    `Ask`. `quiet_until`: end of the pause that the hub asked for. `latency_s`: exponentially weighted mean from sending
    to receipt.
    """

    __slots__ = ("ask_at", "hello_at", "latency_s", "measured_at", "name", "quiet_until", "up")

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.quiet_until = 0.0
        self.hello_at = inf
        self.ask_at = 0.0
        self.latency_s = 0.0
        self.measured_at = -inf

    def open(self, now: float) -> bool:
        """Whether a question may be sent on it: it is up and the hub asked for no pause."""
        return self.up and now >= self.quiet_until

    @property
    def why(self) -> Why:
        """Reason recorded with an answer that does not wait for this connection."""
        return Why.HUB_QUIET if self.up else Why.LINK_DOWN

    def idle(self, now: float, *, measured: bool) -> bool:
        """Whether nothing is awaited on it: no hello, no ask, no end of a pause.

        `measured`: whether its latency is used for routing; then a fresh measurement counts as awaited too.
        """
        if self.up and (self.hello_at < inf or self.ask_at > now):
            return False
        return self.quiet_until <= now and not (measured and now - self.measured_at < _FRESH_S)

    def measured(self, latency_s: float, now: float) -> None:
        """Update the smoothed latency with one measurement, in seconds.

        A measurement after a gap of 60 s replaces the mean instead of being averaged into it.
        """
        fresh = now - self.measured_at < _FRESH_S
        self.latency_s = self.latency_s * (1 - _WEIGHT) + latency_s * _WEIGHT if fresh else latency_s
        self.measured_at = now

    def view(self, now: float) -> View:
        """What the routing policy sees of it; latency None if it was not measured within the last 60 s."""
        return View(self.open(now), self.latency_s if now - self.measured_at < _FRESH_S else None)


class Lines:
    """All connections of a device, the home connection first.

    `of_hub`: hub name to connection name; hubs that are not named use the home connection.
    """

    __slots__ = ("_by_name", "_of_hub", "_only")

    def __init__(self, of_hub: Mapping[str, str]) -> None:
        self._of_hub = of_hub
        self._by_name = {name: Line(name) for name in (HOME, *of_hub.values())}
        self._only = self._by_name[HOME] if len(self._by_name) == 1 else None  # most devices have one

    def __iter__(self) -> Iterator[Line]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Line:
        """The connection with this name. KeyError if there is none."""
        return self._by_name[name]

    def of(self, hub: str) -> Line:
        """The connection on which this hub is reached."""
        return self._by_name[self._of_hub.get(hub, HOME)]

    @property
    def link(self) -> Link:
        """All connections seen as one link: up if any is up, paused as long as all that are up are paused."""
        if self._only is not None:
            return Link(self._only.up, self._only.quiet_until)
        up = [line.quiet_until for line in self if line.up]
        return Link(bool(up), min(up or (line.quiet_until for line in self)))

    def open(self, now: float) -> list[Line]:
        """The connections on which a question may be sent now."""
        return [line for line in self if line.open(now)]

    def stuck(self, now: float, patience_s: float) -> list[Line]:
        """Connections that will send nothing for longer than `patience_s` seconds, if another one would.

        Empty for a device with one connection, and if all are stuck: then there is nowhere to move questions to.
        """
        if self._only is not None:
            return []
        stuck = [line for line in self if not line.up or line.quiet_until > now + patience_s]
        return stuck if len(stuck) < len(self._by_name) else []

    def idle(self, now: float) -> bool:
        """Whether nothing is awaited on any connection and no latency measurement still counts."""
        return all(line.idle(now, measured=len(self._by_name) > 1) for line in self._by_name.values())

    def forget(self) -> None:
        """Forget pauses, asks and measurements; connections that are up stay up."""
        for line in self._by_name.values():
            line.quiet_until = line.ask_at = line.latency_s = 0.0
            line.measured_at = -inf

    def place(self, question: Question, target: HubSite) -> Line:
        """Assign a question to a hub and to that hub's connection, which is returned."""
        line = self.of(target.name)
        question.target, question.line = target, line.name
        return line

    def measure(self, question: Question, now: float) -> None:
        """Record the latency of a question that the hub just replied to.

        Counts only for a question sent once: of several attempts it is unknown which was answered (Karn's rule).
        """
        if question.state is State.SENT and question.attempts == 1:
            self._by_name[question.line].measured(now - question.sent_at, now)

    def missed(self, question: Question, now: float) -> None:
        """Record that no reply came in time: the latency is at least the time since sending.

        Without this, a connection slower than the retry interval would never get a measurement.
        """
        line = self._by_name[question.line]
        if question.state is State.SENT and line.up:
            line.measured(now - question.sent_at, now)

    def first_open(self, targets: Iterable[HubSite], patience_s: float, now: float) -> HubSite | None:
        """The best of these hubs that can be reached now; None if none can."""
        ranked = self.ranked(targets, patience_s, now)
        return next((hub for hub in ranked if self.of(hub.name).open(now)), None)

    def ranked(self, targets: Iterable[HubSite], patience_s: float, now: float) -> tuple[HubSite, ...]:
        """The same hubs, the one to ask first in front; `patience_s`: how long the caller waits, in seconds."""
        told = tuple(targets)
        if len(self._by_name) == 1:
            return told
        return rank(told, {hub.name: self.of(hub.name).view(now) for hub in told}, patience_s)
