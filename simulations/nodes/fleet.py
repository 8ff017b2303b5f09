"""All devices of a region: those at rest as a few numbers, those with something open as `SimulatedDevice` objects.

Rule: a device rests exactly when its core says that nothing is to be remembered but its `IdleSnapshot`; what is
restored from that answers as if it had never rested. A sample that need not be asked about is answered by a resting
core that many devices share, since that changes nothing in it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from edge_agent.question.commands import Answer, CoreSnapshot, IdleSnapshot, RandomDraws, SampleAttributes
from edge_agent.question.decide import EdgeCore
from policies.decisions.budget import BudgetSpend
from policies.model.policy import AccountUnit, Policy
from simulations.kernel.world import draw_bits, draw_share
from simulations.nodes.connections import Connections
from simulations.nodes.device import SimulatedDevice
from simulations.nodes.device_disk import SampleTruth
from simulations.nodes.predictions import Predictions
from simulations.nodes.resting import ODD, RestingDevices
from simulations.nodes.services import RegionServices
from simulations.scenario.arrivals import ArrivalSlice
from simulations.scenario.conditions import DeviceClock, QuestionFate
from wire.protocol import codec
from wire.protocol.messages import CipherSuite, DownNote, Prediction, Receipt, Refusal, StatusReply, WelcomeNote

_BYTES = AccountUnit.BYTES.value
_EPOCH, _METERED = 0, 1  # numbers of the draws of `draw_bits` and `draw_share`
CLOCK = 16  # and of the first of a device's clocks
_SETTLES_S = 61.0  # by then another Ask may be sent, and a measured line counts for nothing
_REPLIES = Receipt | Refusal | StatusReply | WelcomeNote  # of no use to whoever waits for nothing


class SampleBatch(NamedTuple):
    """Samples of a slice for the full path, as lists of one length.

    `luck`: of each, the draws for audits and for retries; `ids`: of their answers; `fates`: of some, by their place
    here, what was drawn for their questions before.
    """

    some: ArrivalSlice
    drawn: Predictions
    luck: Sequence[Sequence[float]]
    ids: Sequence[int]
    fates: Mapping[int, QuestionFate] = {}


class SimulatedFleet:
    """Devices of a region by number; `fleet[number]` wakes one.

    `numbers`: all of them, as the whole fleet counts; `rest`: what is kept of those at rest. Mass events go by number,
    so that devices at rest stay at rest. `told_awake`, `told_asleep`: called for a device that has just been woken, or
    is about to be put to rest. `told_up`: called for one at rest whose connection is back; True = its hub was greeted.
    """

    def __init__(self, ground: RegionServices, numbers: range) -> None:
        self.ground = ground
        self.numbers = numbers
        self.wires = Connections(numbers, ground.brokers, ground.kernel, ground.dice, self._on_link)
        self._first = numbers.start
        self.rest = RestingDevices(draw_share(ground.seed, n, _METERED) < ground.metered_share for n in numbers)
        self.told_awake: Callable[[SimulatedDevice], None] | None = None
        self.told_asleep: Callable[[SimulatedDevice], None] | None = None
        self.told_up: Callable[[int], bool] | None = None
        self._next_seq, self._day, self._spent = self.rest.next_seq, self.rest.day, self.rest.spent
        self._offset, self._kind = self.rest.offset_s, self.rest.kind
        self._spends: dict[int, BudgetSpend] = {}  # of those with other accounts too
        self._awake: dict[int, SimulatedDevice] = {}
        self._policies: dict[int, Policy | None] = {}
        self._idle: dict[object, list[EdgeCore]] = {}
        self._lookers: dict[object, EdgeCore] = {}

    def __getitem__(self, number: int) -> SimulatedDevice:
        return self._awake.get(number) or self._wake_device(number)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def awake(self) -> int:
        """Number of devices that are awake."""
        return len(self._awake)

    def busy_places(self) -> list[int]:
        """Places of the devices that are awake, or have accounts that the numbers of `rest` do not show."""
        return [number - self._first for number in (*self._awake, *self._spends)]

    # Samples

    def make_sampler(self, batch: SampleBatch) -> Callable[[int], None]:
        """Function that processes the k-th of these samples."""
        awake, ground, first = self._awake, self.ground, self._first
        off, kind, recorder = self.wires.off, self._kind, ground.recorder
        at_s, devices, classes = batch.some
        truth, confidence, edge, hub = batch.drawn
        luck, ids, fates = batch.luck, batch.ids, batch.fates
        facts = {name: SampleAttributes(name) for name in ground.classes}
        model = ground.model_name
        shared = [self.resting_core(0, ()), self.resting_core(1, ())]

        def sample(k: int) -> None:
            number = devices[k]
            device, sure, label = awake.get(number), confidence[k], edge[k]
            if ground.has_storm:
                sure = ground.confidence_of(number, sure)
            says = hub[k]
            if device is not None and device.regressed is not None:
                label, says = device.apply_regression(truth[k], label, says)
            committed = -1
            if device is not None and device.trial is not None:
                label, says, committed = device.trial.apply_candidate((truth[k], label, says), sure, luck[0][k])
            local = Prediction(label, sure, (sure,), model)
            dice = RandomDraws(f"{ids[k]:032x}", luck[0][k], luck[1][k])
            if device is not None:
                if device.core is None:
                    return
                looker, now = device.core, device.now()
            elif kind[number - first] < ODD:
                place, now = number - first, 0.0
                looker = (
                    shared[kind[place]]
                    if not off[place]
                    else self.resting_core(kind[place], self.wires.links_up(number))
                )
            else:
                device = self._wake_device(number)
                looker, now = device.core, device.now()  # type: ignore[assignment]
            found = looker.evaluate_sample(local, facts[classes[k]], dice, now)
            if type(found) is Answer:
                recorder.count_local(found.why, label == truth[k])
            else:
                asked = SampleTruth(
                    at_s=at_s[k], truth=truth[k], edge=label, hub=says, data_class=classes[k], committed=committed,
                    fate=fates.get(k) if fates else None,
                )  # fmt: skip
                (device or self._wake_device(number)).on_sample(local, classes[k], dice, asked)

        return sample

    def resting_core(self, kind: int, ups: tuple[bool, ...] = ()) -> EdgeCore:
        """A resting core that answers for all devices of this kind; `ups`: which of its lines are up, () = all.

        Only `evaluate_sample` may be called, since others share it.
        """
        ups = ups or (True,) * len(self.wires.lines)
        found = self._lookers.get((kind, ups))
        if found is None:
            found = self._lookers[kind, ups] = self.new_core(self.ground.policy, kind, ups)
        return found

    def fresh_core(self, kind: int) -> EdgeCore:
        """A core at rest of its own, of a device of this kind with all lines up."""
        return self.new_core(self.ground.policy, kind, (True,) * len(self.wires.lines))

    # At rest and awake

    def _wake_device(self, number: int, ups: tuple[bool, ...] = ()) -> SimulatedDevice:
        """Make a device with a core of what is kept of it.

        `ups`: which of its lines it believes to be up, where that is not what they are now.
        """
        device, place = SimulatedDevice(number, self), number - self._first
        ups = ups or self.wires.links_up(number)
        core = self._take_core(device.policy, self._kind[place] & 1, ups)
        disk = device.disk = self.ground.cores.disk(device.name, self.epoch_of(number), self.ground.judge.on_event)
        disk.next_seq = self._next_seq[place]
        disk.spend = self._spends.pop(number) if number in self._spends else self._stored_spend(place)
        core.resume_from(IdleSnapshot(disk.epoch, disk.next_seq, disk.spend, self._day[place]))
        device.core = core
        device.writer = device.new_writer()
        self._awake[number] = device
        if self.told_awake is not None:
            self.told_awake(device)
        return device

    def _take_core(self, policy: Policy | None, kind: int, ups: tuple[bool, ...]) -> EdgeCore:
        """A core at rest for a device of this kind: one that another device left, or a new one."""
        name, all_up = _policy_hash(policy), (True,) * len(ups)
        idle = self._idle.get((name, kind, ups))
        if idle:
            return idle.pop()
        idle = self._idle.get((name, kind, all_up))
        if not idle:
            return self.new_core(policy, kind, ups)
        core = idle.pop()
        for line, up in zip(self.wires.lines, ups, strict=True):
            if not up:
                core.on_link(up=False, now=0.0, name=line)
        return core

    def _stored_spend(self, place: int) -> BudgetSpend:
        spent = self._spent[place]
        return BudgetSpend(self._day[place], {(_BYTES, self._day[place]): spent}) if spent else BudgetSpend()

    def new_core(self, policy: Policy | None, kind: int, ups: tuple[bool, ...]) -> EdgeCore:
        """A core at rest that has been welcomed on the lines that are up."""
        core = self.ground.cores.edge(self.ground.setup, policy)
        core.restore(CoreSnapshot(0, 1, BudgetSpend()), 0.0)
        core.on_context(self.ground.build_context(metered=bool(kind & 1)), 0.0)
        for name, up in zip(self.wires.lines, ups, strict=True):
            if up:
                core.on_link(up=True, now=0.0, name=name)
                core.on_note(WelcomeNote(0, "", ""), 0.0, name)
        return core

    def rest_if_idle(self, device: SimulatedDevice) -> None:
        """Put a device to rest if nothing keeps it awake."""
        core = device.core
        if core is None or len(core.open_questions) or not device.writer.idle or device.is_odd:
            return
        rest = core.idle_snapshot(device.now())
        if rest is None or rest.spend.totals != device.disk.spend.totals:
            if not device.settling:
                device.settling = True
                self.ground.kernel.schedule_after(_SETTLES_S, self._rest_later, device)
            return
        self._put_to_rest(device, core, rest)

    def _rest_later(self, device: SimulatedDevice) -> None:
        device.settling = False
        self.rest_if_idle(device)

    def _put_to_rest(self, device: SimulatedDevice, core: EdgeCore, rest: IdleSnapshot) -> None:
        number, place = device.number, device.number - self._first
        if self.told_asleep is not None:
            self.told_asleep(device)
        self._next_seq[place], self._day[place] = rest.next_seq, rest.day
        self._offset[place] = device.offset_s
        self._spent[place] = rest.spend.bytes
        if rest.spend.day != rest.day or len(rest.spend.totals) > 1 or not rest.spend.known:
            self._spends[number] = rest.spend
        key = _policy_hash(device.policy), self._kind[place] & 1, self.wires.links_up(number)
        self._idle.setdefault(key, []).append(core)
        device.core = None
        del device.writer  # which refers to the device: without it nothing keeps what rests until a collection
        del self._awake[number]

    # What a device is asked for when it wakes

    def epoch_of(self, number: int) -> int:
        """Epoch of a device's database, drawn once."""
        return draw_bits(self.ground.seed, number, _EPOCH) >> 1

    def clock_of(self, number: int) -> DeviceClock:
        """Clock of a device in its current boot."""
        climate, seed, which = self.ground.climate, self.ground.seed, CLOCK + 2 * self.rest.boots[number - self._first]
        drift = climate.drift * (2 * draw_share(seed, number, which + 1) - 1) if climate.drift else 0.0
        return DeviceClock(climate.skew_s * draw_share(seed, number, which) if climate.skew_s else 0.0, 1.0 + drift)

    def next_clock(self, number: int) -> DeviceClock:
        """Clock of a device after one more reboot."""
        self.rest.boots[number - self._first] += 1
        return self.clock_of(number)

    def offset_s(self, number: int, clock: DeviceClock) -> float:
        """What a device believes hub time minus its own clock to be, in seconds."""
        return self._offset[number - self._first] or self.ground.zero_s - clock.read(0.0)

    def policy_of(self, number: int) -> Policy | None:
        """Policy in force on a device."""
        return self._policies.get(number, self.ground.policy) if self._policies else self.ground.policy

    def is_metered(self, number: int) -> bool:
        """Whether a device's link costs by the byte."""
        return bool(self._kind[number - self._first] & 1)

    # What happens to devices

    def is_alive(self, number: int) -> bool:
        """Whether a device's process runs; a device at rest is alive."""
        device = self._awake.get(number)
        return device is None or device.alive

    def kill(self, number: int) -> None:
        """Kill a device's process."""
        if self.is_alive(number):
            self[number].kill()

    def start(self, number: int) -> None:
        """Start a device's process again."""
        if not self.is_alive(number):
            self[number].start()

    def lose_link(self, number: int, hub: str | None = None) -> None:
        """A device notices that its connections are lost; `hub`: only the one to this hub's broker."""
        if self.is_alive(number):
            for name in self.wires.lines if hub is None else (self.ground.line_of(hub),):
                self.wires.notice_loss(number, name)

    def use_policy(self, policy: Policy | None, numbers: Iterable[int] | None = None) -> None:
        """Put a policy into force on these devices; `numbers` None: on all of them."""
        if numbers is None:
            self._policies.clear()
            self._lookers.clear()
            self._idle.clear()
            for place in range(len(self._kind)):
                self._kind[place] &= ~ODD
            for device in list(self._awake.values()):
                device.use_policy(policy)
            return
        for number in numbers:
            self._policies[number] = policy
            self._kind[number - self._first] |= ODD
            if number in self._awake:
                self._awake[number].use_policy(policy)

    def refresh_surroundings(self) -> None:
        """Give every core the current surroundings: time has passed that a rule may ask for."""
        self._lookers.clear()
        self._idle.clear()
        for device in list(self._awake.values()):
            device.refresh_surroundings()

    def _on_link(self, number: int, name: str, *, up: bool) -> None:
        """A connection came up or was lost.

        A device at rest ignores a loss; a line that comes up wakes it, since the hub has to be greeted on it.
        """
        device = self._awake.get(number)
        if device is None and up:
            if self.told_up is not None and self.told_up(number):
                return
            now = zip(self.wires.lines, self.wires.links_up(number), strict=True)
            # as when it was put to rest
            device = self._wake_device(number, tuple(up and line != name for line, up in now))
        if device is not None:
            device.on_link(name, up=up)

    def on_frame(self, number: int, name: str, payload: bytes) -> None:
        """A frame of a hub arrived. A device at rest waits for none, and only learns hub time from it."""
        device = self._awake.get(number)
        if device is None:
            frame = codec.split_frame(payload)
            if frame.suite is CipherSuite.SIGNED and not isinstance(codec.decode_down_note(frame.body), _REPLIES):
                device = self._wake_device(number)
            else:
                self.learn_hub_time(number, frame.header.created_ms)
                return
        device.on_frame(payload, name)

    def learn_hub_time(self, number: int, created_ms: int) -> None:
        """A device hears a message that a hub has made at this hub time."""
        device, now = self._awake.get(number), self.ground.kernel.now
        if device is None:
            self._offset[number - self._first] = created_ms / 1000 - self.clock_of(number).read(now)
        elif device.alive:
            device.offset_s = created_ms / 1000 - device.now()

    def on_hub_note(self, number: int, note: DownNote) -> None:
        """Apply what a hub's note says of connecting: the spread of the next connects."""
        if isinstance(note, WelcomeNote):
            self.wires.spread_reconnect(number, note.spread_s)

    def count_states(self) -> dict[str, int]:
        """Number of devices that are down, offline (cut off, or without a connection) and online."""
        down = sum(not device.alive for device in self._awake.values())
        offline = self.wires.count_offline() - down
        return {"down": down, "offline": max(0, offline), "online": len(self) - down - max(0, offline)}


def _policy_hash(policy: Policy | None) -> str:
    return policy.hash if policy else ""
