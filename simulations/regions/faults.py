"""Fault injector of a region: acts out the scenario's kills, power cuts, partitions, storms, lies and restores.

Rule: a fault does what the world may do to a fleet and nothing else: it tells no core anything. Each is over at its
`ends_s` at the latest; faults may overlap. All draws are of the one seed, in the order of the events.
"""

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, Protocol

from simulations.checking.egress import Customs
from simulations.kernel.kernel import Kernel
from simulations.kernel.world import name_of
from simulations.nodes.device_disk import Writer
from simulations.nodes.fleet import Herd
from simulations.nodes.hub import Hub
from simulations.nodes.hub_disk import Snapshot
from simulations.nodes.services import Regressed
from simulations.scenario.arrivals import struck
from simulations.scenario.conditions import Weather
from simulations.scenario.types import Event, EventKind, Scenario, written
from wire.protocol.messages import Ask, Heads, Hello, ModelRef, UpNote
from wire.protocol.topics import Channel

_LIES_EVERY_S = 5.0
_BIGGEST = 2**63 - 1


class Ground(Protocol):
    """What of a region a fault may change.

    `herd`: its devices by number; `hubs` by name, each with its broker `air`; `customs`: its egress auditor.
    """

    name: str
    kernel: Kernel
    weather: Weather
    customs: Customs
    herd: Herd
    hubs: dict[str, Hub]

    def use_policy(self, text: str, numbers: Iterable[int]) -> None:
        """Put a policy's text into force on these devices."""

    def revive(self, hub: Hub) -> None:
        """Restart a hub's broker."""

    def storm(self, numbers: Iterable[int], until_s: float) -> None:
        """Until `until_s` these devices are unsure of every sample."""


class Faults:
    """Fault injector; `schedule` puts every event of this region into its kernel."""

    def __init__(self, ground: Ground, scenario: Scenario, rng: Random) -> None:
        self._ground = ground
        self._kernel = ground.kernel
        self._scenario = scenario
        self._rng = rng
        self._backups: dict[str, Snapshot] = {}
        self._acts: dict[EventKind, Callable[[Event], None]] = {
            EventKind.KILL_AGENTS: self._kill_agents,
            EventKind.KILL_BROKER: self._kill_brokers,
            EventKind.KILL_HUB: self._kill_hubs,
            EventKind.KILL_REGION: self._kill_region,
            EventKind.POWER_LOSS: self._cut_power,
            EventKind.PARTITION: self._part,
            EventKind.RECALL: self._recall,
            EventKind.POLICY: self._change_policy,
            EventKind.REGRESSED: self._regress,
            EventKind.POISONED: self._poison,
            EventKind.STORM: self._storm,
            EventKind.CERTIFICATES: self._expire,
            EventKind.RESTORE: self._restore,
            EventKind.PREEMPT: self._preempt,
            EventKind.WEATHER: self._change_weather,
            EventKind.RESETS: self._reset,
            EventKind.HALF_OPEN: self._part,
        }

    def schedule(self) -> None:
        """Schedule this region's events; surges belong to the load, and a rollout has a driver of its own."""
        for event in self._scenario.events:
            act = self._acts.get(event.kind)
            if act is not None and event.region in {"", self._ground.name}:
                self._kernel.at(event.at_s, act, event)
                if event.kind is EventKind.RESTORE:
                    self._kernel.at(max(0.0, event.at_s - event.amount), self._back_up, event)

    # What an event is about

    def _devices(self, event: Event) -> range:
        return struck(event, self._ground.herd.numbers)

    def _hubs(self, event: Event) -> list[Hub]:
        return [hub for name, hub in self._ground.hubs.items() if event.hub in {"", name}]

    def _at_end(self, event: Event, call: Callable[..., None], *facts: Any) -> None:
        self._kernel.at(event.ends_s, call, *facts)

    # Processes and power

    def _kill_agents(self, event: Event) -> None:
        for number in self._devices(event):
            if self._ground.herd.is_alive(number):
                self._ground.herd.kill(number)
                self._at_end(event, self._start_agent, number)

    def _start_agent(self, number: int) -> None:
        if not self._ground.herd.is_alive(number):
            self._ground.herd.start(number)

    def _kill_hubs(self, event: Event) -> None:
        for hub in self._hubs(event):
            if hub.alive:
                hub.kill()
                self._at_end(event, _start, hub)

    def _kill_brokers(self, event: Event) -> None:
        struck_hubs = [hub for hub in self._hubs(event) if hub.air.up]
        for hub in struck_hubs:
            hub.air.kill()
            hub.lose_link()
            self._at_end(event, self._ground.revive, hub)
            for number in self._ground.herd.numbers:
                self._ground.herd.lose_link(number, hub.name)

    def _kill_region(self, event: Event) -> None:
        self._kill_hubs(event)
        self._kill_brokers(event)

    def _cut_power(self, event: Event) -> None:
        """Cut the power after `amount` more commits, if it comes to that before the end."""
        if event.hub:
            for hub in self._hubs(event):
                if hub.alive:
                    self._cut(event, hub.writer, hub.kill)
                    self._at_end(event, _start, hub)
            return
        for number in self._devices(event):
            if self._ground.herd.is_alive(number):
                self._cut(event, self._ground.herd[number].writer, partial(self._ground.herd.kill, number))
                self._at_end(event, self._start_agent, number)

    def _cut(self, event: Event, writer: Writer, dead: Callable[[], None]) -> None:
        writer.cut_after(int(event.amount), dead)
        self._at_end(event, writer.spare)

    # Links

    def _part(self, event: Event) -> None:
        """Cut links now; each device notices after a while of its own, or not at all if it is over before."""
        for number in self._devices(event):
            self._ground.herd.part(number)
            noticed_s = self._kernel.now + self._ground.weather.notice_s()
            if noticed_s < event.ends_s:
                self._kernel.at(noticed_s, self._ground.herd.lose_link, number)

        self._at_end(event, self._rejoin, self._devices(event))

    def _rejoin(self, devices: Iterable[int]) -> None:
        for number in devices:
            self._ground.herd.rejoin(number)

    def _expire(self, event: Event) -> None:
        """Certificates end at once: devices are disconnected, and accepted again one by one as each gets a new one."""
        for number in self._devices(event):
            self._ground.herd.bar(number, self._kernel.now + self._rng.uniform(0.0, event.lasts_s))
            self._ground.herd.lose_link(number)

    def _change_weather(self, event: Event) -> None:
        if event.climate is not None:
            self._ground.weather.come(event.climate)
            self._at_end(event, self._ground.weather.go, event.climate)

    def _reset(self, event: Event) -> None:
        for number in self._devices(event):
            self._reset_one(event, number)

    def _reset_one(self, event: Event, number: int) -> None:
        """Break a device's connections `amount` times a minute in the mean."""
        at_s = self._kernel.now + self._rng.expovariate(max(event.amount, 0.1) / 60.0)
        if at_s < event.ends_s:
            self._kernel.at(at_s, self._ground.herd.lose_link, number)
            self._kernel.at(at_s, self._reset_one, event, number)

    # Hubs

    def _back_up(self, event: Event) -> None:
        for hub in self._hubs(event):
            self._backups[f"{event.at_s} {hub.name}"] = hub.disk.snapshot()

    def _restore(self, event: Event) -> None:
        """Restore the store as it was `amount` seconds ago; what was stored since is gone."""
        for hub in self._hubs(event):
            backup = self._backups.pop(f"{event.at_s} {hub.name}", None)
            if backup is not None:
                if hub.alive:
                    hub.kill()
                hub.disk.rewind(backup)
                self._at_end(event, _start, hub)

    def _preempt(self, event: Event) -> None:
        """Give notice, `amount` seconds to finish in, then take the machine away; another one starts at the end."""
        for hub in self._hubs(event):
            if hub.alive:
                hub.drain()
                self._kernel.at(min(event.at_s + event.amount, event.ends_s), self._take_away, hub)
                self._at_end(event, _start, hub)

    def _take_away(self, hub: Hub) -> None:
        if hub.alive:
            hub.kill()

    # Operators and devices

    def _recall(self, event: Event) -> None:
        self._use(event, shut(self._scenario))

    def _change_policy(self, event: Event) -> None:
        self._use(event, event.policy)

    def _use(self, event: Event, text: str) -> None:
        devices = self._devices(event)
        self._ground.use_policy(text, devices)
        if event.lasts_s:
            self._at_end(event, self._ground.use_policy, self._scenario.policy_text, devices)

    def _storm(self, event: Event) -> None:
        self._ground.storm(self._devices(event), event.ends_s)

    def _regress(self, event: Event) -> None:
        regressed = Regressed(event.amount, event.label, event.tail)
        for number in self._devices(event):
            self._ground.herd[number].regressed = regressed
        self._at_end(event, self._recover, event)

    def _recover(self, event: Event) -> None:
        for number in self._devices(event):
            self._ground.herd[number].regressed = None

    def _poison(self, event: Event) -> None:
        for number in self._devices(event):
            self._ground.customs.liars.add(name_of(number))
            self._lie(event, number)

    def _lie(self, event: Event, number: int) -> None:
        """Send every few seconds what a device with a good key may send and no honest one does."""
        if self._kernel.now >= event.ends_s:
            return
        device, rng = self._ground.herd[number], self._rng
        if rng.random() < 1 / 3:
            channel = rng.choice((Channel.QUESTION, Channel.ASK, Channel.REPORT))
            device.publish(channel, rng.randbytes(rng.randint(0, 400)))
        else:
            device.say(_lie_of(device.disk.epoch, rng))
        every_s = event.amount if event.amount > 1.0 else _LIES_EVERY_S
        self._kernel.after(every_s * rng.uniform(0.5, 1.5), self._lie, event, number)


def _start(hub: Hub) -> None:
    if not hub.alive:
        hub.start()


def _lie_of(epoch: int, rng: Random) -> UpNote:
    """Draw a note with impossible counters, versions or signatures."""
    wild = rng.choice((0, 1, 2**31, _BIGGEST, 2**64 - 1, rng.getrandbits(40)))
    match rng.randrange(4):
        case 0:
            return Ask(epoch, tuple(rng.choice((wild, seq, -seq)) for seq in range(rng.randint(1, 200))))
        case 1:
            return Hello(epoch, "boot", "sim", (ModelRef("x" * rng.randint(0, 99), wild, "", ""),))
        case 2:
            return Heads(
                epoch=epoch,
                entries=wild,
                at_ms=wild,
                head=rng.randbytes(32),
                signature=rng.randbytes(64),
                known=wild,
                spend=(("bytes", wild, wild),),
            )
        case _:
            return Hello(wild, "boot", "sim", ())


def shut(scenario: Scenario) -> str:
    """Text of a policy under which nothing of any class of this scenario leaves a device."""
    return written("recall", scenario.regions, {name: False for name, _ in scenario.load.classes})
