"""State of the connections to the hubs: which are up, which hub asked for a pause, how fast each replies. Pure.

A connection ("line") is one link to one broker. The home connection, named "", leads to the broker whose identity
folder is the agent's own; additional hubs have connections of their own. Times are seconds on the core's clock.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from edge_agent.core.commands import OutboxState
from edge_agent.core.pending import PendingQuestion
from policies.decisions.escalation import LinkState
from policies.decisions.routing import HubSite, HubView, rank_hubs
from policies.model.reasons import DecisionReason

HOME = ""
_LATENCY_WEIGHT = 0.2  # weight of the newest measurement in the mean
_FRESH_S = 60.0  # an older latency measurement no longer counts, so that the connection is tried again


class HubConnection:
    """State of one connection.

    It is up or down, paused or not, and has a smoothed latency and the times of its next `HelloNote` and
    `StatusRequest`.

    `hello_at`: when to send the next `HelloNote`, inf once the hub has answered one. `ask_at`: earliest time of the
    next `StatusRequest`. `quiet_until`: end of the pause that the hub asked for. `latency_s`: exponentially weighted
    mean from sending to receipt.
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

    def is_open(self, now: float) -> bool:
        """Whether a question may be sent on it: it is up and the hub asked for no pause."""
        return self.up and now >= self.quiet_until

    @property
    def unavailable_reason(self) -> DecisionReason:
        """Reason recorded with an answer that does not wait for this connection."""
        return DecisionReason.HUB_QUIET if self.up else DecisionReason.LINK_DOWN

    def is_idle(self, now: float, *, measured: bool) -> bool:
        """Whether nothing is awaited on it: no hello, no ask, no end of a pause.

        `measured`: whether its latency is used for routing; then a fresh measurement counts as awaited too.
        """
        if self.up and (self.hello_at < inf or self.ask_at > now):
            return False
        return self.quiet_until <= now and not (measured and now - self.measured_at < _FRESH_S)

    def record_latency(self, latency_s: float, now: float) -> None:
        """Update the smoothed latency with one measurement, in seconds.

        A measurement after a gap of 60 s replaces the mean instead of being averaged into it.
        """
        fresh = now - self.measured_at < _FRESH_S
        self.latency_s = self.latency_s * (1 - _LATENCY_WEIGHT) + latency_s * _LATENCY_WEIGHT if fresh else latency_s
        self.measured_at = now

    def routing_view(self, now: float) -> HubView:
        """What the routing policy sees of it; latency None if it was not measured within the last 60 s."""
        return HubView(self.is_open(now), self.latency_s if now - self.measured_at < _FRESH_S else None)


class HubConnections:
    """All connections of a device, the home connection first.

    `of_hub`: hub name to connection name; hubs that are not named use the home connection.
    """

    __slots__ = ("_by_name", "_of_hub", "_only")

    def __init__(self, of_hub: Mapping[str, str]) -> None:
        self._of_hub = of_hub
        self._by_name = {name: HubConnection(name) for name in (HOME, *of_hub.values())}
        self._only = self._by_name[HOME] if len(self._by_name) == 1 else None  # most devices have one

    def __iter__(self) -> Iterator[HubConnection]:
        return iter(self._by_name.values())

    def get(self, name: str) -> HubConnection:
        """The connection with this name. KeyError if there is none."""
        return self._by_name[name]

    def for_hub(self, hub: str) -> HubConnection:
        """The connection on which this hub is reached."""
        return self._by_name[self._of_hub.get(hub, HOME)]

    @property
    def link(self) -> LinkState:
        """All connections seen as one link: up if any is up, paused as long as all that are up are paused."""
        if self._only is not None:
            return LinkState(self._only.up, self._only.quiet_until)
        up = [line.quiet_until for line in self if line.up]
        return LinkState(bool(up), min(up or (line.quiet_until for line in self)))

    def stuck_connections(self, now: float, patience_s: float) -> list[HubConnection]:
        """Connections that will send nothing for longer than `patience_s` seconds, if another one would.

        Empty for a device with one connection, and if all are stuck: then there is nowhere to move questions to.
        """
        if self._only is not None:
            return []
        stuck = [line for line in self if not line.up or line.quiet_until > now + patience_s]
        return stuck if len(stuck) < len(self._by_name) else []

    def is_idle(self, now: float) -> bool:
        """Whether nothing is awaited on any connection and no latency measurement still counts."""
        return all(line.is_idle(now, measured=len(self._by_name) > 1) for line in self._by_name.values())

    def reset_waits(self) -> None:
        """Forget pauses, asks and measurements; connections that are up stay up."""
        for line in self._by_name.values():
            line.quiet_until = line.ask_at = line.latency_s = 0.0
            line.measured_at = -inf

    def assign_hub(self, question: PendingQuestion, target: HubSite) -> HubConnection:
        """Assign a question to a hub and to that hub's connection, which is returned."""
        line = self.for_hub(target.name)
        question.target, question.line = target, line.name
        return line

    def record_reply(self, question: PendingQuestion, now: float) -> None:
        """Record the latency of a question that the hub just replied to.

        Counts only for a question sent once: of several attempts it is unknown which was answered (Karn's rule).
        """
        if question.state is OutboxState.SENT and question.attempts == 1:
            self._by_name[question.line].record_latency(now - question.sent_at, now)

    def record_timeout(self, question: PendingQuestion, now: float) -> None:
        """Record that no reply came in time: the latency is at least the time since sending.

        Without this, a connection slower than the retry interval would never get a measurement.
        """
        line = self._by_name[question.line]
        if question.state is OutboxState.SENT and line.up:
            line.record_latency(now - question.sent_at, now)

    def first_reachable(self, targets: Iterable[HubSite], patience_s: float, now: float) -> HubSite | None:
        """The best of these hubs that can be reached now; None if none can."""
        ranked = self.rank_targets(targets, patience_s, now)
        return next((hub for hub in ranked if self.for_hub(hub.name).is_open(now)), None)

    def rank_targets(self, targets: Iterable[HubSite], patience_s: float, now: float) -> tuple[HubSite, ...]:
        """The same hubs, the one to ask first in front; `patience_s`: how long the caller waits, in seconds."""
        told = tuple(targets)
        if len(self._by_name) == 1:
            return told
        return rank_hubs(told, {hub.name: self.for_hub(hub.name).routing_view(now) for hub in told}, patience_s)
