"""An agent's links, one for each line: the home link, and those to the brokers of further hubs."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from edge_agent.clock import HubClock
from edge_agent.core import EdgeCore
from edge_agent.identity import Identity
from edge_agent.lines import HOME
from edge_agent.link import Connect, Link
from wire.transport import Incoming


class Further(NamedTuple):
    """A line beside the home line: who this device is there, and how to connect."""

    identity: Identity
    connect: Connect


class Connects(NamedTuple):
    """How to connect at home, and on each other line."""

    home: Connect
    further: Mapping[str, Further]


class LinesOwner(Protocol):
    """`LinkOwner` for all lines at once."""

    def on_up(self, line: str) -> None: ...
    def on_down(self, line: str) -> None: ...
    def on_batch(self, batch: list[Incoming], line: str) -> None: ...
    def on_order(self, payload: bytes, line: str) -> None: ...


class OnLine:
    """One link's owner: passes on which line it is."""

    def __init__(self, owner: LinesOwner, line: str) -> None:
        self._owner = owner
        self._line = line

    def on_up(self) -> None:
        self._owner.on_up(self._line)

    def on_down(self) -> None:
        self._owner.on_down(self._line)

    def on_batch(self, batch: list[Incoming]) -> None:
        self._owner.on_batch(batch, self._line)

    def on_order(self, payload: bytes) -> None:
        self._owner.on_order(payload, self._line)


class Links:
    """Every link by the name of its task, and when each was last heard."""

    def __init__(self, home: Link, clock: HubClock) -> None:
        self._home = home
        self._clock = clock
        self._heard = dict.fromkeys((HOME, *home.further), 0.0)

    def named(self) -> Mapping[str, tuple[str, Link]]:
        """Task name -> line and link."""
        further = {f"link-{line}": (line, link) for line, link in self._home.further.items()}
        return {"link": (HOME, self._home), **further}

    def heard(self, line: str) -> None:
        self._heard[line] = self._clock.now()

    def silent(self, core: EdgeCore, after_s: float) -> Iterator[str]:
        """Names of links that are up and say nothing for so long, while a word is owed on them."""
        for title, (line, _) in self.named().items():
            if not core.open.waits_on(line):
                self.heard(line)  # nobody owes us a word: an idle link is not a silent one
            elif core.lines.get(line).up and self._clock.now() - self._heard[line] > after_s:
                self.heard(line)
                yield title
