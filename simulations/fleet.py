"""A fleet in virtual time: devices and a hub run their production cores, only their loops are replaced.

The same `Plan` gives the same history, event by event. Faults are acted out, and the history checker judges the rest.
"""

from functools import partial
from math import inf
from random import Random

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cloud_hub.devices import Enrolled, MemoryRegistry
from policies.policy import Mode
from simulations.air import Air
from simulations.check import GRACE_S, Judge
from simulations.device import Device
from simulations.facts import Report
from simulations.faults import Fault, KillAgent, KillBroker, KillHub, Partition, Recall, ended_s
from simulations.hub import Hub
from simulations.kernel import Kernel
from simulations.weather import Climate, Weather
from simulations.world import Pace, World, policy

UNSURE_SHARE = 0.2
PRIVATE_SHARE = 0.02
HEAL_S = 240.0  # after the last sample: what is open must end within it


class Plan(msgspec.Struct, frozen=True):
    """One run. Two runs of equal plans are equal. After `seconds` no samples come.

    `clears_up_s`: when nothing is lost, repeated or failed any more; at the latest when the samples end.
    """

    edges: int
    seconds: float
    seed: int
    faults: tuple[Fault, ...] = ()
    climate: Climate = Climate()
    mode: Mode = Mode.WAIT
    pace: Pace = Pace()
    clears_up_s: float = inf
    heal_s: float = HEAL_S
    grace_s: float = GRACE_S

    @property
    def last_fault_ended_s(self) -> float:
        return max(min(self.clears_up_s, self.seconds), ended_s(self.faults))


class Result(msgspec.Struct, frozen=True):
    """`events`: calls of the kernel. `counts`: whatever else was counted, by dotted name."""

    report: Report
    events: int
    samples: int
    counts: dict[str, int]


class Fleet:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        rng = Random(plan.seed)  # noqa: S311 - a seed is the point
        kernel = Kernel()
        weather = Weather(plan.climate, Random(rng.getrandbits(64)))  # noqa: S311
        self._world = World(
            kernel=kernel,
            weather=weather,
            dice=Random(rng.getrandbits(64)),  # noqa: S311
            judge=Judge(plan.last_fault_ended_s, grace_s=plan.grace_s),
            air=Air(kernel, weather),
            policy=policy(plan.mode),
            pace=plan.pace,
        )
        self._load = Random(rng.getrandbits(64))  # noqa: S311
        self._samples = 0
        self._version = 1
        names = [f"sim--d{number}" for number in range(plan.edges)]
        self._hub = Hub(self._world, _registry(names))
        self._devices = [Device(name, self._world, self._hub.line) for name in names]
        self._hub.devices.update({device.name: device.line for device in self._devices})

    def run(self) -> Result:
        kernel, plan = self._world.kernel, self.plan
        self._hub.start()
        for device in self._devices:
            kernel.at(self._load.uniform(0.0, min(10.0, plan.seconds)), device.start)
            kernel.after(self._gap_s(), self._sample, device)
        for fault in plan.faults:
            kernel.at(fault.at_s, self._strike, fault)
        kernel.at(min(plan.clears_up_s, plan.seconds), self._world.weather.clear_up)
        kernel.run(max(plan.seconds, plan.last_fault_ended_s) + plan.heal_s)
        counts = {f"hub.{name}": count for name, count in sorted(self._hub.counts.items())}
        counts |= {"air.carried": self._world.air.carried, "air.gone": self._world.air.gone}
        return Result(self._world.judge.report(), kernel.events, self._samples, counts)

    # Load

    def _gap_s(self) -> float:
        return self._load.expovariate(self.plan.pace.samples_per_s)

    def _sample(self, device: Device) -> None:
        if self._world.kernel.now > self.plan.seconds:
            return
        luck = self._load.random()
        confidence = 0.5 if luck < UNSURE_SHARE else 0.9
        data_class = "private" if self._load.random() < PRIVATE_SHARE else "open"
        self._samples += 1
        device.sample(confidence, data_class)
        self._world.kernel.after(self._gap_s(), self._sample, device)

    # Faults

    def _strike(self, fault: Fault) -> None:
        kernel = self._world.kernel
        match fault:
            case KillAgent(_, lasts_s, number):
                device = self._devices[number]
                if device.alive:
                    device.kill()
                    kernel.after(lasts_s, device.start)
            case KillHub(_, lasts_s):
                if self._hub.alive:
                    self._hub.kill()
                    kernel.after(lasts_s, self._hub.start)
            case KillBroker(_, lasts_s):
                self._kill_broker(lasts_s)
            case Recall(_, lasts_s):
                self._use_policy(leaves=False)
                kernel.after(lasts_s, partial(self._use_policy, leaves=True))
            case Partition(_, lasts_s, share):
                self._part(self._load.sample(self._devices, int(share * len(self._devices))), lasts_s)

    def _use_policy(self, *, leaves: bool) -> None:
        self._version += 1
        changed = policy(self.plan.mode, self._version, leaves=leaves)
        for device in self._devices:
            device.use_policy(changed)

    def _kill_broker(self, lasts_s: float) -> None:
        air = self._world.air
        if not air.up:
            return
        air.kill()
        self._hub.lose_link()
        for device in self._devices:
            device.lose_link()
        self._world.kernel.after(lasts_s, air.revive)

    def _part(self, devices: list[Device], lasts_s: float) -> None:
        """Cut off now; each notices after a while of its own, or not at all if it is over before."""
        for device in devices:
            device.line.cut += 1
            self._world.kernel.after(self._world.weather.notice_s(), self._notice, device)
            self._world.kernel.after(lasts_s, self._rejoin, device)

    def _notice(self, device: Device) -> None:
        if device.line.cut:
            device.lose_link()

    def _rejoin(self, device: Device) -> None:
        device.line.cut -= 1


def _registry(names: list[str]) -> MemoryRegistry:
    """All devices under one key: nothing is sealed or signed here, but a registry names keys."""
    signing = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    hpke = X25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    return MemoryRegistry(Enrolled(name, signing, hpke) for name in names)
