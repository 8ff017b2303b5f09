"""Messages between regions: frames to and from hubs elsewhere, and facts about their questions.

Rule: they are gathered during a slice and handed over at its end; so nothing arrives before the slice after the one it
was sent in, and regions may run in any order, or at once.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from cloud_hub.core.commands import Key
from simulations.checking.events import Effect, Undone
from simulations.checking.events import Key as Name
from simulations.kernel.world import number_of
from simulations.nodes.fleet import Herd
from simulations.nodes.hub import Hub
from simulations.nodes.services import RegionServices
from wire.protocol.topics import Channel, topic

DOWN, EFFECT, UNDONE, OVER = "down", "effect", "undone", "over"


class Passage(msgspec.Struct, frozen=True, gc=False):
    """One message to region `to`, which arrives not before `at_s`.

    `kind`: a channel (a frame to a hub), or one of `DOWN`, `EFFECT`, `UNDONE`, `OVER`.
    """

    to: str
    at_s: float
    hub: str
    key: Key  # seq 0 where only the device counts
    kind: str
    frame: bytes = b""


class Broker(msgspec.Struct):
    """State of a broker elsewhere at the end of the last slice. `lives` counts its restarts."""

    up: bool = True
    lives: int = 0


class Home(RegionServices, Protocol):
    """The region whose borders these are, with all its nodes."""

    herd: Herd
    hubs: dict[str, Hub]


class Abroad:
    """Border of one region: outgoing and incoming messages, and the hubs elsewhere that its devices may ask.

    `regions`: region of each of those hubs.
    """

    def __init__(self, regions: dict[str, str], ground: Home) -> None:
        self.hubs = {name: Broker() for name in regions}
        self._out: list[Passage] = []
        self._regions = regions
        self._ground = ground
        scenario = ground.scenario
        self._homes = [(scenario.devices_of(place), each.name) for place, each in enumerate(scenario.regions)]
        self._asked: dict[Key, set[str]] = {}

    def region(self, hub: str) -> str:
        """Region of a hub elsewhere."""
        return self._regions[hub]

    # Out

    def send(self, hub: str, key: Key, channel: Channel, frame: bytes, extra_s: float) -> None:
        """Send a frame of a device of this region to a hub elsewhere. `extra_s`: transmission time of its bytes."""
        if key.seq:
            self._asked.setdefault(key, set()).add(hub)
        for delay_s in self._ground.weather.arrivals():
            at_s = self._ground.kernel.now + delay_s + extra_s
            self._out.append(
                Passage(to=self._regions[hub], at_s=at_s, hub=hub, key=key, kind=channel.value, frame=frame)
            )

    def reply(self, hub: str, device: str, frame: bytes) -> None:
        """Send a frame of a hub of this region to a device elsewhere."""
        for delay_s in self._ground.weather.arrivals():
            at_s = self._ground.kernel.now + delay_s
            self._out.append(
                Passage(to=self._home(device), at_s=at_s, hub=hub, key=Key(device, 0, 0), kind=DOWN, frame=frame)
            )

    def tell(self, kind: str, key: Key, hub: str) -> None:
        """Report a fact (`EFFECT` or `UNDONE`) of a hub of this region about a question of elsewhere."""
        self._out.append(Passage(self._home(key.device), self._ground.kernel.now, hub, key, kind))

    def over(self, key: Key) -> None:
        """Tell the hubs elsewhere that were asked that this question has ended at its device."""
        for hub in sorted(self._asked.pop(key, ())):
            self._out.append(Passage(self._regions[hub], self._ground.kernel.now, hub, key, OVER))

    def _home(self, device: str) -> str:
        number = number_of(device)
        return next(name for numbers, name in self._homes if number in numbers)

    def hand_over(self) -> list[Passage]:
        """Take all waiting messages, at the end of a slice."""
        waiting, self._out = self._out, []
        return waiting

    # In

    def take(self, passages: Iterable[Passage], brokers: dict[str, Broker]) -> None:
        """Accept messages and broker states from elsewhere, between two slices."""
        for name, broker in self.hubs.items():
            self._watch(name, broker, brokers[name])
        for each in passages:
            self._ground.kernel.at(each.at_s, self._arrive, each)

    def _watch(self, name: str, known: Broker, now: Broker) -> None:
        lost, back = known.lives != now.lives, now.up and not known.up
        known.up, known.lives = now.up, now.lives
        wires, line = self._ground.herd.wires, self._ground.line_of(name)
        if lost:
            for number in self._ground.herd.numbers:
                wires.lose(number, line)
        if back:
            wires.retry_all(line)

    def _arrive(self, each: Passage) -> None:
        ground = self._ground
        if each.kind == EFFECT:
            ground.judge.see(Effect(Name(*each.key), each.hub))
        elif each.kind == UNDONE:
            ground.judge.see(Undone(Name(*each.key), each.hub))
        elif each.kind == OVER:
            ground.hubs[each.hub].disk.over(each.key)
        elif each.kind == DOWN:
            self._arrive_down(each)
        else:
            hub = ground.hubs[each.hub]
            if hub.air.up and hub.line.up and not hub.line.cut:
                hub.hear(topic(each.key.device, Channel(each.kind)), each.frame)

    def _arrive_down(self, each: Passage) -> None:
        number, line = number_of(each.key.device), self._ground.line_of(each.hub)
        wire = self._ground.herd.wires.get(number, line)
        if wire.up and not wire.cut and self.hubs[each.hub].up:
            self._ground.herd.hear(number, line, each.frame)
