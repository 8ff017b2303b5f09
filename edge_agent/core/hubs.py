"""What the core knows of its lines to the hubs: which is up, which asked for silence, how quick each is. Pure.

A line is one link to one broker. "" is the home line: of the broker whose folder is the agent's own.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from edge_agent.core.commands import State
from edge_agent.core.pending import Question
from policies.decisions.escalation import Link
from policies.decisions.routing import HubSite, View, rank
from policies.model.reasons import Why

HOME = ""
_WEIGHT = 0.2  # of the newest measurement
_FRESH_S = 60.0  # a line that was not measured for so long is tried again


class Line:
    """`hello_at`: when to say hello again, inf once it was answered. `ask_at`: not before when to ask what is owed."""

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
        """Whether a question may go out on it."""
        return self.up and now >= self.quiet_until

    @property
    def why(self) -> Why:
        """Of an answer that does not wait for this line."""
        return Why.HUB_QUIET if self.up else Why.LINK_DOWN

    def idle(self, now: float, *, measured: bool) -> bool:
        """`measured`: whether anybody asks how quick it is."""
        if self.up and (self.hello_at < inf or self.ask_at > now):
            return False
        return self.quiet_until <= now and not (measured and now - self.measured_at < _FRESH_S)

    def measured(self, latency_s: float, now: float) -> None:
        """A question was receipted this long after it was sent."""
        fresh = now - self.measured_at < _FRESH_S
        self.latency_s = self.latency_s * (1 - _WEIGHT) + latency_s * _WEIGHT if fresh else latency_s
        self.measured_at = now

    def view(self, now: float) -> View:
        return View(self.open(now), self.latency_s if now - self.measured_at < _FRESH_S else None)


class Lines:
    """Every line, the home line first. `of_hub`: which hub is on which; those not named are on the home line."""

    __slots__ = ("_by_name", "_of_hub", "_only")

    def __init__(self, of_hub: Mapping[str, str]) -> None:
        self._of_hub = of_hub
        self._by_name = {name: Line(name) for name in (HOME, *of_hub.values())}
        self._only = self._by_name[HOME] if len(self._by_name) == 1 else None  # most devices have one

    def __iter__(self) -> Iterator[Line]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Line:
        return self._by_name[name]

    def of(self, hub: str) -> Line:
        return self._by_name[self._of_hub.get(hub, HOME)]

    @property
    def link(self) -> Link:
        """All of them as one: up if any is, and silent for as long as all that are up are."""
        if self._only is not None:
            return Link(self._only.up, self._only.quiet_until)
        up = [line.quiet_until for line in self if line.up]
        return Link(bool(up), min(up or (line.quiet_until for line in self)))

    def open(self, now: float) -> list[Line]:
        return [line for line in self if line.open(now)]

    def stuck(self, now: float, patience_s: float) -> list[Line]:
        """Lines on which nothing will go out for longer than `patience_s`, if there is another on which it would."""
        if self._only is not None:
            return []
        stuck = [line for line in self if not line.up or line.quiet_until > now + patience_s]
        return stuck if len(stuck) < len(self._by_name) else []

    def idle(self, now: float) -> bool:
        """Nothing is waited for on any, and what was measured on them is too old to count."""
        return all(line.idle(now, measured=len(self._by_name) > 1) for line in self._by_name.values())

    def forget(self) -> None:
        """Nothing that was waited for or measured counts any more; what is up stays up."""
        for line in self._by_name.values():
            line.quiet_until = line.ask_at = line.latency_s = 0.0
            line.measured_at = -inf

    def place(self, question: Question, target: HubSite) -> Line:
        """From now on it is for this hub, and on its line."""
        line = self.of(target.name)
        question.target, question.line = target, line.name
        return line

    def measure(self, question: Question, now: float) -> None:
        """A word on it came. Sent more than once it is not known which try was answered."""
        if question.state is State.SENT and question.attempts == 1:
            self._by_name[question.line].measured(now - question.sent_at, now)

    def missed(self, question: Question, now: float) -> None:
        """No word came in time: the line is at least as slow as that. Else one slower than a retry was never known."""
        line = self._by_name[question.line]
        if question.state is State.SENT and line.up:
            line.measured(now - question.sent_at, now)

    def first_open(self, targets: Iterable[HubSite], patience_s: float, now: float) -> HubSite | None:
        """Whom to ask now; None if nobody can be reached."""
        ranked = self.ranked(targets, patience_s, now)
        return next((hub for hub in ranked if self.of(hub.name).open(now)), None)

    def ranked(self, targets: Iterable[HubSite], patience_s: float, now: float) -> tuple[HubSite, ...]:
        """The same targets, whom to ask first in front."""
        told = tuple(targets)
        if len(self._by_name) == 1:
            return told
        return rank(told, {hub.name: self.of(hub.name).view(now) for hub in told}, patience_s)
