"""Fault injector of a region: acts out the scenario's kills, power cuts, partitions, storms, lies and restores.

Rule: a fault does what the world may do to a fleet and nothing else: it tells no core anything. Each is over at its
`ends_s` at the latest; faults may overlap. All draws are of the one seed, in the order of the events.
"""

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, Protocol

from simulations.checking.egress import EgressAuditor
from simulations.kernel.kernel import Kernel
from simulations.kernel.world import format_device_name
from simulations.nodes.device_disk import SimulatedWriter
from simulations.nodes.fleet import SimulatedFleet
from simulations.nodes.hub import SimulatedHub
from simulations.nodes.hub_disk import StoreSnapshot
from simulations.nodes.hub_process import HubProcess
from simulations.nodes.services import ModelRegression
from simulations.scenario.arrivals import select_devices
from simulations.scenario.conditions import ConditionSampler
from simulations.scenario.types import EventKind, Scenario, ScenarioEvent, build_policy_text
from wire.protocol.messages import HelloNote, LedgerHeadReport, ModelRef, StatusRequest, UpNote
from wire.protocol.topics import TopicChannel

_LIES_EVERY_S = 5.0
_BIGGEST = 2**63 - 1


class FaultTarget(Protocol):
    """What of a region a fault may change.

    `herd`: its devices by number; `hubs` by name, each with its broker `air`; `customs`: its egress auditor.
    """

    name: str
    kernel: Kernel
    weather: ConditionSampler
    customs: EgressAuditor
    herd: SimulatedFleet
    hubs: dict[str, SimulatedHub]

    def use_policy(self, text: str, numbers: Iterable[int]) -> None:
        """Put a policy's text into force on these devices."""

    def restart_broker(self, hub: SimulatedHub) -> None:
        """Restart a hub's broker."""

    def move_devices(self, numbers: Iterable[int], *, away: bool) -> None:
        """Take devices out of the rollout's selection, or bring them back."""

    def replay_assignments(self, numbers: Iterable[int], lasts_s: float, dice: Random) -> None:
        """Deliver to devices every assignment once more that each was ever sent, at random within `lasts_s`."""

    def begin_storm(self, numbers: Iterable[int], until_s: float) -> None:
        """Until `until_s` these devices are unsure of every sample."""


class FaultInjector:
    """Fault injector; `schedule_events` puts every event of this region into its kernel."""

    def __init__(self, ground: FaultTarget, scenario: Scenario, rng: Random) -> None:
        self._ground = ground
        self._kernel = ground.kernel
        self._scenario = scenario
        self._rng = rng
        self._backups: dict[str, StoreSnapshot] = {}
        self._acts: dict[EventKind, Callable[[ScenarioEvent], None]] = {
            EventKind.KILL_AGENTS: self._kill_agents,
            EventKind.KILL_BROKER: self._kill_brokers,
            EventKind.KILL_HUB: self._kill_hubs,
            EventKind.KILL_REGION: self._kill_region,
            EventKind.POWER_LOSS: self._cut_power,
            EventKind.PARTITION: self._cut_links,
            EventKind.RECALL: self._recall_policy,
            EventKind.POLICY: self._change_policy,
            EventKind.REGRESSED: self._regress_models,
            EventKind.POISONED: self._poison_devices,
            EventKind.STORM: self._begin_storm,
            EventKind.CERTIFICATES: self._expire_certificates,
            EventKind.RESTORE: self._restore_backup,
            EventKind.PREEMPT: self._preempt_hubs,
            EventKind.WEATHER: self._change_conditions,
            EventKind.RESETS: self._reset_links,
            EventKind.MOVED: self._move_devices,
            EventKind.REPLAYED: self._replay_assignments,
            EventKind.HALF_OPEN: self._cut_links,
            EventKind.PAUSE_HUB: self._pause_hubs,
            EventKind.CUT_DATABASE: self._cut_databases,
            EventKind.STALE_LEASES: self._stale_leases,
        }

    def schedule_events(self) -> None:
        """Schedule this region's events; surges belong to the load, and a rollout has a driver of its own."""
        for event in self._scenario.events:
            act = self._acts.get(event.kind)
            if act is not None and event.region in {"", self._ground.name}:
                self._kernel.schedule_at(event.at_s, act, event)
                if event.kind is EventKind.RESTORE:
                    self._kernel.schedule_at(max(0.0, event.at_s - event.amount), self._back_up, event)

    # What an event is about

    def _devices_of(self, event: ScenarioEvent) -> range:
        return select_devices(event, self._ground.herd.numbers)

    def _hubs_of(self, event: ScenarioEvent) -> list[SimulatedHub]:
        return [hub for name, hub in self._ground.hubs.items() if event.hub in {"", name}]

    def _members_of(self, event: ScenarioEvent) -> list[HubProcess]:
        """Processes of these hubs, or of each the one that the event names, counted from 1."""
        return [
            each
            for hub in self._hubs_of(event)
            for number, each in enumerate(hub.members, 1)
            if event.member in {0, number}
        ]

    def _at_end(self, event: ScenarioEvent, call: Callable[..., None], *facts: Any) -> None:
        self._kernel.schedule_at(event.ends_s, call, *facts)

    def _move_devices(self, event: ScenarioEvent) -> None:
        numbers = tuple(self._devices_of(event))
        self._ground.move_devices(numbers, away=True)
        self._at_end(event, self._return_devices, numbers)

    def _return_devices(self, numbers: tuple[int, ...]) -> None:
        self._ground.move_devices(numbers, away=False)

    def _replay_assignments(self, event: ScenarioEvent) -> None:
        self._ground.replay_assignments(self._devices_of(event), event.lasts_s, self._rng)

    # Processes and power

    def _kill_agents(self, event: ScenarioEvent) -> None:
        for number in self._devices_of(event):
            if self._ground.herd.is_alive(number):
                self._ground.herd.kill(number)
                self._at_end(event, self._start_agent, number)

    def _start_agent(self, number: int) -> None:
        if not self._ground.herd.is_alive(number):
            self._ground.herd.start(number)

    def _kill_hubs(self, event: ScenarioEvent) -> None:
        for each in self._members_of(event):
            if each.alive:
                each.kill()
                self._at_end(event, each.start)

    def _kill_brokers(self, event: ScenarioEvent) -> None:
        struck_hubs = [hub for hub in self._hubs_of(event) if hub.air.up]
        for hub in struck_hubs:
            hub.air.kill()
            hub.lose_link()
            self._at_end(event, self._ground.restart_broker, hub)
            for number in self._ground.herd.numbers:
                self._ground.herd.lose_link(number, hub.name)

    def _kill_region(self, event: ScenarioEvent) -> None:
        self._kill_hubs(event)
        self._kill_brokers(event)

    def _cut_power(self, event: ScenarioEvent) -> None:
        """Cut the power after `amount` more commits, if it comes to that before the end."""
        if event.hub:
            for each in self._members_of(event):
                if each.alive:
                    self._schedule_cut(event, each.writer, each.kill)
                    self._at_end(event, each.start)
            return
        for number in self._devices_of(event):
            if self._ground.herd.is_alive(number):
                self._schedule_cut(event, self._ground.herd[number].writer, partial(self._ground.herd.kill, number))
                self._at_end(event, self._start_agent, number)

    def _schedule_cut(self, event: ScenarioEvent, writer: SimulatedWriter, dead: Callable[[], None]) -> None:
        writer.cut_power_after(int(event.amount), dead)
        self._at_end(event, writer.restore_power)

    # Links

    def _cut_links(self, event: ScenarioEvent) -> None:
        """Cut links now; each device notices after a while of its own, or not at all if it is over before."""
        lose_link = self._ground.herd.lose_link
        for number in self._devices_of(event):
            self._ground.herd.wires.cut_links(number)
            noticed_s = self._kernel.now + self._ground.weather.draw_notice_s()
            if noticed_s < event.ends_s:
                self._kernel.schedule_at(noticed_s, lose_link, number)

        self._at_end(event, self._restore_links, self._devices_of(event))

    def _restore_links(self, devices: Iterable[int]) -> None:
        for number in devices:
            self._ground.herd.wires.restore_links(number)

    def _expire_certificates(self, event: ScenarioEvent) -> None:
        """Certificates end at once: devices are disconnected, and accepted again one by one as each gets a new one."""
        for number in self._devices_of(event):
            self._ground.herd.wires.refuse_until(number, self._kernel.now + self._rng.uniform(0.0, event.lasts_s))
            self._ground.herd.lose_link(number)

    def _change_conditions(self, event: ScenarioEvent) -> None:
        if event.climate is not None:
            self._ground.weather.push_conditions(event.climate)
            self._at_end(event, self._ground.weather.pop_conditions, event.climate)

    def _reset_links(self, event: ScenarioEvent) -> None:
        for number in self._devices_of(event):
            self._schedule_reset(event, number)

    def _schedule_reset(self, event: ScenarioEvent, number: int) -> None:
        """Break a device's connections `amount` times a minute in the mean."""
        at_s = self._kernel.now + self._rng.expovariate(max(event.amount, 0.1) / 60.0)
        if at_s < event.ends_s:
            self._kernel.schedule_at(at_s, self._ground.herd.lose_link, number)
            self._kernel.schedule_at(at_s, self._schedule_reset, event, number)

    # Hubs

    def _back_up(self, event: ScenarioEvent) -> None:
        for hub in self._hubs_of(event):
            self._backups[f"{event.at_s} {hub.name}"] = hub.disk.snapshot()

    def _restore_backup(self, event: ScenarioEvent) -> None:
        """Restore the store as it was `amount` seconds ago; what was stored since is gone."""
        for hub in self._hubs_of(event):
            backup = self._backups.pop(f"{event.at_s} {hub.name}", None)
            if backup is not None:
                hub.kill()
                hub.disk.restore_snapshot(backup)
                self._at_end(event, hub.start)

    def _preempt_hubs(self, event: ScenarioEvent) -> None:
        """Give notice, `amount` seconds to finish in, then take the machine away; another one starts at the end."""
        until_s = min(event.at_s + event.amount, event.ends_s)
        for each in self._members_of(event):
            if each.alive:
                each.drain(until_s)
                self._kernel.schedule_at(until_s, self._kill_preempted, each)
                self._at_end(event, each.start)

    def _pause_hubs(self, event: ScenarioEvent) -> None:
        """Stop processes where they stand, and wake them at the end as if nothing had been."""
        for each in self._members_of(event):
            if each.pause():
                self._at_end(event, each.wake)

    def _cut_databases(self, event: ScenarioEvent) -> None:
        for each in self._members_of(event):
            each.cut_database()
            self._at_end(event, each.restore_database)

    def _stale_leases(self, event: ScenarioEvent) -> None:
        """Processes renew nothing and do not notice: others take their leases, and both believe in them."""
        for each in self._members_of(event):
            each.link.leases_cut += 1
            self._at_end(event, _end_stale_leases, each)

    def _kill_preempted(self, process: HubProcess) -> None:
        if process.alive:
            process.kill()

    # Operators and devices

    def _recall_policy(self, event: ScenarioEvent) -> None:
        self._apply_policy(event, build_recall_policy(self._scenario))

    def _change_policy(self, event: ScenarioEvent) -> None:
        self._apply_policy(event, event.policy)

    def _apply_policy(self, event: ScenarioEvent, text: str) -> None:
        devices = self._devices_of(event)
        self._ground.use_policy(text, devices)
        if event.lasts_s:
            self._at_end(event, self._ground.use_policy, self._scenario.policy_text, devices)

    def _begin_storm(self, event: ScenarioEvent) -> None:
        self._ground.begin_storm(self._devices_of(event), event.ends_s)

    def _regress_models(self, event: ScenarioEvent) -> None:
        regressed = ModelRegression(event.amount, event.label, event.tail)
        for number in self._devices_of(event):
            self._ground.herd[number].regressed = regressed
        self._at_end(event, self._end_regression, event)

    def _end_regression(self, event: ScenarioEvent) -> None:
        for number in self._devices_of(event):
            self._ground.herd[number].regressed = None

    def _poison_devices(self, event: ScenarioEvent) -> None:
        for number in self._devices_of(event):
            self._ground.customs.liars.add(format_device_name(number))
            self._send_lie(event, number)

    def _send_lie(self, event: ScenarioEvent, number: int) -> None:
        """Send every few seconds what a device with a good key may send and no honest one does."""
        if self._kernel.now >= event.ends_s:
            return
        device, rng = self._ground.herd[number], self._rng
        if rng.random() < 1 / 3:
            channel = rng.choice((TopicChannel.QUESTION, TopicChannel.ASK, TopicChannel.REPORT))
            device.send_frame(channel, rng.randbytes(rng.randint(0, 400)))
        else:
            device.send_note(_draw_lie(device.disk.epoch, rng))
        every_s = event.amount if event.amount > 1.0 else _LIES_EVERY_S
        self._kernel.schedule_after(every_s * rng.uniform(0.5, 1.5), self._send_lie, event, number)


def _end_stale_leases(process: HubProcess) -> None:
    process.link.leases_cut -= 1


def _draw_lie(epoch: int, rng: Random) -> UpNote:
    """Draw a note with impossible counters, versions or signatures."""
    wild = rng.choice((0, 1, 2**31, _BIGGEST, 2**64 - 1, rng.getrandbits(40)))
    match rng.randrange(4):
        case 0:
            return StatusRequest(epoch, tuple(rng.choice((wild, seq, -seq)) for seq in range(rng.randint(1, 200))))
        case 1:
            return HelloNote(epoch, "boot", "sim", (ModelRef("x" * rng.randint(0, 99), wild, "", ""),))
        case 2:
            return LedgerHeadReport(
                epoch=epoch,
                entries=wild,
                at_ms=wild,
                head=rng.randbytes(32),
                signature=rng.randbytes(64),
                known=wild,
                spend=(("bytes", wild, wild),),
            )
        case _:
            return HelloNote(wild, "boot", "sim", ())


def build_recall_policy(scenario: Scenario) -> str:
    """Text of a policy under which nothing of any class of this scenario leaves a device."""
    return build_policy_text("recall", scenario.regions, {name: False for name, _ in scenario.load.classes})
