"""Messages between regions: frames to and from hubs elsewhere, and facts about their questions.

Rule: they are gathered during a slice and handed over at its end; so nothing arrives before the slice after the one it
was sent in, and regions may run in any order, or at once.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from cloud_hub.core.commands import QuestionKey
from simulations.checking.events import QuestionKey as Name
from simulations.checking.events import VerdictStored, VerdictUndone
from simulations.kernel.world import parse_device_number
from simulations.nodes.fleet import SimulatedFleet
from simulations.nodes.hub import SimulatedHub
from simulations.nodes.services import RegionServices
from wire.protocol.topics import TopicChannel, build_topic

DOWN, EFFECT, UNDONE, OVER = "down", "effect", "undone", "over"


class BorderMessage(msgspec.Struct, frozen=True, gc=False):
    """One message to region `to`, which arrives not before `at_s`.

    `kind`: a channel (a frame to a hub), or one of `DOWN`, `EFFECT`, `UNDONE`, `OVER`.
    """

    to: str
    at_s: float
    hub: str
    key: QuestionKey  # seq 0 where only the device counts
    kind: str
    frame: bytes = b""


class RemoteBroker(msgspec.Struct):
    """State of a broker elsewhere at the end of the last slice. `lives` counts its restarts."""

    up: bool = True
    lives: int = 0


class BorderRegion(RegionServices, Protocol):
    """The region whose borders these are, with all its nodes."""

    herd: SimulatedFleet
    hubs: dict[str, SimulatedHub]


class RegionBorder:
    """Border of one region: outgoing and incoming messages, and the hubs elsewhere that its devices may ask.

    `regions`: region of each of those hubs.
    """

    def __init__(self, regions: dict[str, str], ground: BorderRegion) -> None:
        self.hubs = {name: RemoteBroker() for name in regions}
        self._out: list[BorderMessage] = []
        self._regions = regions
        self._ground = ground
        scenario = ground.scenario
        self._homes = [(scenario.devices_of(place), each.name) for place, each in enumerate(scenario.regions)]
        self._asked: dict[QuestionKey, set[str]] = {}

    def region_of(self, hub: str) -> str:
        """Region of a hub elsewhere."""
        return self._regions[hub]

    # Out

    def send_up(self, hub: str, key: QuestionKey, channel: TopicChannel, frame: bytes, extra_s: float) -> None:
        """Send a frame of a device of this region to a hub elsewhere. `extra_s`: transmission time of its bytes."""
        if key.seq:
            self._asked.setdefault(key, set()).add(hub)
        for delay_s in self._ground.weather.draw_delays():
            at_s = self._ground.kernel.now + delay_s + extra_s
            self._out.append(
                BorderMessage(to=self._regions[hub], at_s=at_s, hub=hub, key=key, kind=channel.value, frame=frame)
            )

    def send_down(self, hub: str, device: str, frame: bytes) -> None:
        """Send a frame of a hub of this region to a device elsewhere."""
        for delay_s in self._ground.weather.draw_delays():
            at_s = self._ground.kernel.now + delay_s
            self._out.append(
                BorderMessage(
                    to=self._home_region(device),
                    at_s=at_s,
                    hub=hub,
                    key=QuestionKey(device, 0, 0),
                    kind=DOWN,
                    frame=frame,
                )
            )

    def send_fact(self, kind: str, key: QuestionKey, hub: str) -> None:
        """Report a fact (`EFFECT` or `UNDONE`) of a hub of this region about a question of elsewhere."""
        self._out.append(BorderMessage(self._home_region(key.device), self._ground.kernel.now, hub, key, kind))

    def send_over(self, key: QuestionKey) -> None:
        """Tell the hubs elsewhere that were asked that this question has ended at its device."""
        for hub in sorted(self._asked.pop(key, ())):
            self._out.append(BorderMessage(self._regions[hub], self._ground.kernel.now, hub, key, OVER))

    def _home_region(self, device: str) -> str:
        number = parse_device_number(device)
        return next(name for numbers, name in self._homes if number in numbers)

    def take_outgoing(self) -> list[BorderMessage]:
        """Take all waiting messages, at the end of a slice."""
        waiting, self._out = self._out, []
        return waiting

    # In

    def accept_passages(self, passages: Iterable[BorderMessage], brokers: dict[str, RemoteBroker]) -> None:
        """Accept messages and broker states from elsewhere, between two slices."""
        for name, broker in self.hubs.items():
            self._update_broker(name, broker, brokers[name])
        for each in passages:
            self._ground.kernel.schedule_at(each.at_s, self._deliver, each)

    def _update_broker(self, name: str, known: RemoteBroker, now: RemoteBroker) -> None:
        lost, back = known.lives != now.lives, now.up and not known.up
        known.up, known.lives = now.up, now.lives
        wires, line = self._ground.herd.wires, self._ground.line_of(name)
        if lost:
            for number in self._ground.herd.numbers:
                wires.notice_loss(number, line)
        if back:
            wires.retry_all(line)

    def _deliver(self, each: BorderMessage) -> None:
        ground = self._ground
        if each.kind == EFFECT:
            ground.judge.on_event(VerdictStored(Name(*each.key), each.hub))
        elif each.kind == UNDONE:
            ground.judge.on_event(VerdictUndone(Name(*each.key), each.hub))
        elif each.kind == OVER:
            ground.hubs[each.hub].disk.mark_over(each.key)
        elif each.kind == DOWN:
            self._deliver_down(each)
        else:
            hub = ground.hubs[each.hub]
            if hub.air.up:
                hub.hear(build_topic(each.key.device, TopicChannel(each.kind)), each.frame)

    def _deliver_down(self, each: BorderMessage) -> None:
        number, line = parse_device_number(each.key.device), self._ground.line_of(each.hub)
        wire = self._ground.herd.wires.get(number, line)
        if wire.up and not wire.cut and self.hubs[each.hub].up:
            self._ground.herd.on_frame(number, line, each.frame)
